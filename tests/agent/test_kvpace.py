"""How much of the agent's time one engine's messages take."""

import asyncio
from typing import Any

import pytest
import structlog
from msgspec.msgpack import encode

from extproc.agent.kv.feed import KvFeed
from extproc.agent.kv.pace import TAKEN_AT_ONCE_MAX, TAKEN_AT_ONCE_S, Pace
from extproc.agent.kv.settings import KvEventsConfig
from extproc.agent.kv.subscriber import KvSubscriber
from extproc.agent.kv.watch import KvWatch
from tests.agent.kvpublisher import bound, publishing, stored
from tests.waiting import until


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def rested(pace: Pace, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long it waits for its turn."""
    began_s = clock.now_s

    async def sleep(delay_s: float) -> None:
        clock.now_s += delay_s

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        return await pace.turn() - began_s


@pytest.mark.parametrize("took_s", [TAKEN_AT_ONCE_S / 50, TAKEN_AT_ONCE_S / 3, TAKEN_AT_ONCE_S, 1.0])
async def test_it_works_half_of_the_time_at_most(took_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    pace, began_s, worked_s, at_once_s = Pace(clock), clock.now_s, 0.0, 0.0
    for _ in range(500):
        if await rested(pace, clock, monkeypatch):
            at_once_s = 0.0
        since_s = clock.now_s
        clock.now_s += took_s
        worked_s, at_once_s = worked_s + took_s, at_once_s + took_s
        pace.took(since_s)
        assert at_once_s <= TAKEN_AT_ONCE_S + took_s
    await rested(pace, clock, monkeypatch)
    assert worked_s <= (clock.now_s - began_s) / 2 + TAKEN_AT_ONCE_S


async def test_however_little_they_take_there_are_not_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(3):
        for _ in range(TAKEN_AT_ONCE_MAX):
            assert await rested(pace, clock, monkeypatch) == 0
            pace.took(clock.now_s)
        assert await rested(pace, clock, monkeypatch) == pytest.approx(TAKEN_AT_ONCE_S)


async def test_time_between_messages_is_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(TAKEN_AT_ONCE_MAX - 1):
        clock.now_s += 10.0
        assert await rested(pace, clock, monkeypatch) == 0
        pace.took(clock.now_s)


class _Ready:
    """A socket at which messages are always ready, as pyzmq's: awaiting one lets nobody else go on."""

    def __init__(self, frames: list[bytes]) -> None:
        self.taken = 0
        self._frames = frames

    async def recv_multipart(self) -> list[bytes]:
        self.taken += 1
        assert self.taken < 100 * TAKEN_AT_ONCE_MAX, "nobody else goes on"
        return [self._frames[0], self.taken.to_bytes(8, "big"), *self._frames[1:]]


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"", encode([0.0, [], 0])], id="empty batches"),
        pytest.param([b"", b"\xc1"], id="malformed batches"),
        pytest.param([b"", b"", b""], id="no messages"),
        pytest.param([b"", encode([0.0, [stored(1)] * 20, 0])], id="batches"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
async def test_a_flood_of_messages_lets_others_go_on(frames: list[bytes], again: bool) -> None:
    ready: Any = _Ready(frames)
    loop = asyncio.get_running_loop()
    config = KvEventsConfig(endpoint="tcp://127.0.0.1:1", replay="tcp://127.0.0.1:2" if again else None)
    subscriber = KvSubscriber(config, KvWatch(1, 1000), loop.time, structlog.get_logger())
    if again:
        ready.connect = ready.close = lambda *_: None

        async def send(_: Any) -> None: ...

        ready.send_multipart = send
    context: Any = type("Context", (), {"socket": lambda *_: ready})
    taking = asyncio.create_task(subscriber._take_all(context, ready, 0))
    turns = 0
    while ready.taken < 20 * TAKEN_AT_ONCE_MAX and not taking.done():
        await asyncio.sleep(0)
        turns += 1
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    assert turns >= 20


async def test_a_message_that_is_left_half_way_ends_what_is_known() -> None:
    watch = KvWatch(1, 100_000)
    watch.heard(0, 0, encode([0.0, [stored(1)], 0]), 0.0)
    slices = watch.hear_in_slices(0, 1, encode([0.0, [stored(n) for n in range(3000)], 0]), 0.0)
    for _ in range(5):
        next(slices)
    assert watch.known
    slices.close()
    assert not watch.known
    assert not watch.blocks.held


async def test_an_engine_that_begins_anew_meanwhile_has_nothing_of_the_message() -> None:
    payload = encode([0.0, [stored(n) for n in range(3000)], 0])
    for before in (1, 8):
        watch = KvWatch(1, 100_000)
        slices = watch.hear_in_slices(0, 0, payload, 0.0)
        for _ in range(before):
            next(slices)
        watch.began_anew(1000.0)
        watch.began_anew(2000.0)
        for _ in slices:
            pass
        assert watch.known
        assert not watch.blocks.held


async def test_a_feed_is_left_while_messages_flood_it() -> None:
    async with publishing() as publisher:
        config = KvEventsConfig(endpoint=bound(publisher.events))
        async with KvFeed(config, "n") as feed:
            await publisher.subscribed()
            for _ in range(300):
                await publisher.publish(stored(1))
            await until(lambda: feed.watch.counts.batches > 0)
        assert feed._hearing.done()
