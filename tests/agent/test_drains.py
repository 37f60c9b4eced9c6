"""Nodes that drain: at the agent's end, and by calls to its own port."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from click.testing import CliRunner, Result

from extproc.agent import admin, node
from extproc.agent.agent import run
from extproc.agent.settings import AgentConfig
from extproc.cli import main
from extproc.core.snapshot import NodeState
from extproc.listening import ListenError
from tests.agent.engine import Engine, vllm_engine
from tests.agent.pages import vllm_lines
from tests.agent.test_agent_loopback import configured, running
from tests.nodes.loopback import Router, router
from tests.waiting import until

LOADING, READY, DRAINING = NodeState.LOADING, NodeState.READY, NodeState.DRAINING
BUSY = vllm_lines(running=2, generated=5)


@contextlib.asynccontextmanager
async def reported(engines: int = 1, **changes: Any) -> AsyncIterator[tuple[list[Engine], Router, asyncio.Task[None]]]:
    """An agent of some engines, all ready, and the router that it told so."""
    async with contextlib.AsyncExitStack() as held:
        running_engines = [await held.enter_async_context(vllm_engine()) for _ in range(engines)]
        to = await held.enter_async_context(router())
        task = asyncio.create_task(run(configured(running_engines, [to], **changes)))
        try:
            names = [f"gpu-{number}" for number in range(1, engines + 1)]
            await until(lambda: task.done() or all(to.state(name) is READY for name in names))
            yield running_engines, to, task
        finally:
            task.cancel()
            await asyncio.wait((task,), timeout=10)


async def shows_work(engine: Engine, to: Router) -> None:
    engine.pages["/metrics"] = BUSY
    await until(lambda: (seen := to.snapshot()) and seen.requests_running == 2)


async def test_on_sigterm_every_node_drains_while_its_engine_has_requests_and_says_goodbye_then() -> None:
    async with reported(engines=2) as (engines, to, task):
        await shows_work(engines[0], to)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: to.state("gpu-1") is DRAINING and to.state("gpu-2") is DRAINING)
        seen = to.snapshot()
        assert seen is not None
        assert seen.not_ready_reason == "draining"
        await until(lambda: to.snapshot().sequence > seen.sequence + 3)  # type: ignore[union-attr]
        assert not task.done()
        engines[0].pages["/metrics"] = vllm_lines(generated=9)
        await asyncio.wait_for(task, 10)
        assert list(to.balancer.views()) == []


async def test_an_engine_that_is_gone_is_waited_for_no_longer() -> None:
    async with reported() as ((engine,), to, task):
        await shows_work(engine, to)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: to.state() is DRAINING)
        await engine.kill()
        await asyncio.wait_for(task, 10)
        assert to.snapshot() is None
        await engine.start()


@pytest.mark.parametrize("drain_s", [0, 0.2])
async def test_requests_are_waited_for_no_longer_than_may_be(drain_s: float) -> None:
    async with reported(drain_s=drain_s) as ((engine,), to, task):
        await shows_work(engine, to)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 10)
        assert to.snapshot() is None


async def test_a_second_signal_ends_it_at_once() -> None:
    async with reported(drain_s=3600) as ((engine,), to, task):
        await shows_work(engine, to)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: to.state() is DRAINING)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(task, 10)
        assert to.snapshot() is None


@contextlib.asynccontextmanager
async def called(tmp_path: Path, **changes: Any) -> AsyncIterator[tuple[list[Engine], Router, aiohttp.ClientSession]]:
    """Two ready engines, and a session at the agent's own port."""
    path = str(tmp_path / "admin")
    async with (
        reported(engines=2, admin=f"unix:{path}", **changes) as (engines, to, _),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
    ):
        yield engines, to, session


async def post(session: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, Any]:
    async with session.post(f"http://agent{path}", headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_call_drains_one_node_at_once_until_it_is_undone(tmp_path: Path) -> None:
    async with called(tmp_path, interval_s=60.0) as (_, to, session):
        assert await post(session, "/drain?node=gpu-1") == (200, {"draining": ["gpu-1"], "busy": ["gpu-1"]})
        await until(lambda: to.state("gpu-1") is DRAINING)
        assert to.state("gpu-2") is READY
        assert (await post(session, "/undrain?node=gpu-1"))[0] == 200
        await until(lambda: to.state("gpu-1") is READY)


async def test_a_call_may_wait_until_the_engines_have_no_requests(tmp_path: Path) -> None:
    async with called(tmp_path) as (engines, to, session):
        await shows_work(engines[0], to)
        assert await post(session, "/drain?wait=0.1") == (504, {"draining": ["gpu-1", "gpu-2"], "busy": ["gpu-1"]})
        waiting = asyncio.create_task(post(session, "/drain?wait=60"))
        engines[0].pages["/metrics"] = vllm_lines(generated=9)
        assert await waiting == (200, {"draining": ["gpu-1", "gpu-2"], "busy": []})


async def test_a_call_need_not_wait_for_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "DRAIN_LOOK_S", 0.05)
    async with called(tmp_path, interval_s=60.0) as (_, _, session):
        assert (await post(session, "/drain?wait=20"))[0] == 200


async def test_an_engine_that_fails_while_its_node_drains_is_loading(tmp_path: Path) -> None:
    async with called(tmp_path) as (engines, to, session):
        await post(session, "/drain")
        engines[0].pages["/health"] = 503
        await until(lambda: to.state("gpu-1") is LOADING)
        engines[0].pages["/health"] = 200
        await until(lambda: to.state("gpu-1") is DRAINING)


async def test_the_pages_show_that_it_lives_and_what_it_saw(tmp_path: Path) -> None:
    async with called(tmp_path) as (engines, to, session):
        await shows_work(engines[0], to)
        async with session.get("http://agent/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        await post(session, "/drain?node=gpu-1")
        async with session.get("http://agent/nodes") as answer:
            first, second = await answer.json()
        assert (first["node_id"], first["state"], first["draining"]) == ("gpu-1", "draining", True)
        assert first["requests_running"] == 2
        assert first["absent"]["ready"] == "draining"
        assert (second["node_id"], second["state"], second["draining"]) == ("gpu-2", "ready", False)
        async with session.get("http://agent/") as answer:
            assert "POST /drain" in await answer.text()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/drain?node=other", {}, 404),
        ("/undrain?node=gpu-1&node=other", {}, 404),
        ("/drain?wait=-1", {}, 400),
        ("/drain?wait=nan", {}, 400),
        ("/drain?wait=3601", {}, 400),
        ("/drain?wait=x", {}, 400),
        ("/drain?hold=yes", {}, 400),
        ("/drain", {"origin": "http://evil.example"}, 403),
        ("/undrain", {"origin": "null"}, 403),
    ],
)
async def test_a_senseless_call_is_refused_and_changes_nothing(
    tmp_path: Path, path: str, headers: dict[str, str], status: int
) -> None:
    async with called(tmp_path) as (_, _, session):
        got, told = await post(session, path, **headers)
        assert (got, list(told)) == (status, ["fault"])
        async with session.get("http://agent/nodes") as answer:
            assert [node["draining"] for node in await answer.json()] == [False, False]


async def test_no_more_calls_wait_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "WAITS_MAX", 1)
    async with called(tmp_path) as (engines, to, session):
        await shows_work(engines[0], to)
        waiting = asyncio.create_task(post(session, "/drain?wait=60"))
        await until(lambda: to.state() is DRAINING)
        assert (await post(session, "/drain?wait=1"))[0] == 503
        engines[0].pages["/metrics"] = vllm_lines(generated=9)
        assert (await waiting)[0] == 200
        assert (await post(session, "/drain?wait=1"))[0] == 200


async def test_an_admin_port_that_is_taken_is_told() -> None:
    async with vllm_engine() as engine, router() as to:
        with pytest.raises(ListenError):
            await run(configured([engine], [to], admin=f"127.0.0.1:{engine.port}"))


async def extproc_drain(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["drain", *arguments])


def answered(result: Result) -> Any:
    return json.loads(result.output.splitlines()[-1])  # before it the agent's log, which is of this process, too


async def test_the_command_drains_and_waits_and_its_status_says_how_it_went(tmp_path: Path) -> None:
    async with called(tmp_path) as (engines, to, _):
        at = ("--admin", f"unix:{tmp_path / 'admin'}")
        await shows_work(engines[0], to)
        busy = await extproc_drain(*at, "--wait", "0.1")
        assert (busy.exit_code, answered(busy)["busy"]) == (3, ["gpu-1"])
        await until(lambda: to.state("gpu-2") is DRAINING)
        undone = await extproc_drain(*at, "--undo")
        assert undone.exit_code == 0
        await until(lambda: to.state("gpu-2") is READY)
        unknown = await extproc_drain(*at, "--node", "other")
        assert (unknown.exit_code, "wanted gpu-1, gpu-2" in unknown.output) == (1, True)
        engines[0].pages["/metrics"] = vllm_lines(generated=9)
        done = await extproc_drain(*at, "--node", "gpu-1", "--wait", "30")
        assert (done.exit_code, answered(done)) == (0, {"draining": ["gpu-1"], "busy": []})


@pytest.mark.parametrize(
    ("at", "status", "told"),
    [
        ("unix:/nowhere/admin", 1, "no agent is reached there (no such file or directory)"),
        ("127.0.0.1:1", 1, "no agent is reached there"),
        ("nowhere", 2, "host:port"),
    ],
)
def test_an_agent_that_is_not_reached_is_told(at: str, status: int, told: str) -> None:
    result = CliRunner().invoke(main, ["drain", "--admin", at])
    assert result.exit_code == status
    assert told in result.output


def test_a_drain_is_held_or_undone() -> None:
    assert CliRunner().invoke(main, ["drain", "--hold", "--undo"]).exit_code == 2


class Caller:
    """As much of a request as says who calls."""

    def __init__(self, remote: str | None, headers: Sequence[str] = ()) -> None:
        self.remote = remote
        self.headers = dict.fromkeys(headers, "x")


@pytest.mark.parametrize(
    ("remote", "is_from_here"),
    [
        ("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), (None, True), ("", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("fe80::1%eth0", False), ("nonsense", False),
    ],
)  # fmt: skip
def test_callers_of_other_machines_are_known(remote: str | None, is_from_here: bool) -> None:
    assert admin._is_from_here(Caller(remote)) is is_from_here  # type: ignore[arg-type]


async def test_calls_of_other_machines_are_taken_where_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_is_from_here", lambda _: False)
    with structlog.testing.capture_logs() as logged:
        for remote, status in ((False, 403), (True, 200)):
            async with reported(admin="127.0.0.1:0", admin_remote=remote), aiohttp.ClientSession() as session:
                at = [entry["admin"] for entry in logged if "admin" in entry][-1]
                async with session.post(f"http://{at}/drain") as answer:
                    assert answer.status == status


async def test_the_stop_of_a_caller_in_the_same_process_ends_it_at_once() -> None:
    async with vllm_engine() as engine, router() as to:
        config = configured([engine], [to], drain_s=3600)
        assert isinstance(config, AgentConfig)
        async with running(config):
            await until(lambda: to.state() is READY)
            await shows_work(engine, to)
        assert to.snapshot() is None
