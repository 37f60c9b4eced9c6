"""The parent of the workers of one `serve`: it decides nothing, has no tokenizers and no balancer.

    Envoy ───────────────► worker 0, 1, …   each a router, at an address of its own
    agents ──► relay ────► all of them      one port, TLS and tokens checked here
    operators ► pages ───► all of them      one page
    KEDA ────► scaler ───► all of them

Without NATS the workers meet in a private folder, which has their sockets too.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import structlog
import uvloop

from extproc import listening
from extproc.address import Address
from extproc.adminport import AdminPort
from extproc.config import Config
from extproc.core.forecast import ModelForecast
from extproc.core.settings import Fault
from extproc.nodes.ingest import grpc_options
from extproc.ops import logs, scaler
from extproc.ops.metrics import Metrics
from extproc.peers import ports
from extproc.workers import addresses, relay
from extproc.workers.asking import Asking
from extproc.workers.crew import Crew, RefusedError
from extproc.workers.ownmetrics import OwnMetrics
from extproc.workers.pages import WorkersPages
from extproc.workers.shares import agents_socket

log = structlog.get_logger()

ADMIN_CLOSE_S: Final = 1.0
"""How long the pages may still be read at the end."""
AFTER_DRAIN_S: Final = 10.0
"""So long beyond `drain_s` workers may take to end, before they are ended."""
READ_EACH_S: Final = 1.0
"""How often the forecasts are read for KEDA, if it is served."""


def run(config: Config, log_format: logs.LogFormat, log_level: str) -> None:
    """Serve until a signal, with `config.workers` processes. Raises `RefusedError` where that cannot begin."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, log_format, log_level))


async def _serve(config: Config, log_format: logs.LogFormat, log_level: str) -> None:
    clock = time.monotonic
    if faults := addresses.faults_of(config):
        raise RefusedError(faults)
    metrics = Metrics()
    security = await asyncio.to_thread(ports.secured, config.listen, metrics, clock, log)
    if isinstance(security, list):
        raise RefusedError(security)
    with tempfile.TemporaryDirectory(prefix="extproc-") as name:  # for our user alone
        folder = Path(name)
        agents = relay.Relay(log, streams_max=config.limits.agent_streams_max)
        crew = Crew(config, folder, _Relayed(agents, folder), clock, log, log_format, log_level)

        def at_once() -> None:
            crew.kill()
            shutil.rmtree(folder, ignore_errors=True)

        stop = _stop_on_signals(at_once)
        asking = Asking(folder, lambda: crew.listening)
        own = OwnMetrics(
            metrics,
            config.workers,
            lambda: crew.listening,
            lambda: crew.hung,
            lambda: crew.restarts,
            lambda: agents.streams_open,
        )
        pages = WorkersPages(asking, own.page, stop.is_set, config.forecast.ttft_s)
        await _Supervised(config, security, agents, crew, pages, stop).serve()


class _Relayed:
    """Tells the relay of workers."""

    def __init__(self, agents: relay.Relay, folder: Path) -> None:
        self._agents = agents
        self._folder = folder

    def up(self, number: int) -> None:
        self._agents.up(number, agents_socket(self._folder, number))

    async def down(self, number: int) -> None:
        await self._agents.down(number)


class _Supervised:
    def __init__(
        self,
        config: Config,
        security: dict[str, ports.PortSecurity],
        agents: relay.Relay,
        crew: Crew,
        pages: WorkersPages,
        stop: asyncio.Event,
    ) -> None:
        self._config = config
        self._agents = agents
        self._crew = crew
        self._pages = pages
        self._stop = stop
        self._security = security
        self._forecasts: tuple[ModelForecast, ...] = ()
        self._scaler = scaler.NodesScaler(lambda: self._forecasts, time.monotonic)
        limits = config.limits
        self._for_agents = self._server("agents", grpc_options(limits.agent_message_bytes_max))
        self._for_keda = self._server("scaler", scaler.grpc_options())
        relay.register(self._for_agents, agents)
        scaler.register(self._for_keda, self._scaler)

    def _server(self, port: str, options: list[tuple[str, int]]) -> grpc.aio.Server:
        return grpc.aio.server(interceptors=self._security[port].gates, options=[*options, *listening.GRPC_OPTIONS])

    async def serve(self) -> None:
        listen = self._config.listen
        servers = {"agents": (self._for_agents, listen.agents)}
        if listen.scaler is not None:
            servers["scaler"] = (self._for_keda, listen.scaler)
        admin = AdminPort(self._pages.application(), ADMIN_CLOSE_S)
        reading = asyncio.create_task(self._read()) if listen.scaler is not None else None
        try:
            at: dict[str, Address] = {
                name: await listening.grpc_port(server, place, self._security[name].credentials)
                for name, (server, place) in servers.items()
            }
            starting = asyncio.create_task(self._crew.start())
            workers = await _or_none(starting, self._stop)
            if workers is None:
                return
            at["admin"] = await admin.open(listen.admin)
            await asyncio.gather(*(server.start() for server, _ in servers.values()))
            told = {name: str(address) for name, address in at.items()}
            pids = list(self._crew.pids.values())
            log.info("listening", extproc=str(workers[0]), **told, workers=[str(one) for one in workers], pids=pids)
            await self._stop.wait()
            log.info("draining", agents=self._agents.streams_open)
            self._agents.drain()
            self._scaler.drain()
            await self._crew.stop(self._config.drain_s + AFTER_DRAIN_S)
            log.info("drained")
        except listening.ListenError as error:
            raise RefusedError([Fault("listen", "an address that can be listened at", str(error))]) from None
        finally:
            if reading is not None:
                reading.cancel()
            await self._crew.stop(0)
            await asyncio.gather(*(server.stop(None) for server, _ in servers.values()))
            await self._agents.close()
            await admin.close()

    async def _read(self) -> None:
        while True:
            self._forecasts = await self._pages.forecasts()
            await asyncio.sleep(READ_EACH_S)


async def _or_none(starting: "asyncio.Task[list[Address]]", stop: asyncio.Event) -> list[Address] | None:
    """What comes of the start; `None`: it was stopped before."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait([starting])
        return None
    finally:
        stopped.cancel()


def _stop_on_signals(at_once: Callable[[], None]) -> asyncio.Event:
    """An event that the first signal sets; the second ends all processes, after `at_once`."""
    stop = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set():
            at_once()
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled, number)
    return stop
