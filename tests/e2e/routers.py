"""Several real routers before the same engines, with real agents and a real NATS server; and requests as Envoy's.

What routers count is held against what the engines have. Of one thing there is no doubt here: who asks is this very
process, and each of its requests is at an engine exactly as long as its stream is open.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from extproc.children import Child, ourselves
from extproc.fleet import Engine, Fleet, Serve
from tests.natsserver import NatsServer
from tests.serve.served import Served, asked
from tests.waiting import until

MODEL = "demo"
CONFIG: dict[str, Any] = {
    "nodes": {"report_interval_s": 0.2, "settle_s": 0},
    "exchange": {"interval_s": 0.1, "silence_s": 1.5},
}
INTERVAL_S = 0.2
"""Between reports."""
STEADY_LOOKS = 6
"""So often in a row all counts have to be right: a chance agreement is none."""
STEADY_S = 0.1
LONG_TOKENS = 4000
"""Of answers that last longer than any test."""
_RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)

Counts = dict[str, int]
"""Requests by node."""


@dataclass
class Site:
    """All that runs."""

    folder: Path
    stack: AsyncExitStack
    fleet: Fleet
    nats: NatsServer
    http: aiohttp.ClientSession
    engines: list[Engine] = field(default_factory=list)
    routers: list[Served] = field(default_factory=list)
    """Those that count: a test takes out whom it ends."""
    lasting: list[tuple[Served, asyncio.Task[None]]] = field(default_factory=list)
    """Requests that stay open, and who sent them."""
    _started: int = 0

    async def router(self, nats_url: str | None = None, **config: Any) -> Served:
        """Start one more, which meets the others at this server."""
        self._started += 1
        nats = {} if nats_url == "" else {"nats": {"servers": [nats_url or self.nats.url]}}
        serve = await self.fleet.serve(CONFIG | nats | config, name=f"router-{self._started}")
        served = await self.stack.enter_async_context(connected(serve))
        self.routers.append(served)
        return served

    async def agent(self, engines: Sequence[Engine], routers: Sequence[Served], nats_url: str | None = None) -> Child:
        """Start an agent of these engines, which has links to these routers too."""
        self._started += 1
        config: dict[str, Any] = {
            "routers": [one.at["agents"] for one in routers],
            "interval_s": INTERVAL_S,
            "idle_interval_s": INTERVAL_S,
            "drain_s": 0,
            "reconnect_backoff_s_max": 0.5,
            "engines": [
                {"node_id": one.name, "engine": f"http://{one.address}", "host": str(one.address)} for one in engines
            ],
        }
        if nats_url != "":
            config["nats"] = {"servers": [nats_url or self.nats.url]}
        path = self.folder / f"agent-{self._started}.yaml"
        path.write_text(json.dumps(config))
        child = await Child.start(path.stem, ourselves("agent", "--config", str(path)), self.folder)
        self.stack.push_async_callback(child.kill)
        return child

    async def kill(self, router: Served) -> None:
        """As a crash does."""
        self.routers.remove(router)
        await router.child.kill()

    async def ready(self) -> None:
        """Until every router has heard of every node, and chooses: it does not for a while after its start."""
        for router in self.routers:
            await until(lambda router=router: self._knows_all(router), within_s=30)  # type: ignore[misc]
            await until(lambda router=router: chosen(router), within_s=30)  # type: ignore[misc]

    async def _knows_all(self, router: Served) -> bool:
        nodes = (await router.get("/nodes"))[1]["nodes"]
        return {one["node_id"] for one in nodes if one["ready"]} == {one.name for one in self.engines}

    async def ask(self, router: Served, tokens: int, prompt: str = "hello") -> int:
        """One request through a router, to its end; the status of the engine's answer.

        Where the router does not answer any engine will do, as in Envoy's cluster of known nodes.
        """
        stream = router.stream()
        try:
            try:
                host = destination(await asked(stream, model=MODEL, prompt=prompt))
                assert host is not None, "it chose nobody"
            except grpc.aio.AioRpcError:
                host = str(self.engines[0].address)
            body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": True}
            async with self.http.post(f"http://{host}/v1/completions", json=body) as response:
                await response.read()
                return response.status
        finally:
            stream.cancel()

    async def begin(self, counts: Sequence[int]) -> None:
        """Requests that last, so many at each router."""
        for router, count in zip(self.routers, counts, strict=True):
            self.lasting += [(router, asyncio.create_task(self._last(router))) for _ in range(count)]
        await until(self._all_there, within_s=20)

    async def _last(self, router: Served) -> None:
        assert await self.ask(router, LONG_TOKENS) == 200

    async def _all_there(self) -> bool:
        for _, task in self.lasting:
            if task.done():
                task.result()
        return sum((await self.truth()).values()) == len(self.lasting)

    async def end(self, count: int | None = None) -> None:
        """The clients of so many lasting requests hang up, the oldest first; of all."""
        ending = self.lasting[:count]
        self.lasting = self.lasting[len(ending) :]
        for _, task in ending:
            task.cancel()
        await asyncio.gather(*(task for _, task in ending), return_exceptions=True)

    def sent_by(self, *routers: Served) -> int:
        """How many of the lasting requests they sent."""
        return sum(router in routers for router, _ in self.lasting)

    async def truth(self) -> Counts:
        """What the engines have."""
        found = {}
        for engine in self.engines:
            async with self.http.get(f"http://{engine.address}/metrics") as response:
                found[engine.name] = round(sum(map(float, _RUNNING.findall(await response.text()))))
        return found

    async def agree(self, *apart: Sequence[Served], within_s: float = 15.0) -> None:
        """Until all counts are right, and stay so: what routers take to be in flight is what the engines have, and each
        knows of all requests that it and those it hears sent. `apart`: groups that hear only each other; else all do.
        """
        row, seen = 0, ""
        groups = apart or (self.routers,)

        async def right() -> bool:
            nonlocal row, seen
            truth, wrong = await self.truth(), []
            for group in groups:
                for router in group:
                    sent, in_flight = await counted(router)
                    if in_flight != truth or sum(sent.values()) != self.sent_by(*group):
                        wrong.append(f"{router.child.name} of {len(group)}: sent {sent}, in flight {in_flight}")
                    elif self.sent_by(*group) == sum(truth.values()) and sent != truth:
                        wrong.append(f"{router.child.name} has requests elsewhere: {sent}")
            row = 0 if wrong else row + 1
            seen = f"the engines have {truth}; {wrong}"
            await asyncio.sleep(STEADY_S)
            return row >= STEADY_LOOKS

        try:
            await until(right, within_s)
        except AssertionError as error:
            raise AssertionError(seen) from error

    async def at_rest(self) -> None:
        """Nothing is left of any request, and all routers hear each other."""
        await self.end()
        await self.agree()
        assert sum((await self.truth()).values()) == 0
        for router in self.routers:
            await nothing_at_nodes(router)
            left = {
                "streams": await metric(router, "extproc_streams_open"),
                "peers": await metric(router, "extproc_peers") - (len(self.routers) - 1),
                "errors of ours": router.child.log.read_text().count("error of ours"),
            }
            assert not any(left.values()), f"{router.child.name} has {left}"


def destination(reply: Any) -> str | None:
    """Where the request shall go."""
    headers = reply.request_body.response.header_mutation.set_headers
    return headers[0].header.raw_value.decode() if headers else None


async def chosen(router: Served) -> bool:
    """Whether a router chooses."""
    stream = router.stream()
    try:
        return destination(await asked(stream, model=MODEL)) is not None
    finally:
        stream.cancel()


async def counted(router: Served) -> tuple[Counts, Counts]:
    """What a router says that all routers have open at each node, and what it takes to be in flight there."""
    nodes = (await router.get("/nodes"))[1]["nodes"]
    return (
        {one["node_id"]: one["own"]["sequences_open"] + one["peers"]["sequences_open"] for one in nodes},
        {one["node_id"]: one["in_flight"] for one in nodes},
    )


async def nothing_at_nodes(router: Served) -> None:
    """Until a router takes no work to be at any node, its own or others', by any of the sums.

    What a sample shows and is over counts until a sample is another, which those of an idle engine are not.
    """
    over = ("sequences_finished", "kv_blocks_unseen")
    left: list[Any] = []

    async def nothing() -> bool:
        nodes = (await router.get("/nodes"))[1]["nodes"]
        loads = [(f"{one['node_id']} {one['age_s']} s ago", who, one[who]) for one in nodes for who in ("own", "peers")]
        left[:] = [
            (name, who, key, load[key]) for name, who, load in loads for key in load if load[key] and key not in over
        ]
        return not left

    try:
        await until(nothing)
    except AssertionError as error:
        raise AssertionError(f"{router.child.name} says {left}") from error


async def metric(router: Served, name: str) -> float:
    """One sample of a router's page, with its labels as they stand there."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", await router.page("/metrics"), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[Served]:
    """Connections to a router."""
    at = serve.listen
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(at["extproc"], options=options) as envoy,
        grpc.aio.insecure_channel(at["agents"], options=options) as agents,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http,
    ):
        yield Served(serve.child, at, envoy, agents, http)


@asynccontextmanager
async def site(folder: Path, *, engines: int = 3, speed: float = 1.0) -> AsyncIterator[Site]:
    """A NATS server and engines; routers and agents are the test's."""
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(folder))
        nats = NatsServer(folder)
        await nats.start()
        stack.push_async_callback(nats.kill)
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=_NO_TIMEOUT))
        found = Site(folder, stack, fleet, nats, http)
        stack.push_async_callback(found.end)
        found.engines = list(
            await asyncio.gather(
                *(
                    fleet.engine(f"gpu-{number}", MODEL, "--speed", str(speed), "--kv-blocks", "20000")
                    for number in range(1, engines + 1)
                )
            )
        )
        yield found


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
