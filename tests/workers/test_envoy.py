"""Two workers behind the real Envoy, whose bootstrap `render` wrote."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from extproc.fleet import Envoy
from extproc.traffic import Answer, Ask, ask, completion
from tests.rendered import rendered
from tests.waiting import until
from tests.workers.crewed import Crewed, crewed, free_ports

SHORT = Ask("short", "/v1/completions", completion("demo", "ping", output_tokens=2, stream=False))
LONG = Ask("long", "/v1/completions", completion("demo", "tell me", output_tokens=4000, stream=True))
CLIENTS = 8
UNTOLD = "no node has reported yet"


@dataclass
class Behind:
    crew: Crewed
    envoy: Envoy

    async def ask(self, request: Ask = SHORT) -> Answer:
        return await ask(self.crew.client, self.envoy.url, request)

    async def open_at(self, worker: int) -> bool:
        """Whether a worker has requests that run."""
        nodes = (await self.crew.nodes_of(worker)).values()
        return any(one["own"]["sequences_open"] for one in nodes)

    async def decided_by(self, since: int = 0) -> Counter[int]:
        """How many of the latest decisions each worker made."""
        decisions = (await self.crew.json(f"/decisions?limit={since}"))["decisions"]
        return Counter(one["worker"] for one in decisions)


@asynccontextmanager
async def behind(folder: Path, *, fail_open: bool = True) -> AsyncIterator[Behind]:
    first = free_ports()
    async with crewed(folder, listen={"extproc": str(first)}) as crew:
        engines = [await crew.fleet.engine(name, "demo", "--speed", "4") for name in ("gpu-1", "gpu-2")]
        path = folder / "rendered.yaml"
        known = {"nodes": [str(one.address) for one in engines]} if fail_open else {"nodes": [], "fail_open": False}
        path.write_text(rendered(processor=[str(first)], workers=2, failover=False, **known))
        envoy = await crew.fleet.envoy(None, [], bootstrap=path)
        for one in engines:
            await crew.fleet.agent(one.name, one.address, crew.serve, interval_s=0.2)
        await crew.known_to_all("gpu-1", "gpu-2")
        found = Behind(crew, envoy)

        async def chosen() -> bool:
            return all([(await found.ask()).as_chosen for _ in range(4)])

        await until(chosen)
        yield found


async def test_requests_are_spread_and_each_worker_knows_what_the_other_sent(tmp_path: Path) -> None:
    async with behind(tmp_path) as system:
        for _ in range(20):
            assert (await system.ask()).as_chosen
        by_worker = await system.decided_by(20)
        assert set(by_worker) == {0, 1}
        assert min(by_worker.values()) >= 8, by_worker

        running = [asyncio.create_task(system.ask(LONG)) for _ in range(6)]

        async def seen() -> bool:
            """Each worker counts the requests of both, and two fifths of them at least are its own."""
            for number in (0, 1):
                nodes = (await system.crew.nodes_of(number)).values()
                own = sum(one["own"]["sequences_open"] for one in nodes)
                peers = sum(one["peers"]["sequences_open"] for one in nodes)
                if own + peers != len(running) or not 2 <= own <= 4:
                    return False
            return True

        try:
            await until(seen)
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def loaded_while_one_is_killed(system: Behind) -> tuple[list[tuple[float, Answer]], float]:
    """Answers with when each was asked for, and when a worker was killed in the midst of them."""
    answers: list[tuple[float, Answer]] = []
    over = asyncio.Event()

    async def client() -> None:
        while not over.is_set():
            asked_s = time.monotonic()
            answers.append((asked_s, await system.ask()))

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    await until(lambda: len(answers) > 5 * CLIENTS)
    killed_s = time.monotonic()
    os.kill(system.crew.pids[1], signal.SIGKILL)
    await until(lambda: len(answers) > 20 * CLIENTS)
    await system.crew.serve.child.logged('"worker is there again"', within_s=20)
    over.set()
    await asyncio.gather(*clients)
    return answers, killed_s


async def test_no_request_fails_when_a_worker_is_killed_and_requests_come_to_it_again(tmp_path: Path) -> None:
    async with behind(tmp_path) as system:
        answers, _ = await loaded_while_one_is_killed(system)
        assert [one for _, one in answers if not one.served] == []

        async def again() -> bool:
            assert (await system.ask()).served
            return min((await system.decided_by(10)).values(), default=0) >= 3

        await until(again)


async def test_with_failure_mode_allow_off_only_requests_fail_that_were_at_the_killed_worker(tmp_path: Path) -> None:
    async with behind(tmp_path, fail_open=False) as system:
        answers, killed_s = await loaded_while_one_is_killed(system)
        # One that has just come again may be asked before agents have told it: that is told as such.
        failed = [(asked_s, one) for asked_s, one in answers if not one.served and one.reason != UNTOLD]
        assert len(failed) <= CLIENTS, failed
        assert [one for asked_s, one in failed if asked_s > killed_s + 0.1] == []


async def test_with_failure_mode_allow_off_no_request_fails_while_a_worker_drains(tmp_path: Path) -> None:
    async with behind(tmp_path, fail_open=False) as system:
        running = [asyncio.create_task(system.ask(LONG)) for _ in range(6)]
        answers: list[Answer] = []
        over = asyncio.Event()

        async def client() -> None:
            while not over.is_set():
                answers.append(await system.ask())

        async def retried() -> bool:
            asked = "/stats?filter=cluster.extproc.upstream_rq_retry_success&format=json"
            page = await system.crew.fleet.json(system.envoy.admin_url + asked)
            return any(one.get("value", 0) > 0 for one in page["stats"])

        await until(lambda: system.open_at(1))
        clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
        try:
            os.kill(system.crew.pids[1], signal.SIGTERM)  # new requests are refused there, for those that run
            await until(retried)
            over.set()
            await asyncio.gather(*clients)
        finally:
            for one in (*running, *clients):
                one.cancel()
            await asyncio.gather(*running, *clients, return_exceptions=True)
        assert [one for one in answers if not one.served] == []
