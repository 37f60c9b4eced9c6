from extproc.sim.holding import Holding
from extproc.sim.kv import KvPool

BLOCK = 4


def pool_of(usable: int) -> KvPool:
    return KvPool(usable + 1, BLOCK)


def begun(pool: KvPool, tokens: int, keys: range = range(0)) -> Holding:
    """One whose tokens are all in the cache."""
    held = Holding(pool, keys)
    assert held.begin(tokens) is not None
    assert held.fill(tokens)
    return held


def test_blocks_are_taken_as_tokens_need_them() -> None:
    pool = pool_of(9)
    held = Holding(pool, ())
    assert held.begin(30) == 0
    free = [pool.blocks_free for tokens in (1, 4, 5, 8, 30) if held.fill(tokens)]
    assert free == [8, 8, 7, 7, 1]
    held.end()
    assert pool.blocks_free == 9


def test_what_is_given_back_belongs_to_the_next() -> None:
    pool = pool_of(3)
    held = begun(pool, 12)
    held.end()
    begun(pool, 12)
    held.end()
    assert pool.blocks_free == 0


def test_nothing_is_taken_where_too_few_are_free() -> None:
    pool = pool_of(3)
    held = begun(pool, 4)
    assert not held.fill(13)
    assert pool.blocks_free == 2
    assert held.fill(12)


def test_a_sequence_begins_only_if_all_of_it_fits() -> None:
    pool = pool_of(3)
    assert Holding(pool, ()).begin(13) is None
    assert Holding(pool, ()).begin(12) == 0


def test_what_is_cached_is_shared_and_the_last_token_never() -> None:
    pool = pool_of(9)
    begun(pool, 8, range(5))
    assert Holding(pool, range(5)).begin(20) == 8
    assert Holding(pool, range(5)).begin(8) == 4
    assert Holding(pool, range(5)).begin(9) == 8


def test_only_full_blocks_are_shared() -> None:
    pool = pool_of(9)
    held = begun(pool, 7, range(5))
    assert held.publishing
    assert Holding(pool, range(5)).begin(20) == 4
    held.fill(8)
    assert Holding(pool, range(5)).begin(20) == 8


def test_blocks_shared_with_a_running_sequence_need_not_be_free() -> None:
    pool = pool_of(4)
    begun(pool, 12, range(3))
    assert Holding(pool, ()).begin(13) is None
    assert Holding(pool, range(3)).begin(16) == 12


def test_what_did_not_fit_is_tried_again_once_blocks_are_released() -> None:
    pool = pool_of(4)
    first = begun(pool, 12)
    second = Holding(pool, ())
    assert second.begin(16) is None
    assert second.begin(16) is None
    first.end()
    assert second.begin(16) == 0


def test_what_did_not_fit_is_tried_again_once_it_shares_more() -> None:
    pool = pool_of(4)
    first = begun(pool, 11, range(3))
    second = Holding(pool, range(3))
    assert second.begin(16) is None
    first.fill(12)
    assert not first.publishing
    assert second.begin(16) == 12
