"""Every router, found by a list and by DNS: what the agent reports goes to all of them.

Of a name, as that of a headless Service, each address is a router with a link of its own. Names are looked up again and
again, by the system's resolver; a lookup that fails changes nothing. An address that is no longer there is a router
that has gone, or is about to: its link is closed without goodbyes, which are for nodes that leave.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import structlog
from msgspec import structs

from extproc.address import Address, TcpAddress
from extproc.agent import credentials
from extproc.agent.credentials import Credentials
from extproc.agent.push import RouterLink
from extproc.agent.routername import RouterName
from extproc.agent.settings import ROUTERS_MAX, AgentConfig
from extproc.agent.wire import Report
from extproc.core.settings import Fault

ABSENT_LOOKUPS = 3
"""So many lookups in a row have to lack an address before its link is closed: one answer may be incomplete."""
LOOKUP_S = 5.0
"""After this long without an answer what is known stays as it is; the next turn asks for the same answer."""
LOOK_AGAIN_S_MIN = 1.0
"""Lookups for links that fail are so far apart at least."""
_CHANCE = random.SystemRandom()


async def look_up(name: RouterName) -> frozenset[TcpAddress]:
    """Every address of a name, asked off the loop. Raises `OSError` or `UnicodeError` where there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    return frozenset(TcpAddress(str(ip_address(sockaddr[0])), name.port) for *_, sockaddr in found)


class Routers:
    """Keeps every router informed, those of the list and those that names lead to, `ROUTERS_MAX` at most.

    State: a link for each, with how many lookups in a row lacked it; what each name led to last; the latest reports.
    """

    def __init__(
        self,
        config: AgentConfig,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        look_up: Callable[[RouterName], Awaitable[frozenset[TcpAddress]]] = look_up,
        is_heard: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`is_heard`: as of `RouterLink`."""
        self._is_heard = is_heard
        self._config = config
        self._clock = clock
        self._log = log
        self._look_up = look_up
        self._read = partial(credentials.read, config)
        self._links: dict[Address, _Linked] = {}
        self._known: dict[RouterName, frozenset[TcpAddress]] = {}
        self._asked: dict[RouterName, asyncio.Task[frozenset[TcpAddress]]] = {}
        self._failing: set[RouterName] = set()
        self._too_many_told = False
        self._latest: dict[str, Report] = {}
        self._leaving = asyncio.Event()
        self._wake = asyncio.Event()

    @property
    def addresses(self) -> frozenset[Address]:
        """Routers that are told."""
        return frozenset(self._links)

    def shown(self) -> list[dict[str, Any]]:
        """Every router and whether it is connected, ready for JSON."""
        return [one.link.shown() for one in self._links.values()]

    def offer(self, report: Report) -> None:
        """Send this to every router as soon as it takes it, and to those that are found later."""
        self._latest[report.snapshot.node_id] = replace(report, kv=None)
        for one in self._links.values():
            one.link.offer(report)

    def look(self) -> None:
        """`is_heard` may have another answer."""
        for one in self._links.values():
            one.link.look()

    def leave(self) -> None:
        """Say goodbye for every node to the routers that are there, and let `run` end."""
        self._leaving.set()
        self._wake.set()
        for one in self._links.values():
            one.link.leave()

    async def run(self) -> None:
        """Keep a link to each router until `leave`. Raises for errors of ours only."""
        listed = [router for router in self._config.routers if not isinstance(router, RouterName)]
        names = [router for router in self._config.routers if isinstance(router, RouterName)]
        async with asyncio.TaskGroup() as group:
            for router in dict.fromkeys(listed):
                self._open(group, router, self._read)
            if names:
                try:
                    await self._follow(group, list(dict.fromkeys(names)))
                finally:
                    for asked in self._asked.values():
                        asked.cancel()
            await self._leaving.wait()

    async def _follow(self, group: asyncio.TaskGroup, names: list[RouterName]) -> None:
        interval_s = self._config.resolve_interval_s
        leaving = group.create_task(self._leaving.wait())
        while not self._leaving.is_set():
            began_s = self._clock()
            self._wake.clear()
            looking = group.create_task(self._look_all_up(names))
            await asyncio.wait((looking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if self._leaving.is_set():
                looking.cancel()
                return
            self._bring_up_to_date(group)
            await _set(self._wake, interval_s * _CHANCE.uniform(0.8, 1.0))
            await _set(self._leaving, began_s + min(interval_s, LOOK_AGAIN_S_MIN) - self._clock())

    async def _look_all_up(self, names: Iterable[RouterName]) -> None:
        await asyncio.gather(*map(self._look_one_up, names))

    async def _look_one_up(self, name: RouterName) -> None:
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.ensure_future(self._look_up(name))
            asked.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody may come back for it
        done, _ = await asyncio.wait((asked,), timeout=LOOKUP_S)
        if not done:
            self._failed(name, f"no answer in {LOOKUP_S:g} s")
            return
        del self._asked[name]
        try:
            found = asked.result()
        except (OSError, UnicodeError) as error:
            self._failed(name, str(error))
            return
        self._known[name] = found
        self._failing.discard(name)

    def _failed(self, name: RouterName, reason: str) -> None:
        """Told once until there is an answer again."""
        if name not in self._failing:
            self._failing.add(name)
            kept = len(self._known.get(name, ()))
            self._log.warning("routers not looked up", name=str(name), reason=reason, kept=kept)

    def _bring_up_to_date(self, group: asyncio.TaskGroup) -> None:
        """Open links to addresses that have come, and close those that have been absent for long enough."""
        wanted: dict[Address, RouterName] = {}
        for name, addresses in self._known.items():
            for address in sorted(addresses, key=str):
                wanted.setdefault(address, name)
        for router, one in list(self._links.items()):
            if one.by_name:
                one.absent = 0 if router in wanted else one.absent + 1
                if one.absent >= ABSENT_LOOKUPS:
                    self._log.info("router gone", router=str(router), lookups=one.absent)
                    one.task.cancel()
                    del self._links[router]
        come = [at for at in wanted if at not in self._links]
        left_out = max(0, len(self._links) + len(come) - ROUTERS_MAX)
        for at in come[: len(come) - left_out]:
            self._log.info("router found", router=str(at), name=str(wanted[at]))
            self._open(group, at, self._by_name(wanted[at]), by_name=True)
        if left_out and not self._too_many_told:
            self._log.warning("too many routers: some are not told", left_out=left_out, routers_max=ROUTERS_MAX)
        self._too_many_told = bool(left_out)

    def _open(
        self,
        group: asyncio.TaskGroup,
        router: Address,
        read: Callable[[], Credentials | list[Fault]],
        *,
        by_name: bool = False,
    ) -> None:
        link = RouterLink(router, self._config.reconnect_backoff_s_max, self._clock, self._log, read, self._is_heard)
        for report in self._latest.values():
            link.offer(report)
        self._links[router] = _Linked(link, group.create_task(link.run()), by_name=by_name)

    def _by_name(self, name: RouterName) -> Callable[[], Credentials | list[Fault]]:
        """What a link reads before each connection: its router's certificate has the name that led there. Where it
        reads again the connection before has failed, and the router may be elsewhere."""
        loop = asyncio.get_running_loop()
        first = True

        def read() -> Credentials | list[Fault]:
            nonlocal first
            if not first:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._wake.set)
            first = False
            found = self._read()
            if isinstance(found, list) or found.server_name is not None:
                return found
            return structs.replace(found, server_name=name.host)

        return read


class _Linked:
    """A link to a router, and how it was found."""

    __slots__ = ("absent", "by_name", "link", "task")

    def __init__(self, link: RouterLink, task: asyncio.Task[None], *, by_name: bool) -> None:
        self.link = link
        self.task = task
        self.by_name = by_name
        self.absent = 0
        """Lookups in a row that lacked its address."""


async def _set(event: asyncio.Event, within_s: float) -> None:
    """Until the event is set, but no longer than that."""
    if within_s > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), within_s)
