"""What the agent shows of its nodes and routers: `/nodes`, `/routers`, `--print`, and the log of signals."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from click.testing import CliRunner

from extproc.agent.agent import sample_once
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.kinds import misread
from extproc.agent.engines.reading import FIRST_LOOK, EngineReading, unread
from extproc.agent.kv.feed import SILENCE_S, KvFeed
from extproc.agent.kv.settings import KvEventsConfig
from extproc.agent.nodelog import NodeLog
from extproc.cli import main
from extproc.core.snapshot import NodeState
from tests.agent.engine import vllm_engine
from tests.agent.test_agent_loopback import configured, running
from tests.nodes.loopback import router
from tests.waiting import until


async def shown(url: str, **engine: Any) -> dict[str, Any]:
    (node,) = await sample_once(configured([], [], engines=[{"node_id": "a", "engine": url, **engine}]))
    return node


async def test_the_kind_that_was_found_is_shown_and_what_is_known_of_its_cache() -> None:
    async with vllm_engine() as engine:
        node = await shown(engine.url, kv_events={"endpoint": "tcp://127.0.0.1:1"})
        assert (node["engine_kind"], node["reached"]) == ("vllm", True)
        assert node["absent"]["kv_blocks"] == "no message came from tcp://127.0.0.1:1"
        assert "*" not in node["absent"]
        engine.pages["/metrics"] = "other 1\n"
        node = await shown(engine.url)
        assert node["engine_kind"] is None
        assert node["absent"]["*"] == "/metrics is of no engine that is known here"


async def test_a_second_look_tells_what_is_a_difference_between_two() -> None:
    async with vllm_engine() as engine:
        config = configured([engine], [])
        (once,) = await sample_once(config)
        asked = engine.asked.count("/metrics")
        (twice,) = await sample_once(config, 0.0)
        assert engine.asked.count("/metrics") == asked + 2
        assert FIRST_LOOK in once["absent"].values()
        assert FIRST_LOOK not in twice["absent"].values()


async def test_what_is_absent_for_one_reason_is_told_once_and_the_cause_first() -> None:
    node = await shown("http://nowhere.invalid:80")
    assert list(node["absent"])[:3] == ["host", "ready", "*"]
    assert node["absent"]["host"] == "nowhere.invalid has no address"
    assert node["absent"]["*"] == "the engine's host has no address"
    assert "kv_usage" not in node["absent"]
    assert node["reached"] is False


async def test_a_kind_that_is_another_is_told() -> None:
    async with vllm_engine() as engine:
        node = await shown(engine.url, engine_kind="sglang")
        assert node["absent"]["*"] == "the page has vllm: metrics, as vllm has: engine_kind is sglang"
        engine.pages["/metrics"] = 501
        assert "start it with that" in (await shown(engine.url))["absent"]["*"]


@pytest.mark.parametrize(
    ("page", "kind", "reading", "told"),
    [
        ("vllm:a 1\n", EngineKind.LLAMACPP, unread("x"), True),
        ("vllm:a 1\n", EngineKind.VLLM, unread("x"), False),
        ("vllm:a 1\n", EngineKind.GENERIC, unread("x"), False),
        ("a 1\n", EngineKind.LLAMACPP, unread("x"), False),
        ("vllm:a 1\n", EngineKind.LLAMACPP, EngineReading(requests_running=0), False),
    ],
)
def test_a_page_is_misread_if_it_says_nothing_and_has_the_metrics_of_another_kind(
    page: str, kind: EngineKind, reading: EngineReading, told: bool
) -> None:
    assert (misread(page, kind, reading) is not None) is told


async def test_print_ends_with_1_where_an_engine_is_not_reached() -> None:
    def print_once(*options: str) -> int:
        return CliRunner().invoke(main, ["agent", "--node-id", "a", "--print", *options]).exit_code

    async with vllm_engine() as engine:
        assert await asyncio.to_thread(print_once, "--engine", engine.url) == 0
        engine.pages["/health"] = 503  # answers, and loads
        assert await asyncio.to_thread(print_once, "--engine", engine.url) == 0
        assert await asyncio.to_thread(print_once, "--engine", engine.url, "--host", "no.invalid:80") == 1
        await engine.kill()
        assert await asyncio.to_thread(print_once, "--engine", engine.url) == 1
        await engine.start()


async def test_routers_are_shown_with_whether_they_are_connected(tmp_path: Path) -> None:
    path = str(tmp_path / "admin")
    async with (
        vllm_engine() as engine,
        router() as to,
        running(configured([engine], [to], routers=[to.address, "127.0.0.1:1"], admin=f"unix:{path}")),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
    ):

        async def routers() -> dict[str, Any]:
            async with session.get("http://agent/routers") as answer:
                return {one["router"]: one for one in await answer.json()}

        await until(lambda: to.state() is NodeState.READY)
        async with asyncio.timeout(10):
            told = await routers()
            while "reason" not in told["127.0.0.1:1"] or not told[to.address]["connected"]:
                told = await routers()
        assert told["127.0.0.1:1"]["connected"] is False
        assert "reason" not in told[to.address]
        assert all(one["for_s"] >= 0 for one in told.values())


def test_a_signal_that_is_told_again_is_logged_once_for_each_time_that_it_was_missed() -> None:
    log = NodeLog("a")
    with structlog.testing.capture_logs() as logged:
        log.changes(NodeState.READY, {"kv_usage": "gone"})
        log.changes(NodeState.LOADING, {})  # all of it is absent then, whatever is said
        log.changes(NodeState.READY, {"kv_usage": "gone"})
        for _ in range(2):
            log.changes(NodeState.READY, {})
        log.changes(NodeState.READY, {"kv_usage": "gone"})  # was logged
        log.changes(NodeState.READY, {})
    events = [(entry["event"], entry["signal"]) for entry in logged if "signal" in entry]
    assert events == [("signal absent", "kv_usage"), ("signal told again", "kv_usage")]


async def test_silence_of_an_engine_that_works_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    ahead_s = 0.0
    real = loop.time
    async with KvFeed(KvEventsConfig(endpoint="tcp://127.0.0.1:1"), "a") as feed:
        with structlog.testing.capture_logs() as logged:
            monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)
            for ahead_s, total in ((0.0, None), (0.0, 5), (100.0, 5), (200.0, 6)):  # noqa: B007 - read by the clock
                feed.report("boot", total)
            assert logged == []
            for ahead_s in (200.0 + SILENCE_S - 5, 201.0 + SILENCE_S, 900.0):  # noqa: B007
                feed.report("boot", 6)
        monkeypatch.undo()
    assert [entry["endpoint"] for entry in logged] == ["tcp://127.0.0.1:1"]
