"""More than the fleet can do, on a real Envoy: what is refused, what waits, and that everybody gets an answer."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.e2e.conftest import System
from tests.e2e.gated import HELD, POLICIES, SERVED, Held
from tests.e2e.rawhttp import connect

TTFT_S = float(POLICIES["objective"]["ttft_s"])
PROMPT_TOKENS = 1000
ENGINES_PER_S = 3 / 0.32
"""Such prompts that the three engines can compute in a second, at the very most."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one client saw."""

    status: int
    first_byte_s: float
    retry_after: str | None
    code: str | None

    @property
    def met(self) -> bool:
        return self.status == 200 and self.first_byte_s <= TTFT_S


class Clients:
    """Each prompt is another one: no cache helps."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._chance = random.Random(5)

    async def one(self) -> Outcome:
        prompt = [self._chance.randrange(30_000) for _ in range(PROMPT_TOKENS)]
        body = {"model": SERVED, "prompt": prompt, "max_tokens": 1, "stream": True}
        began_s = time.monotonic()
        url = f"{self._system.envoy.url}/objective/v1/completions"
        async with self._system.client.post(url, json=body) as response:
            text = await response.content.readany()
            first_byte_s = time.monotonic() - began_s
            text += await response.content.read()
            code = json.loads(text)["error"]["code"] if response.status != 200 else None
            return Outcome(response.status, first_byte_s, response.headers.get("retry-after"), code)

    @asynccontextmanager
    async def until_one_is_refused(self, at_once: int) -> AsyncIterator[None]:
        """So many ask again and again: until rates are known nothing is refused. Their last answers come later."""
        refused = asyncio.Event()

        async def again() -> None:
            while not refused.is_set():
                if (await self.one()).status == 429:
                    refused.set()

        async with asyncio.TaskGroup() as clients:
            for _ in range(at_once):
                clients.create_task(again())
            await asyncio.wait_for(refused.wait(), 30)
            yield

    async def at(self, rate: float, seconds: float) -> list[Outcome]:
        """So many a second come at random, whatever becomes of them."""
        loop = asyncio.get_running_loop()
        at_s, end_s = loop.time(), loop.time() + seconds
        asked = []
        while at_s < end_s:
            await asyncio.sleep(at_s - loop.time())
            asked.append(asyncio.create_task(self.one()))
            at_s += self._chance.expovariate(rate)
        return await asyncio.gather(*asked)


def assert_answered(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Those who were served, and those who were refused as they should be."""
    served = [one for one in outcomes if one.status == 200]
    refused = [one for one in outcomes if one.status != 200]
    assert {(one.status, one.code) for one in refused} == {(429, "overloaded")}
    for one in refused:
        assert one.retry_after is not None
        assert 1 <= int(one.retry_after) <= 60
    return served, refused


async def test_with_an_objective_what_cannot_be_served_in_time_is_refused_at_once(gated_system: System) -> None:
    clients = Clients(gated_system)
    async with clients.until_one_is_refused(at_once=24):
        outcomes = await clients.at(1.8 * ENGINES_PER_S, 7)
    served, refused = assert_answered(outcomes)
    assert len(served) > 7 * ENGINES_PER_S / 3, "the engines are kept busy"
    assert sum(one.met for one in served) >= 0.8 * len(served)
    assert sorted(one.first_byte_s for one in refused)[len(refused) // 2] < TTFT_S / 2

    served, refused = assert_answered(await clients.at(4 * ENGINES_PER_S, 1.5))
    assert served
    assert len(refused) > len(served)
    await gated_system.at_rest()


def upload(prompt: str, headers: str = "") -> bytes:
    body = json.dumps({"model": HELD, "prompt": prompt}).encode()
    head = f"POST /patient/v1/completions HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_clients_that_go_while_they_wait_leave_nothing(gated_system: System, held: Held) -> None:
    connections = [await connect(gated_system.envoy) for _ in range(200)]
    for _, writer in connections:
        writer.write(upload("x" * 1000))
    await gated_system.waiting("nightly", 200)
    told = await gated_system.metrics()
    assert told["extproc_streams_open"] >= 200
    assert told["extproc_queue_body_bytes nightly"] == told["extproc_body_bytes_held"] > 200 * 1000
    for _, writer in connections:
        writer.transport.abort()
    await gated_system.at_rest()
    await held.report(requests_waiting=0)
    reader, writer = await connect(gated_system.envoy)
    writer.write(upload("still served"))
    assert (await reader.readline()).split()[1] == b"200"
    writer.close()
    assert [one.json["prompt"] for one in held.got] == ["still served"]


async def test_a_router_that_ends_answers_all_who_wait(gated_system: System, held: Held) -> None:
    url = f"{gated_system.envoy.url}/patient/v1/completions"
    asked = [asyncio.create_task(gated_system.client.post(url, json={"model": HELD, "prompt": "x"})) for _ in range(20)]
    await gated_system.waiting("nightly", 20)
    assert await gated_system.fleet.stop(gated_system.serve.child) == 0
    await gated_system.restart_serve()
    for response in await asyncio.gather(*asked):
        async with response:
            assert response.status == 429
            assert int(response.headers["retry-after"]) >= 1
            assert (await response.json())["error"]["code"] == "overloaded"
    assert held.got == []
