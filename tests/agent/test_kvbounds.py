"""What one message of an engine may cost: no more than its bytes and its blocks."""

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from msgspec.msgpack import encode

from extproc.agent.kv import blocks as kvblocks
from extproc.agent.kv.blocks import CLEARED_AT_ONCE, EngineBlocks
from extproc.agent.kv.events import BATCH_BLOCKS_MAX, BATCH_TOKENS_MAX, Cleared, Event, StoredBlocks, batch_of
from extproc.agent.kv.formats import EVENT_BLOCKS_MAX, EVENT_TOKENS_MAX, EVENTS_MAX
from extproc.agent.kv.pieces import pieces
from extproc.agent.kv.watch import KvWatch
from tests.agent.kvengine import batch, found, hash_of, removed, stored

TRACED_PER_BLOCK_MAX = 250
"""Lines of Python, of what a block of 1 token costs; without a bound it would be thousands here."""


def payload(*events: Any) -> bytes:
    return encode([0.0, list(events), 0])


@pytest.mark.parametrize(
    ("within", "over", "is_doubtful"),
    [
        pytest.param(
            ["BlockStored", [1] * EVENT_BLOCKS_MAX, None, [1] * EVENT_BLOCKS_MAX, 1],
            ["BlockStored", [1] * (EVENT_BLOCKS_MAX + 1), None, [1] * (EVENT_BLOCKS_MAX + 1), 1],
            False,
            id="blocks",
        ),
        pytest.param(
            ["BlockStored", [1], None, [1] * (2**16), 2**16],
            ["BlockStored", [1] * 5, None, [1] * (EVENT_TOKENS_MAX + 2**16), 2**16],
            False,
            id="tokens",
        ),
        pytest.param(
            ["BlockRemoved", [1] * EVENT_BLOCKS_MAX], ["BlockRemoved", [1] * (EVENT_BLOCKS_MAX + 1)], True, id="removed"
        ),
    ],
)
def test_an_event_over_the_bounds_is_malformed(within: Any, over: Any, is_doubtful: bool) -> None:
    one, other = batch_of(payload(within)), batch_of(payload(over))
    assert one is not None
    assert other is not None
    assert (len(one.events), one.malformed) == (1, 0)
    assert (len(other.events), other.malformed, other.doubtful) == (0, 1, is_doubtful)


@pytest.mark.parametrize(
    ("within", "one_more"),
    [
        ([["x"]] * EVENTS_MAX, ["x"]),
        ([["BlockRemoved", [1] * EVENT_BLOCKS_MAX]] * (BATCH_BLOCKS_MAX // EVENT_BLOCKS_MAX), ["BlockRemoved", [1]]),
        (
            [["BlockStored", [1] * 16_384, None, [1] * EVENT_TOKENS_MAX, 16]] * (BATCH_TOKENS_MAX // EVENT_TOKENS_MAX),
            ["BlockStored", [1], None, [1], 1],
        ),
    ],
    ids=["events", "blocks", "tokens"],
)
def test_a_message_over_the_bounds_is_none_and_ends_what_is_known(within: list[Any], one_more: Any) -> None:
    assert batch_of(payload(*within)) is not None
    watch = KvWatch(1, 1000)
    watch.heard(0, 0, payload(["BlockStored", [1], None, [1] * 16, 16]), 0.0)
    assert watch.known
    watch.heard(0, 1, payload(*within, one_more), 0.0)
    assert (watch.known, len(watch.blocks), watch.counts.malformed) == (False, 0, 1)


MANY = b"\xdd\x00\x03\x00\x00" + b"\x90" * 0x30000
"""A list of lists, each of one byte here and of 64 in memory."""


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x93" + MANY + b"\x90\x00", id="time"),
        pytest.param(b"\x93\x00" + MANY + b"\x00", id="events"),
        pytest.param(b"\x93\x00\x90" + MANY, id="rank"),
        pytest.param(b"\x94\x00\x90\x00" + MANY, id="more"),
        pytest.param(b"\x93\x00\x91" + MANY + b"\x00", id="event"),
        pytest.param(b"\x93\x00\x91\x92" + encode("BlockMoved") + MANY + b"\x00", id="unknown event"),
        pytest.param(b"\x93\x00\x91\x92" + encode("BlockRemoved") + MANY + b"\x00", id="removed"),
        *(
            pytest.param(
                b"\x93\x00\x91"
                + bytes([0x95 + place + 1])
                + encode("BlockStored")
                + b"\x91\x01\xc0\x91\x01\x01"
                + b"\xc0" * place
                + MANY
                + b"\x00",
                id=f"field {place}",
            )
            for place in range(8)
        ),
    ],
)
def test_nothing_takes_many_times_the_memory_of_its_bytes(message: bytes) -> None:
    tracemalloc.start()
    try:
        batch_of(message)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(message)


def lines(do: Callable[[], None]) -> int:
    count, before = 0, sys.gettrace()

    def trace(_frame: FrameType, _event: str, _value: object) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


SIZE, TIMES = 1500, 300
ROOT = (1,)


def fan() -> Iterator[Event]:
    """A block of which many spans of ours begin comes and goes."""
    yield stored(ROOT, 1)
    for number in range(SIZE):
        yield stored((*ROOT, number), 1, 1)
    for _ in range(TIMES):
        yield removed(ROOT)
        yield stored(ROOT, 1)


def wide_fan() -> Iterator[Event]:
    """The same with several in between."""
    for end in range(1, 6):
        yield stored((1,) * end, 1, end - 1)
    for number in range(SIZE):
        yield stored((1,) * 5 + (number,), 1, 5)
    for _ in range(TIMES):
        yield removed((1,) * 2, (1,) * 4)
        yield stored((1,) * 5, 1)


def chain() -> Iterator[Event]:
    yield stored(tuple(range(SIZE)), 1)
    for end in range(1, TIMES):
        yield removed(tuple(range(end)))


def clearings() -> Iterator[Event]:
    """Of a rank that has little, beside one that has much."""
    yield stored(tuple(range(SIZE)), 1)
    for _ in range(TIMES):
        yield Cleared()
        yield stored(ROOT, 1)


def ambiguous() -> Iterator[Event]:
    for number in range(SIZE):
        for token in (1, 2):
            yield StoredBlocks([number], None, [token], 1, "", 1, 0)


@pytest.mark.parametrize("shape", [fan, wide_fan, chain, clearings, ambiguous])
@pytest.mark.parametrize("blocks_max", [100, 100_000])
def test_whatever_an_engine_says_its_blocks_bound_the_time(
    shape: Callable[[], Iterator[Event]], blocks_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvblocks, "VISITS_SAVED_MAX", 100)
    events = list(shape())
    count = sum(1 if isinstance(event, Cleared) else len(event.hashes) for event in events)
    blocks = EngineBlocks(blocks_max)

    def take() -> None:
        first = events.pop(0)
        blocks.take(0, batch(first))
        blocks.take(0, batch(*events, rank=1 if shape is clearings else 0))

    assert lines(take) < TRACED_PER_BLOCK_MAX * count
    assert sum(pool.weight for pool in blocks._all_pools) == blocks._weight <= blocks_max
    for rank in (0, 1):
        blocks.take(0, batch(Cleared(), rank=rank))
    assert not blocks.held


def test_blocks_that_are_looked_up_too_often_are_forgotten_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvblocks, "VISITS_SAVED_MAX", 100)
    blocks = EngineBlocks(100_000)
    first, others = (1,) * 24, [(1,) * 24 + (number,) * 24 for number in range(400)]
    blocks.take(0, batch(stored(first, 24), *(stored(one, 24, 1) for one in others)))
    assert {found(one, blocks.held) for one in others} == {3}
    for _ in range(3):
        blocks.take(0, batch(removed(first)))
        assert {found(one, blocks.held) for one in others} == {0}
        blocks.take(0, batch(stored(first, 24)))
        assert {found(one, blocks.held) for one in others} == {1}
    assert blocks.orphans == 400
    blocks.take(0, batch(removed(*others), stored(others[0], 24)))
    assert found(others[0], blocks.held) == 3
    assert hash_of(first) in blocks._all_pools[0].blocks


@pytest.mark.parametrize("size", [1, 16, 24, 784])
@pytest.mark.parametrize("comparable", [0, 3, 5, 7])
def test_an_event_in_pieces_says_the_same(size: int, comparable: int) -> None:
    whole = stored(tuple(range(8 * size)), size, 1)
    event = StoredBlocks(whole.hashes, whole.parent, whole.token_ids, size, "", comparable, 0)
    gone = removed(*(tuple(range(end * size)) for end in range(2, 9)))
    for one in (event, gone):
        cut = list(pieces(one, 3))
        assert len(cut) == (7 if size > 24 and one is event else len(cut)) > 1
        told, in_pieces = EngineBlocks(10_000), EngineBlocks(10_000)
        first = stored(tuple(range(size)), size)
        for blocks, events in ((told, [one]), (in_pieces, cut)):
            blocks.take(0, batch(first, *([event] if one is gone else ()), *events))
        assert (set(told.held), told.orphans, told._weight) == (set(in_pieces.held), in_pieces.orphans, told._weight)
        assert told._weight == in_pieces._weight


def test_what_is_cleared_goes_in_pieces_and_nothing_is_told_meanwhile() -> None:
    watch = KvWatch(1, 10 * CLEARED_AT_ONCE)
    count = 2 * CLEARED_AT_ONCE
    for sequence in range(2):
        hashes = list(range(sequence * CLEARED_AT_ONCE, (sequence + 1) * CLEARED_AT_ONCE))
        watch.heard(0, sequence, payload(["BlockStored", hashes, None, hashes, 1]), 0.0)
    assert len(watch.blocks) == count // 16
    watch.began_anew(1000.0)
    assert not watch.known
    assert watch.blocks.held
    watch.report("n", "b")
    watch.report("n", "b")
    assert watch.known
    assert not watch.blocks.held
    watch.heard(0, 0, payload(["BlockStored", [1], None, [1] * 16, 16]), 2000.0)
    assert len(watch.report("n", "b").stored) == 1
