"""Routers of a fleet whose hashes of prompts have different keys: what one tells means nothing to the other."""

import asyncio

import pytest

from extproc.bus.bus import PLACEMENTS, ROUTERS
from extproc.exchange import chains, wire
from extproc.exchange.complaints import LOG_INTERVAL_S
from extproc.exchange.placements import PLACES_MAX
from extproc.exchange.wire import Here
from extproc.pb import exchange_pb2
from tests.exchange.scripted import Line, Router, pass_time
from tests.waiting import until

BLOCKS = tuple(range(100, 140))


def told(router: str, *nodes: str) -> bytes:
    (message,) = chains.messages(router, [chains.Placed(node, chains.bytes_of(BLOCKS), False) for node in nodes])
    return message


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [("k1", "k1", True), ("k1", "k2", False), ("k1", "", None), ("", "k2", None)],
)
async def test_prompts_of_another_key_are_not_taken(ours: str, theirs: str, same: bool | None) -> None:
    line = Line()
    one, other = Router(line, "one", key=ours), Router(line, "other", key=theirs)
    running = asyncio.create_task(one.exchange.run())
    one.connect()
    other.connect()
    (peer,) = one.exchange.state(one.now_s).peers
    assert peer.same_key is same
    other.bus.publish(PLACEMENTS, told("other", "a"))
    if same is False:
        assert one.exchange._placements_taken.waiting_bytes == 0
        assert [values["router"] for _, values in one.log.lines] == ["other"]
    else:
        await until(lambda: one.balancer._fleet.caches.match(BLOCKS) == {"a": 40})
        assert not one.log.lines
    assert one.counted("extproc_exchange_dropped_total", reason="other_key") == (same is False)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_another_key_is_logged_now_and_then_beside_what_is_refused() -> None:
    line = Line()
    one, other = Router(line, "one", key="k1"), Router(line, "other", key="k2")
    one.connect()
    other.connect()
    for _ in range(5):
        other.bus.publish(PLACEMENTS, told("other", "a"))
        one.bus.hear(ROUTERS, b"\xff")
    assert len(one.log.lines) == 2, "one of each kind"
    pass_time(LOG_INTERVAL_S + 0.1, one, other)
    other.bus.publish(PLACEMENTS, told("other", "a"))
    assert one.log.lines[-1][1] == {"router": "other", "left_out": 4}


async def test_what_routers_say_that_are_not_heard_is_not_read() -> None:
    one = Router(Line(), "one")
    one.connect()
    running = asyncio.create_task(one.exchange.run())
    one.bus.hear(PLACEMENTS, told("stranger", "a"))
    assert one.exchange._placements_taken.waiting_bytes == 0
    assert one.counted("extproc_exchange_dropped_total", reason="unheard") == 1
    # Nor if its name comes last, though that has to be looked for.
    long = exchange_pb2.Placements(node_ids=["a"], placements=[{"blocks": bytes(8), "sent": [0]}] * PLACES_MAX)  # type: ignore[list-item]
    one.bus.hear(PLACEMENTS, long.SerializeToString() + wire.here_bytes(Here("stranger")))
    await until(lambda: one.counted("extproc_exchange_dropped_total", reason="unheard") == 2)
    assert one.balancer._fleet.caches.match((0,)) == {}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
