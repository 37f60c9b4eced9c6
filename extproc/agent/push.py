"""Telling one router: a stream that is opened again and again, and the latest report of each node to send on it."""

import asyncio
import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from extproc.address import Address
from extproc.agent.credentials import PLAIN, Credentials
from extproc.agent.kv.told import KvTold
from extproc.agent.standby import BUS_FIRST_S, Standby
from extproc.agent.telling import Telling
from extproc.agent.wire import Report, goodbye_message
from extproc.core.settings import Fault
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, RouterMessage
from extproc.pb.nodes_pb2_grpc import NodesStub

PAUSE_S_MIN = 0.1
FIRST_PAUSE_S_MAX = 1.0
"""Agents whose router is back at once shall not come all in the same moment, nor late."""
GATHER_S = 0.1
"""So long reports wait for those of other nodes, to be one message with them; their age says so."""
GATHER_NODES_MIN = 8
"""Of fewer nodes hardly any two reports come in that time."""
REASON_LENGTH_MAX = 300
REASONS_KEPT_MAX = 1000
REPEAT_S = 60.0
"""After this long it is said again why a router is not reached."""
REASONS_TOLD_MAX = 10
"""In `REPEAT_S`: who answers at the router's address may word every one anew."""
_OPTIONS = [
    # A router that is gone without a word is noticed by unanswered pings.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # what gRPC 1.85 goes by
    # An address where nobody answers at all is given up after this, instead of gRPC's 20 s: a router that comes back
    # elsewhere under the same name is then looked for anew.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.http2.bdp_probe", 0),  # pings with the acknowledgements, for a window that these never fill
    ("grpc.use_local_subchannel_pool", 1),  # a new channel must not inherit the pause of the one before
]
_NUMBER = re.compile(r"\d+")
_CLOSED = re.compile("Socket closed|Connection reset|Broken pipe")
"""What gRPC says where a handshake succeeds here and the router then does not like us, or there was none."""
_CHANCE = random.SystemRandom()

Call = grpc.aio.StreamStreamCall[AgentMessage, RouterMessage]


class RouterLink:
    """Keeps one router informed. Only the latest report of a node is kept: a slow router misses the ones between."""

    def __init__(
        self,
        router: Address,
        backoff_s_max: float,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        credentials: Callable[[], Credentials | list[Fault]] = lambda: PLAIN,
        is_heard: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`credentials` is asked before each connection, in a thread. `is_heard`: whether a router, by its name, is on
        the bus where all reports are published too."""
        self._router = router
        self._credentials = credentials
        self._backoff_s_max = backoff_s_max
        self._clock = clock
        self._log = log.bind(router=str(router))
        self._latest: dict[str, Report] = {}
        self._unsent: dict[str, None] = {}
        self._something = asyncio.Event()
        self._leaving = asyncio.Event()
        self._telling = Telling()
        self._standby = Standby(is_heard, clock)
        self._kv_told = KvTold()
        self._connected = False
        self._since_s: float | None = None
        self._reason: str | None = None
        self._failures = 0
        self._reasons_logged: set[tuple[str, str]] = set()
        self._reasons_told_s: dict[str, float] = {}
        """Why the router was not reached lately, without numbers, and when that was told."""

    def offer(self, report: Report) -> None:
        """Send this as soon as the router takes it, instead of an earlier report of the node; unless the router is
        known to have it from a bus."""
        self._latest[report.snapshot.node_id] = report
        if self._standby.needs(report):
            self._unsent[report.snapshot.node_id] = None
            self._something.set()
        if report.kv is not None:
            self._kv_told.offer(report.kv, self._clock())
            self._something.set()

    def look(self) -> None:
        """`is_heard` may have another answer, or the router said that it misses something: send what was spared."""
        if missed := self._standby.missed():
            self._unsent |= dict.fromkeys(missed)
            self._something.set()

    def shown(self) -> dict[str, Any]:
        """Whether the router is connected, ready for JSON: `for_s` says how long that is so, `reason` why it is not.
        `rests`: it has what is reported from the bus."""
        shown = {"router": str(self._router), "connected": self._connected}
        if self._since_s is None:
            return shown
        reason = {} if self._connected else {"reason": self._reason}
        rests = {"rests": True} if self._connected and self._standby.rests else {}
        return shown | {"for_s": round(self._clock() - self._since_s, 3)} | reason | rests

    def leave(self) -> None:
        """Say goodbye for every node, if the router is there, and let `run` end."""
        self._leaving.set()
        self._something.set()

    async def run(self) -> None:
        """Keep the stream open until `leave`, with jittered exponential pauses between the attempts."""
        while not self._leaving.is_set():
            reason = await self._session()
            if self._leaving.is_set():
                return
            self._reason = reason
            if self._connected or self._since_s is None:
                self._since_s = self._clock()
            if self._connected:
                self._log.warning("router lost", reason=reason)
            else:
                self._not_reached(reason)
            self._failures = 1 if self._connected else self._failures + 1
            self._connected = False
            longest_s = min(self._backoff_s_max, FIRST_PAUSE_S_MAX * 2 ** min(self._failures - 1, 30))
            try:
                await asyncio.wait_for(self._leaving.wait(), _CHANCE.uniform(PAUSE_S_MIN, longest_s))
            except TimeoutError:
                continue

    async def _session(self) -> str:
        """One stream, from its opening to its end; why it ended."""
        credentials = await asyncio.to_thread(self._credentials)
        if isinstance(credentials, list):
            return "; ".join(map(str, credentials))[:REASON_LENGTH_MAX]
        async with credentials.open(self._router, _OPTIONS) as channel:
            call: Call = NodesStub(channel).Report(metadata=credentials.metadata)  # type: ignore[no-untyped-call]
            self._telling = Telling()
            self._kv_told.begin()
            self._standby.begin(self._latest)
            self._unsent = dict.fromkeys(self._latest)
            if self._unsent:
                self._something.set()
            writing = asyncio.create_task(self._write(call))
            reading = asyncio.create_task(self._read(call))
            try:
                await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
                        writing.result()  # the stream's end, if it is that, is told better by the reader
                await reading
                return "the router ended the stream"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {(error.details() or '')[:REASON_LENGTH_MAX]}"
                closed = error.code() is grpc.StatusCode.UNAVAILABLE and not self._connected and _CLOSED.search(reason)
                return f"{reason}; {credentials.hint}" if closed and credentials.hint else reason
            finally:
                call.cancel()
                for task in (writing, reading):
                    task.cancel()
                await asyncio.gather(writing, reading, return_exceptions=True)

    async def _write(self, call: Call) -> None:
        while not self._leaving.is_set():
            while (self._unsent or self._kv_told) and not self._leaving.is_set():
                if self._unsent:
                    await call.write(self._telling.message(self._unsent, self._latest, self._clock()))
                else:
                    await call.write(self._kv_told.message())
            if not self._leaving.is_set():
                self._something.clear()
                await self._something.wait()
                if pause_s := self._pause_s():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._leaving.wait(), pause_s)
        for report in self._latest.values():
            await call.write(goodbye_message(report))
        await call.done_writing()
        self._log.info("goodbye said", nodes=len(self._latest))

    def _pause_s(self) -> float:
        """How long what is to be sent may wait."""
        if self._unsent and self._standby.is_second:
            return BUS_FIRST_S
        gathers = self._telling.takes_several and len(self._latest) >= GATHER_NODES_MIN
        return GATHER_S if gathers else 0.0

    async def _read(self, call: Call) -> None:
        while isinstance(message := await call.read(), RouterMessage):
            now_s = self._clock()
            self._telling.acknowledged(message.acknowledgement, now_s)
            self._standby.acknowledged(message.acknowledgement, now_s)
            if not self._connected:
                self._connected, self._since_s = True, now_s
                self._failures = 0
                self._log.info("router reached")
            if message.acknowledgement.verdict == Acknowledgement.VERDICT_REFUSED:
                self._refused(message.acknowledgement)
            if message.acknowledgement.verdict == Acknowledgement.VERDICT_MISSED:
                self.look()

    def _not_reached(self, reason: str) -> None:
        """Log why: each reason at once, and again while it lasts; those that differ in numbers only are one."""
        now_s = self._clock()
        told_s = {key: at_s for key, at_s in self._reasons_told_s.items() if now_s - at_s < REPEAT_S}
        key = _NUMBER.sub("#", reason)
        if key not in told_s and len(told_s) < REASONS_TOLD_MAX:
            told_s[key] = now_s
            self._log.warning("router not reached", reason=reason)
        self._reasons_told_s = told_s

    def _refused(self, acknowledgement: Acknowledgement) -> None:
        """Log a refusal once; reasons that differ in numbers only, as ages do, are one."""
        what = "KV blocks" if self._kv_told.refused(acknowledgement, self._clock()) else "snapshot"
        reason = acknowledgement.reason[:REASON_LENGTH_MAX]
        key = (acknowledgement.node_id, _NUMBER.sub("#", reason))
        if key not in self._reasons_logged and len(self._reasons_logged) < REASONS_KEPT_MAX:
            self._reasons_logged.add(key)
            self._log.warning(f"{what} refused", node_id=acknowledgement.node_id, reason=reason)
