from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.kv import KvPool, blocks_for


def cached(pool: KvPool, *keys: int) -> list[int]:
    return pool.cached_prefix(keys, len(keys))


def held(pool: KvPool, *keys: int) -> list[int]:
    """Blocks of a sequence that computed these."""
    blocks = pool.take(len(keys))
    pool.publish(blocks, keys)
    return blocks


def test_tokens_take_whole_blocks() -> None:
    assert [blocks_for(tokens) for tokens in (0, 1, 16, 17, 32, 33)] == [0, 1, 1, 2, 2, 3]


def test_larger_blocks_are_fewer() -> None:
    assert [blocks_for(tokens, 64) for tokens in (0, 1, 64, 65)] == [0, 1, 1, 2]


def test_one_block_of_the_total_is_never_used() -> None:
    pool = KvPool(5)
    assert pool.blocks_free == 4
    assert 0 not in pool.take(4)
    assert pool.blocks_free == 0
    assert pool.usage == 1.0


def test_a_released_prefix_is_found_until_its_blocks_are_taken() -> None:
    pool = KvPool(5)
    first = held(pool, 1, 2)
    pool.release(first)
    assert pool.usage == 0.0
    assert cached(pool, 1, 2, 3) == first
    pool.take(4)
    assert cached(pool, 1, 2, 3) == []


def test_a_prefix_ends_at_the_first_block_that_is_not_cached() -> None:
    pool = KvPool(9)
    blocks = held(pool, 1, 3)
    assert cached(pool, 1, 2, 3) == blocks[:1]
    assert cached(pool, 2, 3) == []


def test_no_more_of_a_prefix_is_found_than_asked_for() -> None:
    pool = KvPool(9)
    blocks = held(pool, 1, 2, 3)
    assert pool.cached_prefix((1, 2, 3), 2) == blocks[:2]


def test_the_end_of_the_oldest_free_chain_is_lost_first() -> None:
    pool = KvPool(5)
    old, new = held(pool, 1, 2), held(pool, 3, 4)
    pool.release(old)
    pool.release(new)
    pool.take(1)
    assert cached(pool, 1, 2) == old[:1]
    pool.take(2)
    assert cached(pool, 1, 2) == []
    assert cached(pool, 3, 4) == new[:1]


def test_sharing_makes_a_chain_the_newest_again() -> None:
    pool = KvPool(5)
    old, new = held(pool, 1, 2), held(pool, 3, 4)
    pool.release(old)
    pool.release(new)
    assert pool.free_after_sharing(old) == 2
    pool.share(old)
    assert pool.blocks_free == 2
    pool.release(old)
    pool.take(2)
    assert cached(pool, 1, 2) == old
    assert cached(pool, 3, 4) == []


def test_a_shared_block_is_free_only_when_its_last_user_is_gone() -> None:
    pool = KvPool(3)
    blocks = held(pool, 1)
    assert pool.free_after_sharing(blocks) == 1
    pool.share(blocks)
    pool.release(blocks)
    assert pool.blocks_free == 1
    pool.release(blocks)
    assert pool.blocks_free == 2


def test_a_second_block_with_the_same_prefix_stays_private() -> None:
    pool = KvPool(4)
    first = held(pool, 1)
    second = held(pool, 1)
    assert cached(pool, 1) == first
    pool.release(second)
    pool.take(2)
    assert cached(pool, 1) == first


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_no_block_is_lost_or_given_twice(steps: list[tuple[int, int]]) -> None:
    pool = KvPool(9)
    holders: list[list[int]] = []
    for length, family in steps:
        keys = [family * 10 + index for index in range(length)]
        shared = pool.cached_prefix(keys, length)
        if length - len(shared) <= pool.free_after_sharing(shared):
            pool.share(shared)
            blocks = shared + pool.take(length - len(shared))
            pool.publish(blocks, keys)
            holders.append(blocks)
        elif holders:
            pool.release(holders.pop(family % len(holders)))
        in_use = {block for blocks in holders for block in blocks}
        assert pool.blocks_free == 8 - len(in_use)
        assert in_use <= set(range(1, 9))
    for blocks in holders:
        pool.release(blocks)
    assert pool.usage == 0.0
