"""The clients of a run: each request at its moment over a connection of its own, all from one event loop.

Little is looked at, so that it costs little: the head of an answer, its first content, its end. Times count from the
moment at which a request was due, whatever it was sent late.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from bench.engines.workloads import Timed
from extproc.address import TcpAddress

ANSWER_HEAD_BYTES_MAX: Final = 64 * 1024
_LOOK_S: Final = 0.1
_HEAD_END: Final = b"\r\n\r\n"
_CONTENT: Final = re.compile(rb'"content":"[^"]')
_DONE: Final = b"data: [DONE]"
_KEPT_BYTES: Final = len(_DONE) - 1
"""Of what came before, so that an end which comes in two pieces is seen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one client saw. Seconds since its request was due."""

    number: int
    """Of its request."""
    late_s: float
    """How long after its moment the request was sent."""
    status: int
    """0: no head of an answer came."""
    engine: str
    """Who answered, by its own word; empty: nobody, or Envoy or extproc themselves."""
    first_token_s: float | None
    ended_s: float
    """When the answer was whole, or was given up."""
    failure: str
    """Empty: a whole answer. Else `503` or another status, `cut`, `timeout`, or `refused` for a connection."""
    retry_after_s: int | None = None
    """What a refused client was told to wait."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how requests are sent."""

    entry: TcpAddress
    with_session: bool
    """Whether clients name their chat in the header x-session."""
    patience_s: float
    """A client leaves when for so long nothing of its answer came."""


class _Call(asyncio.Protocol):
    """One request on its own connection."""

    def __init__(self, asked: Timed, due_s: float, target: Target, over: Callable[[Outcome], None]) -> None:
        self._asked = asked
        self._due_s = due_s
        self._target = target
        self._over = over
        self._transport: asyncio.Transport | None = None
        self._late_s = 0.0
        self._received = bytearray()
        self._in_head = True
        self._status = 0
        self._engine = ""
        self._retry_after_s: int | None = None
        self._first_token_s: float | None = None
        self._failure: str | None = None
        self.heard_s = due_s
        """When something of the answer came last."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._failure is not None:
            self._transport.abort()
            return
        body = self._asked.body
        session = f"x-session: {self._asked.session}\r\n" if self._target.with_session else ""
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
            f"content-type: application/json\r\n{session}content-length: {len(body)}\r\n\r\n"
        )
        self._late_s = time.monotonic() - self._due_s
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        self._received += data
        if self._in_head and not self._read_head():
            return
        if self._status != 200:
            self._end(str(self._status), now_s)
            return
        if self._first_token_s is None:
            if _CONTENT.search(self._received) is None:
                return
            self._first_token_s = now_s - self._due_s
        self.heard_s = now_s
        if _DONE in self._received:
            self._end("", now_s)
        else:
            del self._received[:-_KEPT_BYTES]

    def connection_lost(self, _exc: Exception | None) -> None:
        self._end("cut", time.monotonic())

    def give_up(self, why: str) -> None:
        """The client leaves."""
        self._end(why, time.monotonic())

    def _read_head(self) -> bool:
        end = self._received.find(_HEAD_END)
        if end < 0:
            if len(self._received) > ANSWER_HEAD_BYTES_MAX:
                self._end("cut", time.monotonic())
            return False
        lines = self._received[:end].decode("latin-1").lower().split("\r\n")
        self._status = int(lines[0].split(" ")[1])
        headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self._engine = headers.get("x-engine", "")
        if (retry_after := headers.get("retry-after", "")).isdecimal():
            self._retry_after_s = int(retry_after)
        del self._received[: end + len(_HEAD_END)]
        self._in_head = False
        return True

    def _end(self, failure: str, now_s: float) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if self._transport is not None:
            self._transport.abort()
        self._over(
            Outcome(
                self._asked.number,
                self._late_s,
                self._status,
                self._engine,
                self._first_token_s,
                now_s - self._due_s,
                failure,
                self._retry_after_s,
            )
        )


async def ask_all(asked: Sequence[Timed], target: Target, answered: Callable[[int], None]) -> list[Outcome]:
    """Send every request at its moment, the first one now; what became of each, in their order.

    `answered` is told from time to time how many are over. Cancelling cuts off what is open.
    """
    loop = asyncio.get_running_loop()
    outcomes: dict[int, Outcome] = {}
    open_calls: dict[int, _Call] = {}
    begun_s = time.monotonic()

    def over(outcome: Outcome) -> None:
        outcomes[outcome.number] = outcome
        open_calls.pop(outcome.number, None)

    async def send(one: Timed) -> None:
        due_s = begun_s + one.at_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        call = open_calls[one.number] = _Call(one, due_s, target, over)
        try:
            await loop.create_connection(lambda: call, target.entry.host, target.entry.port)
        except OSError:
            call.give_up("refused")

    sending = [asyncio.create_task(send(one)) for one in asked]
    try:
        while len(outcomes) < len(asked):
            await asyncio.sleep(_LOOK_S)
            answered(len(outcomes))
            gone_s = time.monotonic() - target.patience_s
            for call in [call for call in open_calls.values() if call.heard_s < gone_s]:
                call.give_up("timeout")
    finally:
        for task in sending:
            task.cancel()
        for call in list(open_calls.values()):
            call.give_up("timeout")
    await asyncio.gather(*sending, return_exceptions=True)
    return [outcomes[one.number] for one in asked]
