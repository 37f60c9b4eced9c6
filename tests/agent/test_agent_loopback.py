"""The whole agent against real routers and scripted engines, over real HTTP and gRPC."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from extproc.address import TcpAddress
from extproc.agent import node
from extproc.agent.agent import run, sample_once
from extproc.agent.settings import AgentConfig, parse
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import NodeState, ServedModel, Snapshot
from tests.agent import engine as misbehaviour
from tests.agent.engine import Engine, Handler, vllm_engine
from tests.agent.pages import vllm_adapters, vllm_lines
from tests.nodes.loopback import Router, router
from tests.waiting import until

LOADING, READY = NodeState.LOADING, NodeState.READY


def configured(engines: list[Engine], routers: list[Router], /, **changes: Any) -> AgentConfig:
    config = parse(
        {
            "routers": [one.address for one in routers] or ["127.0.0.1:1"],
            "engines": [{"node_id": f"gpu-{n}", "engine": one.url, "weight": n} for n, one in enumerate(engines, 1)],
            "interval_s": "50ms",
            "idle_interval_s": "50ms",
            "scrape_timeout_s": 0.5,
            "reconnect_backoff_s_max": "200ms",
        }
        | changes
    )
    assert isinstance(config, AgentConfig), config
    return config


@contextlib.asynccontextmanager
async def running(config: AgentConfig) -> AsyncIterator[asyncio.Event]:
    """The agent until the test's end; it has to be alive and end well then."""
    stop = asyncio.Event()
    task = asyncio.create_task(run(config, stop))
    try:
        yield stop
        assert not task.done() or stop.is_set(), "the agent ended by itself"
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


@pytest.fixture
def logged() -> Any:
    with structlog.testing.capture_logs() as entries:
        yield entries


async def test_the_router_sees_the_engine_as_it_is_and_as_it_becomes() -> None:
    async with vllm_engine() as engine, router() as to, running(configured([engine], [to])):
        engine.pages["/metrics"] = vllm_lines(running=4, waiting=2, first_tokens=3, kv_usage=0.5)
        await until(lambda: (seen := to.snapshot()) and seen.requests_waiting == 2)
        seen = to.snapshot()
        assert seen is not None
        assert (seen.state, seen.models) == (READY, (ServedModel("m", context_length_tokens=4096),))
        assert (seen.host, seen.weight) == (f"127.0.0.1:{engine.port}", 1.0)
        assert (seen.active_decodes, seen.pending_prefills, seen.kv_blocks_available) == (3, 3, 500)
        assert seen.sample_age_s < 5
        engine.pages["/metrics"] = vllm_lines(running=1, waiting=0, first_tokens=3, finished=2)
        await until(lambda: (seen := to.snapshot()) and seen.requests_waiting == 0)


async def test_the_router_sees_which_adapters_are_loaded_and_how_many_more_fit() -> None:
    async with vllm_engine() as engine, router() as to:
        spoken = {"node_id": "gpu-1", "engine": engine.url, "adapters_loadable": ["sql", "chat"]}
        engine.pages |= {
            "/metrics": vllm_lines() + vllm_adapters(4, "sql"),
            "/v1/models": '{"data": [{"id": "base", "max_model_len": 4096}, {"id": "sql", "parent": "base"}]}',
        }
        async with running(configured([engine], [to], engines=[spoken])):
            seen = await until(lambda: to.snapshot() if to.state() is READY else None)
        assert isinstance(seen, Snapshot)
        assert seen.adapter_slots_free == 3
        assert seen.models == tuple(
            ServedModel(name, context_length_tokens=4096, loaded=loaded)
            for name, loaded in [("base", True), ("sql", True), ("chat", False)]
        )


async def test_sequences_rise_within_one_boot() -> None:
    async with vllm_engine() as engine, router() as to, running(configured([engine], [to])):
        first = await until(to.snapshot)
        await until(lambda: (seen := to.snapshot()) and seen.sequence > first.sequence + 2)  # type: ignore[attr-defined]
        later = to.snapshot()
        assert later is not None
        assert later.boot_id == first.boot_id  # type: ignore[attr-defined]


async def test_a_killed_engine_is_loading_within_an_interval_and_ready_when_it_is_back() -> None:
    async with vllm_engine() as engine, router() as to, running(configured([engine], [to], interval_s=1.0)):
        await until(lambda: to.state() is READY)
        boot = to.snapshot().boot_id  # type: ignore[union-attr]
        sequence = to.snapshot().sequence  # type: ignore[union-attr]
        await engine.kill()
        await until(lambda: to.state() is LOADING)
        # Two looks at most: the one that may have been under way when it died, and the next.
        assert to.snapshot().sequence <= sequence + 2  # type: ignore[union-attr]
        await engine.start()
        await until(lambda: to.state() is READY)
        assert to.snapshot().boot_id != boot  # type: ignore[union-attr]


async def test_a_restarted_router_hears_from_the_agent_again(logged: Any) -> None:
    async with vllm_engine() as engine, router() as first, running(configured([engine], [first])):
        await until(lambda: first.state() is READY)
        await first.server.stop(0)
        async with router(first.port) as second:
            await until(lambda: second.state() is READY)
    events = [entry["event"] for entry in logged if entry["event"].startswith("router")]
    assert events[:3] == ["router reached", "router lost", "router reached"]


async def test_a_drained_router_is_left_and_found_again() -> None:
    async with vllm_engine() as engine, router() as first, running(configured([engine], [first])):
        await until(lambda: first.state() is READY)
        first.ingest.drain()
        await until(lambda: first.ingest.streams_open == 0)
        await first.server.stop(0)
        async with router(first.port) as second:
            await until(lambda: second.state() is READY)


async def test_a_router_that_comes_late_is_found() -> None:
    async with router() as gone:
        await gone.server.stop(0)
    async with vllm_engine() as engine, running(configured([engine], [gone])):
        await until(lambda: engine.asked.count("/health") >= 5)
        async with router(gone.port) as late:
            await until(lambda: late.state() is READY)


async def test_every_router_is_told_and_a_missing_one_hinders_none() -> None:
    async with router() as gone:
        await gone.server.stop(0)
    async with (
        vllm_engine() as engine,
        router() as one,
        router() as two,
        running(configured([engine], [gone, one, two])),
    ):
        await until(lambda: one.state() is READY and two.state() is READY)


async def test_goodbyes_end_every_node_and_are_logged(logged: Any) -> None:
    async with vllm_engine() as one, vllm_engine() as two, router() as to:
        async with running(configured([one, two], [to])):
            await until(lambda: to.state("gpu-1") is READY and to.state("gpu-2") is READY)
        assert list(to.balancer.views()) == []
    assert [(entry["event"], entry["nodes"]) for entry in logged if "nodes" in entry] == [
        ("stopping", ["gpu-1", "gpu-2"]),
        ("goodbye said", 2),
    ]


async def test_a_cancelled_agent_says_goodbye_too() -> None:
    async with vllm_engine() as engine, router() as to:
        task = asyncio.create_task(run(configured([engine], [to])))
        await until(lambda: to.state() is READY)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert to.snapshot() is None


async def test_sigterm_ends_the_agent_with_its_goodbyes() -> None:
    async with vllm_engine() as engine, router() as to:
        task = asyncio.create_task(run(configured([engine], [to])))
        await until(lambda: to.state() is READY)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 10)
        assert to.snapshot() is None


async def test_an_agent_ends_in_time_though_its_router_hangs() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read()

    async with vllm_engine() as engine, await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = configured([engine], [], routers=[f"127.0.0.1:{port}"], goodbye_s=0.2)
        async with running(config):
            await until(lambda: engine.asked.count("/health") >= 3)


async def test_refusals_are_logged_once_with_their_reason(logged: Any) -> None:
    async with vllm_engine() as engine, router() as to:
        config = configured([engine], [to], engines=[{"node_id": "a", "engine": engine.url, "host": "8.8.8.8:80"}])
        async with running(config):
            await until(lambda: b'verdict="refused"} 5' in to.metrics.page([]))
        assert to.snapshot("a") is None
    refusals = [entry for entry in logged if entry["event"] == "snapshot refused"]
    (reason,) = (entry["reason"] for entry in refusals)
    assert reason.startswith("host: wanted an address within hosts_allowed (127.0.0.0/8, ")
    assert reason.endswith("got '8.8.8.8:80'")


async def test_a_frozen_engine_gets_old_and_is_refused_at_last(logged: Any) -> None:
    limits = NodeLimits(fresh_s=0.1, stale_s=0.3)
    async with vllm_engine() as engine, router(limits=limits) as to, running(configured([engine], [to])):
        engine.pages["/metrics"] = vllm_lines(running=3, generated=7)
        await until(lambda: b'verdict="refused"} 3' in to.metrics.page([]))
        engine.pages["/metrics"] = vllm_lines(running=3, generated=8)
        sequence = to.snapshot().sequence  # type: ignore[union-attr]
        await until(lambda: to.snapshot().sequence > sequence)  # type: ignore[union-attr]
    assert len([entry for entry in logged if entry["event"] == "snapshot refused"]) == 1


async def test_a_missing_signal_is_logged_once(logged: Any) -> None:
    async with vllm_engine() as engine, router() as to:
        engine.pages["/metrics"] = vllm_lines().replace("kv_cache_usage_perc", "gone")
        async with running(configured([engine], [to])):
            await until(lambda: (seen := to.snapshot()) and seen.sequence > 5)
            assert to.snapshot().kv_usage is None  # type: ignore[union-attr]
    absences = [(entry["signal"], entry["reason"]) for entry in logged if entry["event"] == "signal absent"]
    assert absences.count(("kv_usage", "vllm:kv_cache_usage_perc is missing")) == 1
    assert len(absences) == len(set(absences))


@pytest.mark.parametrize(
    "handler", [misbehaviour.never, misbehaviour.endless, misbehaviour.drip, misbehaviour.cut, misbehaviour.bomb]
)
async def test_a_hostile_engine_leaves_the_agent_and_its_other_engines_alive(handler: Handler) -> None:
    async with vllm_engine() as bad, vllm_engine() as good, router() as to:
        for path in list(bad.pages):
            bad.pages[path] = handler
        config = configured([bad, good], [to], scrape_timeout_s=1.0, page_bytes_max=100_000)
        async with running(config):
            await until(lambda: to.state("gpu-1") is LOADING and to.state("gpu-2") is READY)
            seen = to.snapshot("gpu-2").sequence  # type: ignore[union-attr]
            await until(lambda: to.snapshot("gpu-2").sequence > seen + 2)  # type: ignore[union-attr]


async def test_a_name_as_host_is_resolved() -> None:
    async with vllm_engine() as engine, router() as to:
        host = f"localhost:{engine.port}"
        config = configured([engine], [to], engines=[{"node_id": "a", "engine": engine.url, "host": host}])
        async with running(config):
            await until(lambda: to.snapshot("a"))
        assert (await sample_once(config))[0]["host"] in (f"127.0.0.1:{engine.port}", f"[::1]:{engine.port}")


async def test_a_name_is_resolved_again_when_the_engine_was_down(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "127.0.0.1"

    async def resolve(host: TcpAddress, within_s: float) -> str:
        return f"{address}:{host.port}"

    monkeypatch.setattr(node, "resolve", resolve)
    async with vllm_engine() as engine, router() as to, running(configured([engine], [to])):
        await until(lambda: to.state() is READY)
        address = "127.0.0.2"
        sequence = to.snapshot().sequence  # type: ignore[union-attr]
        await until(lambda: to.snapshot().sequence > sequence + 2)  # type: ignore[union-attr]
        assert to.snapshot().host == f"127.0.0.1:{engine.port}"  # type: ignore[union-attr]
        engine.pages["/health"] = 503
        await until(lambda: to.snapshot().host == f"127.0.0.2:{engine.port}")  # type: ignore[union-attr]


async def test_a_name_without_an_address_is_said_once_and_nothing_is_reported(logged: Any) -> None:
    async with vllm_engine() as engine, router() as to:
        config = configured([engine], [to], engines=[{"node_id": "a", "engine": engine.url, "host": "no.invalid:80"}])
        async with running(config):
            await until(lambda: engine.asked.count("/health") >= 4)
        assert to.snapshot("a") is None
        told = [(entry["event"], entry.get("reason")) for entry in logged if entry["log_level"] == "warning"]
        assert told[0] == ("node state", "no.invalid has no address")
        assert [event for event, _ in told].count("node state") == 1
        assert (await sample_once(config))[0]["absent"]["host"] == "no.invalid has no address"


async def test_one_look_is_ready_for_json() -> None:
    async with vllm_engine() as engine:
        engine.pages["/metrics"] = vllm_lines(running=2, first_tokens=1, kv_usage=0.25)
        (seen,) = json.loads(json.dumps(await sample_once(configured([engine], []))))
        assert seen["state"] == "ready"
        assert seen["models"] == [{"name": "m", "context_length_tokens": 4096, "loaded": True}]
        assert "round_trip_s" not in seen  # no router was asked
        assert (seen["kv_usage"], seen["kv_blocks_available"], seen["active_decodes"]) == (0.25, 750, 1)
        assert seen["absent"]["decode_ms_per_token"].startswith("first look")
        await engine.kill()
        (seen,) = await sample_once(configured([engine], []))
        assert (seen["state"], seen["absent"]["ready"]) == ("loading", "the engine cannot be reached")
        await engine.start()
