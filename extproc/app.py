"""The composition root of `serve`: one event loop, one clock, one balancer, its servers, and how they end.

The end, on SIGTERM or SIGINT: the health service says NOT_SERVING and /readyz 503; the processor takes no new
streams, answers those it has not decided and lets the others go with gRPC OK, so that Envoy goes on with their
answers; the agents' streams end and their agents look for the next router; the admin pages go last. A second
signal ends the process at once.
"""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial

import grpc
import structlog
import uvloop
from grpc_health.v1 import health_pb2

from extproc import assembling, listening
from extproc.adminport import AdminPort
from extproc.assembling import Worker
from extproc.config import Config
from extproc.core.balancer import Balancer
from extproc.core.settings import Fault
from extproc.exchange import joining
from extproc.gateway import accesslog
from extproc.gateway import server as gateway
from extproc.journal import balancer as journal
from extproc.nodes import ingest as nodes
from extproc.ops import admin, scaler
from extproc.ops.metrics import Metrics
from extproc.ops.nodegauges import samples_of
from extproc.ops.nodelog import NodeLog
from extproc.peers import ports

log = structlog.get_logger()

HEALTH_SERVICES = ("", "envoy.service.ext_proc.v3.ExternalProcessor")
"""What gRPC health checks may ask for."""
ADMIN_CLOSE_S = 1.0
"""How long the admin pages may still be read at the end."""
LAST_READ_S = 1.0
"""How long Envoy has to read what was written last: connections that end with the process lose it, and an upload that
came back to the last piece would be answered 500."""

GC_YOUNG_OBJECTS_MAX = 10_000
"""New objects between two looks of the garbage collector; Python's own 700 cost 8 % of a request."""


class StartError(Exception):
    """`serve` cannot start, for these reasons."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def run(config: Config, worker: Worker | None = None) -> None:
    """Serve on an event loop of its own until a signal. Raises `StartError`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, worker))


async def serve(config: Config, worker: Worker | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises `StartError` where nothing could be served at all."""
    stop = _stop_on_signals()
    clock = time.monotonic
    metrics = Metrics()
    security = ports.secured(config.listen, metrics, clock, log)
    faults = security if isinstance(security, list) else joining.faults(config)
    if isinstance(security, list) or faults:
        raise StartError(faults)
    tokenizers = await asyncio.to_thread(assembling.tokenizers_of, config, metrics)
    if isinstance(tokenizers, list):
        raise StartError(tokenizers)
    balancer = journal.balancer(config, clock(), partial(metrics.our_error, "journal"))
    if isinstance(balancer, Fault):
        raise StartError([balancer])
    parts = assembling.Parts(config, balancer, tokenizers, metrics, clock, worker)
    processor, servers = parts.processor, parts.grpc_servers(security)
    peers = partial(assembling.peers_page_of, parts)
    pages = AdminPort(admin.build(balancer, metrics, clock, stop.is_set, parts.forecasts, peers), ADMIN_CLOSE_S)
    ticking = asyncio.create_task(_tick(balancer, metrics, clock, config.nodes.prune_interval_s))
    try:
        listen = config.listen
        places = zip(ports.PORTS, (listen.extproc, listen.agents, listen.scaler), servers, strict=True)
        addresses = {
            name: await listening.grpc_port(server, place, security[name].credentials)
            for name, place, server in places
            if place is not None
        }
        addresses["admin"] = await pages.open(listen.admin)
        await asyncio.gather(*(server.start() for server in servers))
        for name in HEALTH_SERVICES:
            await parts.healths.set(name, health_pb2.HealthCheckResponse.SERVING)
        _spare_the_collector()
        if worker is None:
            log.info("listening", **{name: str(address) for name, address in addresses.items()})
        else:
            worker.listening(addresses)

        async with joining.joined(parts.bus, parts.exchange):
            await stop.wait()
            log.info("draining", streams_open=processor.streams_open, agents=parts.ingest.streams_open)
            await parts.healths.enter_graceful_shutdown()
            await _drain(config.drain_s, servers, processor, parts.access_log, parts.ingest, parts.nodes_scaler)
        log.info("drained", streams_open=processor.streams_open)
    except listening.ListenError as error:
        raise StartError([Fault("listen", "an address that can be listened at", str(error))]) from None
    finally:
        ticking.cancel()
        await asyncio.gather(*(server.stop(None) for server in servers))
        await pages.close()
        parts.counter.close()
        journal.close(balancer)


async def _drain(
    drain_s: float,
    servers: Iterable[grpc.aio.Server],
    processor: gateway.ExternalProcessor,
    *others: accesslog.AccessLog | nodes.NodeIngest | scaler.NodesScaler,
) -> None:
    """Let streams come to their ends, for as long as that may take."""
    streams_open = processor.streams_open
    for one in (processor, *others):
        one.drain()
    await asyncio.gather(*(server.stop(drain_s) for server in servers))
    if streams_open:
        await asyncio.sleep(LAST_READ_S)


def _spare_the_collector() -> None:
    """What the start made stays: without this each full collection walks the classes of all libraries, and requests pay
    for that. They make few cycles, so the young generation may grow."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS_MAX)


def _stop_on_signals() -> asyncio.Event:
    """An event that the first signal sets; the second ends the process."""
    stop = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled, number)
    return stop


async def _tick(balancer: Balancer, metrics: Metrics, clock: Callable[[], float], interval_s: float) -> None:
    node_log = NodeLog(log)
    while True:
        await asyncio.sleep(interval_s)
        try:
            now_s = clock()
            balancer.tick(now_s)
            nodes = samples_of(balancer, now_s)
            node_log.look(nodes)
            metrics.requests.keep_nodes({one.view.snapshot.node_id for one in nodes})
        except Exception:
            log.exception("error of ours; nodes were not looked through")
            metrics.our_error("tick")
