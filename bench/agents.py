"""Many agents in one process, as a router sees them: a stream each on a connection of its own, and reports that change.

    python -m bench.agents ROUTER AGENTS NODES_EACH [--plain] [--slow 0]

Reports are those of vLLM under load, each node's at a time of its own within the second. `--plain`: agents that tell
all nodes one by one, whole, and have each report acknowledged, as ones do that know no better. `--slow`: so many agents
besides that hold their streams open and send nothing, flood and read nothing, drip, or send half a message and no more.
Prints a line when all streams are opened, one whenever a router has taken an agent's first report, and runs until it is
ended.
"""

import asyncio
import contextlib
import random
import time
from dataclasses import replace

import click
import grpc
import structlog
import uvloop

from extproc.address import TcpAddress
from extproc.agent.push import RouterLink
from extproc.agent.wire import Report, snapshot_message
from extproc.core.snapshot import NodeState, ServedModel, Snapshot
from extproc.pb.nodes_pb2 import AgentMessage
from extproc.pb.nodes_pb2_grpc import NodesStub

INTERVAL_S = 1.0
BACKOFF_S_MAX = 3.0
"""As agents' own."""
DRIP_S = 0.05
HALF_BYTES = 400
"""Of the connection's bytes: the preface, the head of the call, and a part of the message."""
MODELS = (ServedModel("llama", context_length_tokens=131_072),)
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
NARROW = [*OWN_CONNECTION, ("grpc.http2.bdp_probe", 0)]
"""Little is under way to one that does not read."""


def host_of(number: int) -> str:
    """An address of its own for each node."""
    return f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}:8000"


def loaded(number: int, sequence: int, chance: random.Random) -> Snapshot:
    """What the agent of a busy vLLM tells: totals rise and the rest moves."""
    running, waiting, blocks = chance.randrange(1, 128), chance.randrange(6), chance.randrange(100_000)
    return Snapshot(
        node_id=f"node-{number}",
        host=host_of(number),
        boot_id="8d4f1c2a9b3e.0",
        sequence=sequence,
        sample_age_s=0.004,
        state=NodeState.READY,
        models=MODELS,
        gpu_utilization=chance.random(),
        kv_usage=1 - blocks / 100_000,
        kv_block_size_tokens=16,
        kv_blocks_total=100_000,
        kv_blocks_available=blocks,
        pending_prefills=waiting + running // 16,
        active_decodes=running,
        requests_running=running,
        requests_waiting=waiting,
        prefill_latency_ms=100 + 400 * chance.random(),
        decode_ms_per_token=20 + 20 * chance.random(),
        prefill_tokens_total=sequence * 20_000 + chance.randrange(10_000),
        prefill_seconds_total=sequence * 4 + chance.random(),
        first_tokens_total=sequence * 20 + chance.randrange(10),
        prefix_queries_total=sequence * 40_000,
        prefix_hits_total=sequence * 20_000 - chance.randrange(10_000),
    )


async def tell(offer: "Offer", number: int, phase_s: float) -> None:
    """Report this node once an interval."""
    chance = random.Random(number)
    next_s, sequence = time.monotonic() + phase_s, 0
    while True:
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        next_s, sequence = next_s + INTERVAL_S, sequence + 1
        await offer.offer(Report(loaded(number, sequence, chance), time.monotonic() - 0.004))


class Offer:
    """An agent with all that agents do."""

    def __init__(self, router: TcpAddress) -> None:
        self._link = RouterLink(router, BACKOFF_S_MAX, time.monotonic, structlog.get_logger())
        self._running = asyncio.create_task(self._link.run())

    async def offer(self, report: Report) -> None:
        """Send it as agents do."""
        self._link.offer(report)


class PlainOffer(Offer):
    """An agent that sends each report whole and at once, and reads what comes back."""

    def __init__(self, router: TcpAddress) -> None:
        self._channel = grpc.aio.insecure_channel(str(router), OWN_CONNECTION)
        self._call = NodesStub(self._channel).Report()  # type: ignore[no-untyped-call]
        self._running = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for _ in self._call:
            pass

    async def offer(self, report: Report) -> None:
        """Send it."""
        await self._call.write(snapshot_message(report, time.monotonic(), 0.001))


async def flood(router: TcpAddress, number: int) -> None:
    """Send what will be refused, as fast as it is taken, and read nothing."""
    async with grpc.aio.insecure_channel(str(router), NARROW) as channel:
        call = NodesStub(channel).Report()  # type: ignore[no-untyped-call]
        refused = replace(loaded(number, 1, random.Random(0)), node_id="slow", host="8.8.8.8:80")
        message = snapshot_message(Report(refused, 0.0), 0.0)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(message)


async def hold(router: TcpAddress) -> None:
    """Open a stream and say nothing on it."""
    async with grpc.aio.insecure_channel(str(router), NARROW) as channel:
        call = NodesStub(channel).Report()  # type: ignore[no-untyped-call]
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.read()


async def through(router: TcpAddress, number: int, bytes_max: int | None) -> None:
    """An agent whose bytes come one by one, or end in the midst of a message."""

    async def carry(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(router.host, router.port)

        async def back() -> None:
            while data := await server.read(65536):
                to_client.write(data)

        going_back = asyncio.create_task(back())
        carried = 0
        while data := await client.read(1 if bytes_max is None else max(1, bytes_max - carried)):
            if bytes_max is None:
                await asyncio.sleep(DRIP_S if carried > HALF_BYTES else 0)
            carried += len(data)
            to_server.write(data)
            if bytes_max is not None and carried >= bytes_max:
                await asyncio.Event().wait()
        await going_back

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", NARROW) as channel:
        call = NodesStub(channel).Report()  # type: ignore[no-untyped-call]
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            message: AgentMessage = snapshot_message(
                Report(replace(loaded(number, 1, random.Random(0)), not_ready_reason="x" * 200), 0.0),
                0.0,
            )
            while True:
                await call.write(message)
                await asyncio.sleep(INTERVAL_S)


def slow_one(router: TcpAddress, number: int) -> "asyncio.Task[None]":
    """One that is slow in one of four ways."""
    ways = (
        lambda: hold(router),
        lambda: flood(router, number),
        lambda: through(router, number, None),
        lambda: through(router, number, HALF_BYTES),
    )
    return asyncio.create_task(ways[number % len(ways)]())


async def run(router: TcpAddress, agents: int, nodes_each: int, slow: int, *, plain: bool) -> None:
    """Report until we are ended."""
    slow_ones = [slow_one(router, number) for number in range(slow)]
    telling = []
    for number in range(agents):
        offer = PlainOffer(router) if plain else Offer(router)
        for node in range(number * nodes_each, (number + 1) * nodes_each):
            telling.append(asyncio.create_task(tell(offer, node, random.random() * INTERVAL_S)))
        if number % 50 == 0:
            await asyncio.sleep(0.05)  # handshakes shall not keep those that are there from reporting
    print("opened", flush=True)
    await asyncio.gather(*telling, *slow_ones)


def say_reached(_: object, __: str, event: structlog.typing.EventDict) -> str:
    """Of what agents log only that a router took their first report, and when."""
    if event["event"] != "router reached":
        raise structlog.DropEvent
    return f"reached {time.monotonic()}"


@click.command(help=__doc__)
@click.argument("router")
@click.argument("agents", type=int)
@click.argument("nodes_each", type=int)
@click.option("--plain", is_flag=True)
@click.option("--slow", default=0)
def main(router: str, agents: int, nodes_each: int, slow: int, *, plain: bool) -> None:
    """Be them."""
    structlog.configure(processors=[say_reached])
    host, _, port = router.rpartition(":")
    uvloop.run(run(TcpAddress(host, int(port)), agents, nodes_each, slow, plain=plain))


if __name__ == "__main__":
    main()
