"""From the blocks of engines to ours."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.kv.block import EngineBlock
from extproc.agent.kv.blocks import POOLS_MAX, EngineBlocks
from extproc.agent.kv.events import Batch, Cleared, StoredBlocks
from extproc.kvchain import BLOCK_TOKENS, token_blocks_of
from tests.agent.kvengine import ModelEngine, Tokens, batch, found, hash_of, removed, stored

PROMPT = tuple(range(100, 196))
FITTING = (1, 2, 16, 32, 48)
"""Sizes of engines' blocks of which one is a multiple of the other: all that engines have by themselves."""
ODD = (5, 15, 17, 24, 40)

PROMPTS = st.builds(
    lambda seed, shared, length: (7,) * shared + tuple(random.Random(seed).choices(range(3), k=length)),
    st.integers(0, 3),
    st.integers(0, 60),
    st.integers(0, 120),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), PROMPTS, st.integers(0, 2)),
        st.tuples(st.just("evict"), st.integers(0, 1000)),
        st.tuples(st.just("evict"), st.integers(0, 1000)),
        st.tuples(st.just("clear")),
        st.tuples(st.just("cut")),
    ),
    max_size=25,
)


@given(st.sampled_from(FITTING + ODD), STEPS)
def test_what_is_told_of_any_prompt_is_the_longest_beginning_that_the_engine_has(size: int, steps: list[Any]) -> None:
    """In whole blocks of the engine. Of sizes that do not fit, its last one may count as far as the prompt has it."""
    engine, blocks, told = ModelEngine(size), EngineBlocks(1_000_000), set[int]()
    prompts: list[Tokens] = []
    for step in steps:
        match step:
            case ("run", prompt, anew):
                prompts.append(prompt)
                blocks.take(0, batch(*engine.run(prompt, anew)))
            case ("evict", choice):
                blocks.take(0, batch(*engine.evict(choice)))
            case ("clear",):
                blocks.take(0, batch(*engine.clear()))
            case _:
                cut(blocks, told)
        for prompt in prompts:
            depth, cached = found(prompt, blocks.held), engine.cached_tokens(prompt)
            if size in FITTING:
                whole = max(size, BLOCK_TOKENS)
                assert depth * BLOCK_TOKENS // whole * whole == cached // BLOCK_TOKENS * BLOCK_TOKENS
            else:
                assert cached // BLOCK_TOKENS <= depth <= (cached + size - 1) // BLOCK_TOKENS
    cut(blocks, told)
    assert told == set(blocks.held)
    assert blocks.orphans == blocks.malformed == blocks.dropped == 0
    while engine.copies:
        blocks.take(0, batch(*engine.evict(0)))
    assert not blocks.held
    assert not kept(blocks), "what is gone takes no memory"
    assert blocks._weight == 0


def kept(blocks: EngineBlocks) -> list[EngineBlock]:
    return [one for pool in blocks._all_pools for one in pool.blocks.values()]


def cut(blocks: EngineBlocks, told: set[int]) -> None:
    came, went = blocks.cut()
    assert not told & set(came)
    assert set(went) <= told
    assert len(set(came)) + len(set(went)) == len(came) + len(went)
    told |= set(came)
    told -= set(went)


@pytest.mark.parametrize("size", [1, 3, 16, 20, 32, 48])
def test_our_blocks_come_with_their_last_token(size: int) -> None:
    blocks = EngineBlocks(1000)
    for end in range(size, len(PROMPT) + 1, size):
        blocks.take(0, batch(stored(PROMPT[:end], size, end // size - 1)))
        assert set(blocks.held) == set(token_blocks_of(PROMPT[:end]))
    assert set(blocks.cut()[0]) == set(blocks.held)


def test_an_adapter_is_the_root_of_its_own_prompts() -> None:
    blocks = EngineBlocks(1000)
    blocks.take(0, batch(stored(PROMPT, 16, adapter="one")))
    assert set(blocks.held) == set(token_blocks_of(PROMPT, "one"))
    assert found(PROMPT, blocks.held) == found(PROMPT, blocks.held, "two") == 0


def test_what_stands_behind_an_unknown_block_is_left_out() -> None:
    blocks = EngineBlocks(1000)
    blocks.take(0, batch(stored(PROMPT, 16, 2)))
    assert (len(blocks), blocks.orphans) == (0, 4)
    blocks.take(0, batch(removed(PROMPT[:48])))
    blocks.take(0, batch(stored(PROMPT, 16)))
    assert len(blocks) == 6


def test_blocks_that_depend_on_more_than_tokens_are_left_out_and_those_behind_them() -> None:
    blocks = EngineBlocks(1000)
    event = stored(PROMPT[:64], 16)
    blocks.take(0, batch(StoredBlocks(event.hashes, None, event.token_ids, 16, "", 1, 0)))
    blocks.take(0, batch(stored(PROMPT, 16, 4)))
    assert (found(PROMPT, blocks.held), len(blocks), blocks.orphans) == (1, 1, 5)


def test_each_copy_is_counted() -> None:
    blocks = EngineBlocks(1000)
    blocks.take(0, batch(stored(PROMPT[:16], 16), stored(PROMPT[:16], 16)))
    blocks.take(0, batch(removed(PROMPT[:16])))
    assert found(PROMPT, blocks.held) == 1
    blocks.take(0, batch(removed(PROMPT[:16]), removed(PROMPT[:16])))
    assert found(PROMPT, blocks.held) == 0
    blocks.take(0, batch(stored(PROMPT[:16], 16)))
    assert found(PROMPT, blocks.held) == 1, "a removal too many is not owed"


def test_a_block_behind_one_that_is_gone_waits_for_it() -> None:
    """A block of ours spans both."""
    blocks = EngineBlocks(1000)
    first, second, other = PROMPT[:24], PROMPT[:48], PROMPT[:24] + PROMPT[:24]
    blocks.take(0, batch(stored(second, 24), removed(first), stored(other, 24, 1)))
    ours, others = token_blocks_of(second), token_blocks_of(other)
    assert set(blocks.held) == {ours[2], others[2]}
    blocks.take(0, batch(stored(first, 24)))
    assert set(blocks.held) == {*ours, *others}
    blocks.take(0, batch(removed(first), removed(other), removed(second)))
    assert not kept(blocks)


def test_ranks_and_publishers_have_caches_of_their_own() -> None:
    blocks = EngineBlocks(1000)
    for source, rank in ((0, 0), (0, 1), (1, 0)):
        blocks.take(source, batch(stored(PROMPT[:32], 16), rank=rank))
    blocks.take(0, batch(removed(PROMPT[:32], PROMPT[:16])))
    assert found(PROMPT, blocks.held) == 2
    blocks.take(0, batch(Cleared(), rank=1))
    assert found(PROMPT, blocks.held) == 2
    blocks.clear(1)
    assert not blocks.held
    assert blocks._weight == 0


def test_there_are_no_more_caches_than_a_bound() -> None:
    blocks = EngineBlocks(100_000)
    for rank in range(POOLS_MAX + 5):
        blocks.take(0, batch(stored(PROMPT[:16], 16), rank=rank))
    assert (blocks.orphans, blocks._weight) == (5, POOLS_MAX)
    for rank in range(POOLS_MAX + 5):
        assert blocks.held
        blocks.take(0, batch(removed(PROMPT[:16]), rank=min(rank, POOLS_MAX - 1)))
        if rank == POOLS_MAX - 1:
            break
    assert not blocks.held


@pytest.mark.parametrize("size", [1, 16, 24, 48])
def test_over_the_bound_the_least_recently_stored_go_first(size: int) -> None:
    blocks = EngineBlocks(6)
    blocks.take(0, batch(stored(PROMPT[:48], size)))
    blocks.cut()
    if size > 1:
        assert len(blocks) == 3
        assert blocks.dropped == 0
    other = tuple(range(48 * 3))
    blocks.take(0, batch(stored(other, size)))
    assert blocks._weight <= 6
    assert blocks.dropped > 0
    assert found(PROMPT, blocks.held) == 0
    blocks.take(0, batch(removed(PROMPT[:size]), Cleared()))
    assert (len(blocks), blocks._weight) == (0, 0)


def test_over_the_bound_the_largest_cache_gives_way() -> None:
    blocks = EngineBlocks(6)
    blocks.take(0, batch(stored(PROMPT[:16], 16), rank=1))
    blocks.take(0, batch(*(stored((number,) * 16, 16) for number in range(20))))
    blocks.take(0, batch(stored(PROMPT[:32], 16, 1), rank=1))
    assert (found(PROMPT, blocks.held), blocks._weight) == (2, 6)


def test_a_block_is_kept_at_the_bound_and_stored_again_is_recent() -> None:
    blocks = EngineBlocks(2)
    one, two, three = ((number,) * 16 for number in range(3))
    for tokens in (one, two, one, three):
        blocks.take(0, batch(stored(tokens, 16)))
    assert [found(tokens, blocks.held) for tokens in (one, two, three)] == [1, 0, 1]
    assert blocks.dropped == 1


def test_a_hash_that_stands_for_two_beginnings_says_nothing() -> None:
    """As engines tell that hash a block's own tokens only."""
    blocks = EngineBlocks(1000)
    event = stored(PROMPT[:48], 16)
    first, second, third = event.hashes
    blocks.take(0, batch(event))
    other = StoredBlocks([second], third, list(PROMPT[16:32]), 16, "", 1, 0)
    blocks.take(0, batch(other))
    assert (found(PROMPT, blocks.held), blocks.malformed) == (1, 1)
    for copies_left in (1, 0):
        blocks.take(0, batch(removed(PROMPT[:32])))
        blocks.take(0, batch(stored(PROMPT[:48], 16, 2)))
        assert blocks._all_pools[0].ambiguous.get(hash_of(PROMPT[:32]), 0) == copies_left
    blocks.take(0, batch(stored(PROMPT[:32], 16)))
    assert found(PROMPT, blocks.held) == 3
    assert first in {one.key for one in kept(blocks)}


def test_hashes_that_say_nothing_are_bounded_and_end_with_a_clearing() -> None:
    blocks = EngineBlocks(10)
    for number in range(50):
        for token in (1, 2):
            blocks.take(0, batch(StoredBlocks([number], None, [token] * 16, 16, "", 1, 0)))
    assert blocks._ambiguous == len(blocks._all_pools[0].ambiguous) == 10
    blocks.take(0, batch(Cleared()))
    assert blocks._ambiguous == len(blocks._all_pools[0].ambiguous) == 0


@pytest.mark.parametrize("token", [-1, 2**32, 2**63])
def test_a_token_that_is_none_leaves_its_event_out(token: int) -> None:
    blocks = EngineBlocks(1000)
    blocks.take(0, batch(StoredBlocks([1], None, [token] * 16, 16, "", 1, 0), stored(PROMPT[:16], 16)))
    assert (len(blocks), blocks.malformed) == (1, 1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1]),
            st.sampled_from([1, 3, 15, 16, 17]),
            st.lists(st.integers(0, 8), max_size=4),
            st.none() | st.integers(0, 8),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_no_sequence_of_events_breaks_the_books(events: list[Any]) -> None:
    """An engine may say anything: sizes that change, blocks behind themselves, hashes that mean nothing."""
    blocks, told = EngineBlocks(12), set[int]()
    for rank, size, hashes, parent, is_removal in events:
        event = removed() if is_removal else stored((), size)
        event.hashes.extend(hashes)
        if isinstance(event, StoredBlocks):
            event = StoredBlocks(hashes, parent, [1] * size * len(hashes), size, "", len(hashes), 0)
        blocks.take(0, Batch(rank, [event], 0, 0))
        cut(blocks, told)
        assert told == set(blocks.held)
        assert blocks._weight == sum(one.weight for one in kept(blocks)) <= 12
    blocks.take(0, batch(Cleared()))
    blocks.take(0, batch(Cleared(), rank=1))
    assert not blocks.held
    assert not kept(blocks)
