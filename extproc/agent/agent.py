"""The agent: looks at every engine again and again, and pushes what it saw to every router."""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import structlog

from extproc.adminport import AdminPort
from extproc.agent import admin
from extproc.agent.discovery import Routers
from extproc.agent.engines.reading import FIRST_LOOK
from extproc.agent.gpu.meter import GpuMeters, open_driver
from extproc.agent.node import Node
from extproc.agent.publish import Publisher
from extproc.agent.settings import AgentConfig
from extproc.agent.wire import Report
from extproc.bus.natsbus import NatsBus

ADMIN_CLOSE_S = 0.2
"""How long the admin port's answers under way may take at the end."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("agent")


async def run(config: AgentConfig, stop: asyncio.Event | None = None) -> None:
    """Report until SIGTERM or SIGINT, then drain; or until `stop`, another signal or cancellation. Then say goodbye.

    Raises `listening.ListenError` where the admin port cannot be had.
    """
    loop = asyncio.get_running_loop()
    stopping, leaving = stop or asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (stopping if leaving.is_set() else leaving).set()

    driver = await asyncio.to_thread(open_driver)
    agent_id = secrets.token_hex(6)
    async with contextlib.AsyncExitStack() as ending:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(RuntimeError, ValueError):  # not the main thread
                loop.add_signal_handler(number, signalled)
                ending.callback(loop.remove_signal_handler, number)
        gpus = await ending.enter_async_context(GpuMeters(driver, config.page_bytes_max, config.interval_s / 2))
        nodes = [
            await ending.enter_async_context(Node(engine, config, agent_id, gpus.of(engine)))
            for engine in config.engines
        ]
        telling = _Telling(config, loop.time)
        await ending.enter_async_context(_admin(config, nodes, telling.shown))
        pushing = asyncio.create_task(telling.run())
        looking = [asyncio.create_task(node.keep_reporting(telling.offer)) for node in nodes]
        waiting = [asyncio.create_task(stopping.wait()), asyncio.create_task(_drained(nodes, leaving, config.drain_s))]
        try:
            await asyncio.wait((*waiting, pushing, *looking), return_when=asyncio.FIRST_COMPLETED)
            for task in (*waiting, pushing, *looking):
                if task.done():
                    task.result()  # none of the latter ends by itself, except by an error of ours
        finally:
            log.info("stopping", nodes=[node.node_id for node in nodes][:10])
            await _cancel([*waiting, *looking])
            telling.leave()
            await asyncio.wait([pushing], timeout=config.goodbye_s)
            await _cancel([pushing])


class _Telling:
    """All ways to the routers: a stream to each, and what is published on a bus."""

    def __init__(self, config: AgentConfig, clock: Callable[[], float]) -> None:
        self._published = None
        if config.nats is None:
            self.routers = Routers(config, clock, log)
        else:
            self._published = Publisher(NatsBus(config.nats, clock, log), config.nats.fleet, clock, log)
            self.routers = Routers(config, clock, log, is_heard=self._published.is_heard)

    def offer(self, report: Report) -> None:
        """Tell this."""
        if self._published is not None:
            self._published.offer(report)
        self.routers.offer(report)

    def shown(self) -> list[dict[str, Any]]:
        """Each way, ready for JSON."""
        return self.routers.shown() + ([] if self._published is None else [self._published.shown()])

    def leave(self) -> None:
        """Say goodbye for every node, and let `run` end."""
        if self._published is not None:
            self._published.leave()
        self.routers.leave()

    async def run(self) -> None:
        """Until `leave`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.routers.run())
            if self._published is not None:
                group.create_task(self._published.run(self.routers.look))


@contextlib.asynccontextmanager
async def _admin(config: AgentConfig, nodes: Sequence[Node], shown: Callable[[], object]) -> AsyncIterator[None]:
    """The agent's own port, if it has one."""
    if config.admin is None:
        yield
        return
    pages = AdminPort(admin.build(nodes, shown, remote=config.admin_remote), ADMIN_CLOSE_S)
    try:
        at = await pages.open(config.admin)
        log.info("listening", admin=str(at))
        yield
    finally:
        await pages.close()


async def sample_once(config: AgentConfig, again_s: float | None = None) -> list[dict[str, Any]]:
    """Look at every engine once; its snapshot ready for JSON, with the reasons of what is not there under `absent`.

    `again_s`: look a second time after so long, where that may tell what is a difference between two looks.
    """
    driver = await asyncio.to_thread(open_driver)
    async with contextlib.AsyncExitStack() as held:
        gpus = await held.enter_async_context(GpuMeters(driver, config.page_bytes_max, config.interval_s / 2))
        nodes = [
            await held.enter_async_context(Node(engine, config, secrets.token_hex(6), gpus.of(engine)))
            for engine in config.engines
        ]
        await asyncio.gather(*(node.look() for node in nodes))
        if again_s is not None and any(FIRST_LOOK in node.absent.values() for node in nodes):
            await asyncio.sleep(again_s)
            await asyncio.gather(*(node.look() for node in nodes))
        return [node.shown() for node in nodes]


async def _drained(nodes: Sequence[Node], leaving: asyncio.Event, drain_s: float) -> None:
    """When it is time to leave, say at once that all nodes drain; end when they are empty, or `drain_s` later."""
    await leaving.wait()
    log.info("draining", nodes=[node.node_id for node in nodes][:10], drain_s=drain_s)
    for node in nodes:
        node.drain(hold=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            for node in nodes:
                await node.emptied.wait()


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
