"""KV events from a publisher over real ZeroMQ, through the whole agent, to a real router."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from extproc.agent.kv import feed as kvfeed
from extproc.agent.kv import subscriber as kvsubscriber
from extproc.kvchain import token_blocks_of
from tests.agent.engine import Engine, vllm_engine
from tests.agent.kvpublisher import CLEARED, Publisher, bound, publishing, removed, stored
from tests.agent.pages import vllm_lines, vllm_totals
from tests.agent.test_agent_loopback import configured, running
from tests.nodes.loopback import Router, router
from tests.waiting import until


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvsubscriber, "RETRY_S", 0.05)


@contextlib.asynccontextmanager
async def heard(publisher: Publisher, **kv_events: Any) -> AsyncIterator[tuple[Engine, Router]]:
    async with vllm_engine() as engine, router() as to:
        engine.pages["/metrics"] = vllm_lines()
        kv_events = kv_events or {"endpoint": bound(publisher.events)}
        engines = [{"node_id": "gpu-1", "engine": engine.url, "kv_events": kv_events}]
        async with running(configured([], [to], engines=engines)):
            await publisher.subscribed()
            yield engine, to


async def told(to: Router, blocks: int | None) -> None:
    await until(lambda: to.snapshot() is not None and to.balancer.kv_blocks_told("gpu-1") == blocks)


def numbers(to: Router) -> set[int]:
    return set(to.balancer._fleet.caches.kv._masks)


async def test_the_router_knows_what_the_engine_has() -> None:
    async with publishing(b"kv-events") as publisher, heard(publisher) as (_, to):
        await publisher.publish(stored(1), stored(2, behind=1))
        await told(to, 2)
        assert numbers(to) == set(token_blocks_of([1] * 16 + [2] * 16))
        await publisher.publish(removed(2), stored(3), stored(4))
        await told(to, 3)
        await publisher.publish(CLEARED)
        await told(to, 0)
        await publisher.publish(stored(5))
        await told(to, 1)


async def test_an_engine_that_connects_is_listened_to_and_other_topics_are_not(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    async with publishing(b"kv-events") as publisher:
        publisher.events.connect(endpoint)
        async with heard(publisher, endpoint=endpoint, bind=True, topic="kv-") as (_, to):
            await publisher.raw(b"other", bytes(8), b"\xc1")
            await publisher.publish(stored(1))
            await told(to, 1)


async def test_a_gap_ends_what_is_known_until_the_cache_is_cleared() -> None:
    async with publishing() as publisher, heard(publisher) as (_, to):
        await publisher.publish(stored(1))
        await told(to, 1)
        publisher.miss(removed(1))
        await publisher.publish(stored(2))
        await told(to, None)
        await publisher.publish(CLEARED, stored(3), stored(4))
        await told(to, 2)


async def test_what_was_missed_is_sent_again() -> None:
    async with publishing() as publisher:
        publisher.miss(stored(1), stored(2))
        publisher.miss(stored(3))
        events, replays = bound(publisher.events), bound(publisher.replays)
        async with heard(publisher, endpoint=events, replay=replays) as (_, to):
            await told(to, 3)
            publisher.miss(removed(1))
            publisher.miss(stored(4))
            await publisher.publish(stored(5))
            await told(to, 4)
            await publisher.publish(removed(5))
            await told(to, 3)
    assert publisher.asked == [0, 2]


async def test_what_is_kept_no_more_is_a_gap() -> None:
    async with publishing() as publisher:
        events, replays = bound(publisher.events), bound(publisher.replays)
        async with heard(publisher, endpoint=events, replay=replays) as (_, to):
            await publisher.publish(stored(1))
            await told(to, 1)
            publisher.miss(removed(1))
            publisher.kept.clear()
            await publisher.publish(stored(2))
            await told(to, None)


async def test_a_silent_replay_endpoint_is_waited_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvsubscriber, "REPLAY_S", 0.05)
    async with publishing() as publisher:
        events = bound(publisher.events)
        async with heard(publisher, endpoint=events, replay="tcp://127.0.0.1:1") as (_, to):
            await publisher.publish(stored(1))
            await told(to, 1)


async def test_ranks_are_heard_each_at_its_own_port(tmp_path: Path) -> None:
    async with publishing() as first, publishing() as second:
        while True:
            endpoint = bound(first.events)
            port = int(endpoint.rpartition(":")[2])
            with contextlib.suppress(Exception):
                second.events.bind(f"tcp://127.0.0.1:{port + 1}")
                break
            first.events.unbind(endpoint)
        async with heard(first, endpoint=endpoint, ranks=2) as (_, to):
            await second.subscribed()
            await first.publish(stored(1), stored(2))
            await second.publish(stored(1), stored(3))
            await told(to, 3)
            await first.publish(removed(1))
            await second.publish(removed(3))
            await told(to, 2)


async def test_an_engine_that_begins_anew_has_nothing() -> None:
    async with publishing() as publisher, heard(publisher) as (engine, to):
        engine.pages["/metrics"] = vllm_lines(first_tokens=5) + vllm_totals(prompt=100)
        await until(lambda: (seen := to.snapshot()) is not None and seen.first_tokens_total == 5)
        await publisher.publish(stored(1))
        await told(to, 1)
        engine.pages["/metrics"] = vllm_lines(first_tokens=1) + vllm_totals(prompt=10)
        await told(to, None)
        publisher.begin_anew()
        await publisher.publish(stored(2))
        await told(to, 1)
        assert numbers(to) == set(token_blocks_of([2] * 16))


async def test_what_is_no_message_is_left_out_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from structlog.testing import capture_logs

    with capture_logs() as logged:
        async with publishing() as publisher, heard(publisher) as (_, to):
            for frames in ([b""], [b"", bytes(8)], [b"", bytes(7), b""], [b"", b"", b""]):
                await publisher.raw(*frames)
            await publisher.publish(stored(1))
            await told(to, 1)
            await publisher.raw(b"", (1).to_bytes(8, "big"), b"\xc1" * 100)
            await told(to, None)
            await publisher.raw(b"", (2).to_bytes(8, "big"), b"\x93\xc0\x91" + b"\x91" * 100_000)
            await publisher.raw(b"", (2**64 - 2).to_bytes(8, "big"), b"")
            publisher.begin_anew()
            await publisher.publish(stored(1), stored(2))
            await told(to, 2)
    assert len([one for one in logged if one["event"] == "KV events: some are malformed"]) == 1


async def test_messages_over_the_bound_are_not_read() -> None:
    async with publishing() as publisher:
        endpoint = bound(publisher.events)
        async with heard(publisher, endpoint=endpoint, message_bytes_max=1024) as (_, to):
            await publisher.publish(stored(1))
            await told(to, 1)
            await publisher.raw(b"", (1).to_bytes(8, "big"), b"x" * 2000)
            await publisher.subscribed()  # ZeroMQ hangs up on who sends such a one, and comes back
            publisher.begin_anew()
            await publisher.publish(stored(1), stored(2))
            await told(to, 2)


async def test_an_endpoint_that_cannot_be_had_is_tried_again() -> None:
    async with publishing() as occupant, publishing() as publisher:
        endpoint = bound(occupant.events)
        async with vllm_engine() as engine, router() as to:
            engines = [{"node_id": "gpu-1", "engine": engine.url, "kv_events": {"endpoint": endpoint, "bind": True}}]
            async with running(configured([], [to], engines=engines)):
                await until(lambda: to.snapshot() is not None)
                occupant.events.unbind(endpoint)
                publisher.events.connect(endpoint)
                await publisher.subscribed()
                await publisher.publish(stored(1))
                await told(to, 1)


async def test_it_is_logged_that_all_is_known_and_that_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from structlog.testing import capture_logs

    monkeypatch.setattr(kvfeed, "TELL_INTERVAL_S", 0.0)
    with capture_logs() as logged:
        async with publishing() as publisher, heard(publisher) as (_, to):
            await publisher.publish(stored(1))
            await told(to, 1)
            publisher.miss()
            await publisher.publish()
            await told(to, None)
            await asyncio.sleep(0)
    kinds = [(one["log_level"], one.get("gaps")) for one in logged if one["event"].startswith("KV events: it is")]
    assert kinds == [("info", 0), ("warning", 1)]
