"""Two real llama.cpp servers, one several times slower, behind their agents, serve and Envoy."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from extproc import address
from extproc.address import TcpAddress
from extproc.children import Child
from extproc.traffic import Answer, Ask, chat, completion
from tests.e2e.conftest import REPORT_INTERVAL_S, System
from tests.llamacpp import MODEL, LlamaCppServer, Size, llamacpp_server, single_bytes, write_model
from tests.waiting import until

SLOWER = Size(embedding=512, layers=20, heads=8, feed_forward=1536)
"""Five times the layers."""
CLIENTS, TURNS = 3, 8


@dataclass
class Node:
    name: str
    server: LlamaCppServer
    agent: Child


@asynccontextmanager
async def pair(system: System, folder: Path) -> AsyncIterator[dict[str, Node]]:
    """Both are ready nodes of the system."""
    for name in ("fast", "slow"):
        (folder / name).mkdir()
    write = partial(write_model, vocabulary=single_bytes(), size=SLOWER)
    async with llamacpp_server(folder / "fast") as fast, llamacpp_server(folder / "slow", write=write) as slow:
        nodes = {}
        for name, server in (("fast", fast), ("slow", slow)):
            host = address.parse(server.url.removeprefix("http://"))
            assert isinstance(host, TcpAddress)
            agent = await system.fleet.agent(name, host, system.serve, interval_s=REPORT_INTERVAL_S)
            nodes[name] = Node(name, server, agent)

        async def ready() -> bool:
            return await system.fleet.nodes_ready(system.serve, {"fast", "slow"})

        await system.fleet.until("both servers' readiness", ready)
        try:
            yield nodes
        finally:
            for node in nodes.values():
                await system.fleet.stop(node.agent)

    async def forgotten() -> bool:
        return not await system.node("fast") and not await system.node("slow")

    await until(forgotten)


async def test_the_faster_one_gets_more_and_both_agents_tell_the_truth(system: System, tmp_path: Path) -> None:
    async with pair(system, tmp_path) as nodes:
        answers: list[Answer] = []

        async def client(number: int) -> None:
            for turn in range(TURNS):
                text = f"the {number} {turn} " * 12
                answers.append(
                    await system.ask(
                        Ask("chat", "/v1/chat/completions", chat(MODEL, text, output_tokens=24, stream=bool(turn % 2)))
                    )
                )

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        assert {(one.status, one.whole) for one in answers} == {(200, True)}
        served = Counter(one.chosen for one in answers)
        assert served.keys() <= {"fast", "slow"}, "each of them was chosen"
        assert served["fast"] > served["slow"]

        async def at_rest() -> bool:
            told = [await system.node(name) for name in nodes]
            return all(
                (one["requests_running"], one["requests_waiting"], one["own"]["sequences_open"]) == (0, 0, 0)
                for one in told
            )

        await until(at_rest)
        told = {name: await system.node(name) for name in nodes}
        assert sum(one["prefill_tokens_total"] for one in told.values()) > 0
        assert not any(one["absent"] for one in told.values()), told


async def test_a_paused_agent_and_a_dead_engine_lose_no_request(system: System, tmp_path: Path) -> None:
    async with pair(system, tmp_path) as nodes:
        body = completion(MODEL, "the " * 8, output_tokens=2, stream=False)
        request = Ask("text", "/v1/completions", body)

        async def is_fresh(wanted: bool) -> bool:
            answer = await system.ask(request)
            assert answer.status == 200
            return ((await system.node("fast"))["freshness"] == "fresh") is wanted

        os.kill(nodes["fast"].agent.pid, signal.SIGSTOP)
        try:
            await until(partial(is_fresh, False), within_s=20)
            paused = [await system.ask(request) for _ in range(4)]
            assert {(one.status, one.chosen) for one in paused} == {(200, "slow")}, "the fresh one is sure to live"
        finally:
            os.kill(nodes["fast"].agent.pid, signal.SIGCONT)
        await until(partial(is_fresh, True), within_s=20)

        nodes["fast"].server.process.kill()

        async def noticed() -> bool:
            return bool((await system.node("fast"))["state"] == "loading")

        await until(noticed, within_s=20)
        left = [await system.ask(request) for _ in range(4)]
        assert {(one.status, one.chosen) for one in left} == {(200, "slow")}
