"""One agent's stream, on its way to the workers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, cast

import grpc
from msgspec import Struct

from extproc.address import Address
from extproc.streams import Waits

SERVICE: Final = "extproc.pb.Nodes"
NAME: Final = "Report"
METHOD: Final = f"/{SERVICE}/{NAME}"
_OPTIONS: Final = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
_GONE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
"""How the stream of a worker ends that ended, or was ended."""

_Call = grpc.aio.StreamStreamCall[bytes, bytes]


class WorkerLink:
    """The connection to a worker's socket for agents."""

    def __init__(self, number: int, at: Address) -> None:
        self.number = number
        self._channel = grpc.aio.insecure_channel(str(at), options=_OPTIONS)
        self._report: Callable[..., _Call] = self._channel.stream_stream(METHOD)  # bytes as they are, both ways

    def stream(self) -> _Call:
        """A stream as an agent's."""
        return self._report()

    async def answers(self, within_s: float) -> bool:
        """Whether it ends a stream that says nothing."""
        call = self._report(_nothing())
        try:
            async with asyncio.timeout(within_s):
                return await call.code() is grpc.StatusCode.OK
        except TimeoutError:
            return False
        finally:
            call.cancel()

    async def close(self) -> None:
        """End what is open."""
        await self._channel.close()


class End(Struct, frozen=True):
    """How an agent's stream came to its end."""

    code: grpc.StatusCode
    reason: str
    doubted: tuple[int, ...] = ()
    """Workers that did not take a message in time, or are gone."""


class Passing:
    """Writes each message to all workers before the next is read. Acknowledgements are those of the first worker."""

    def __init__(
        self, context: "grpc.aio.ServicerContext[bytes, bytes]", links: Sequence[WorkerLink], relay_s_max: float
    ) -> None:
        self._context = context
        self._relay_s_max = relay_s_max
        self._waits = Waits()
        self._end: End | None = None
        self._telling_agent = False
        self.calls = {link.number: link.stream() for link in links}
        self._first = min(self.calls)

    def end(self, reason: str) -> None:
        """After the message in hand; with a reason the agent is told to come again."""
        self._ended(End(grpc.StatusCode.UNAVAILABLE if reason else grpc.StatusCode.OK, reason))

    async def run(self) -> End:
        """Until the agent or a worker ends it."""
        reading = [asyncio.create_task(self._read(number, call)) for number, call in self.calls.items()]
        for task in reading:
            task.add_done_callback(_heard)
        try:
            await self._waits.each(self._context, self._pass)
            if self._end is None:  # the agent has said all
                await asyncio.gather(*(call.done_writing() for call in self.calls.values()), return_exceptions=True)
                await asyncio.wait(reading, timeout=self._relay_s_max)
        finally:
            # Before the agent hears of it: when it comes again no worker takes the stream before for another agent's.
            # Reads end by that; a write to an agent that does not read ends with its RPC, and not before.
            for call in self.calls.values():
                call.cancel()
        return self._end or End(grpc.StatusCode.OK, "")

    async def _pass(self, message: bytes) -> None:
        writes = {number: asyncio.ensure_future(call.write(message)) for number, call in self.calls.items()}
        _, late = await asyncio.wait(writes.values(), timeout=self._relay_s_max)
        for write in writes.values():
            if write.done():
                _heard(write)  # its reader tells why its call has ended
            else:
                write.cancel()
        if late:
            # A worker whose acknowledgements the agent does not read takes nothing either: no fault of its own.
            blamed = () if self._telling_agent else tuple(number for number, one in writes.items() if one in late)
            self._ended(End(grpc.StatusCode.UNAVAILABLE, "a message was not taken in time", blamed))

    async def _read(self, number: int, call: _Call) -> None:
        """A worker's acknowledgements, until its stream ends; which ends the agent's, as it did."""
        try:
            while (told := await call.read()) is not grpc.aio.EOF:
                if number == self._first:
                    self._telling_agent = True
                    await self._context.write(cast(bytes, told))
                    self._telling_agent = False
            code, details = await call.code(), str(await call.details())
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), str(error.details())
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            code, details = grpc.StatusCode.UNAVAILABLE, "the stream has ended"
        gone = code in _GONE
        self._ended(End(grpc.StatusCode.UNAVAILABLE if gone else code, details, (number,) if gone else ()))

    def _ended(self, end: End) -> None:
        if self._end is None:
            self._end = end
            self._waits.end()


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def _heard(done: "asyncio.Future[None]") -> None:
    if not done.cancelled():
        done.exception()
