"""Hearing an engine's KV events over ZeroMQ: one socket for each of its publishers.

A message has three frames: topic, number (8 bytes, big-endian) and payload. Where a number is left out, the engine is
asked for what was missed, if it keeps that: at its replay endpoint (a ROUTER) it answers a number with all messages
from there on that it still has, and then the number -1.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog
import zmq
import zmq.asyncio

from extproc.agent.kv.pace import Pace
from extproc.agent.kv.settings import KvEventsConfig, at_rank
from extproc.agent.kv.watch import KvWatch

RETRY_S: Final = 5.0
"""After this long a socket that could not be opened is tried again."""
REOPEN_S: Final = 0.2
"""And one whose engine is gone."""
REPLAY_S: Final = 5.0
"""How long messages that are sent again may take to come."""
MESSAGES_WAITING_MAX: Final = 1000
"""That have come and were not taken yet. Further ones are missed."""
REPLAYED_WAITING_MAX: Final = 10_000
"""Of those that are sent again; as many as vLLM keeps."""
RECONNECT_MS: Final = 100
RECONNECT_MS_MAX: Final = 2000
_NUMBER_BYTES: Final = 8
_END: Final = b"\xff" * _NUMBER_BYTES
_OVER: Final = object()

Message = tuple[int, bytes]
Socket = zmq.asyncio.Socket


class KvSubscriber:
    """Hears one engine's publishers until it is cancelled. No engine makes it raise."""

    def __init__(
        self,
        config: KvEventsConfig,
        watch: KvWatch,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._config = config
        self._watch = watch
        self._clock = clock
        self._log = log
        self._pace = Pace(clock)

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Hear them."""
        await asyncio.gather(*(self._keep_hearing(context, rank) for rank in range(self._config.ranks)))

    async def _keep_hearing(self, context: zmq.asyncio.Context, rank: int) -> None:
        told = ""
        while True:
            try:
                await self._hear(context, rank)
                await asyncio.sleep(REOPEN_S)
            except zmq.ZMQError as error:
                if str(error) != told:
                    told = str(error)
                    self._log.warning("KV events not heard", endpoint=self._endpoint(rank), reason=told)
                await asyncio.sleep(RETRY_S)

    def _endpoint(self, rank: int) -> str:
        return at_rank(self._config.endpoint, rank)

    async def _hear(self, context: zmq.asyncio.Context, rank: int) -> None:
        """Until the connection is gone: ZeroMQ opens another by itself, but not to whom it has hung up on."""
        with self._socket(context, zmq.SUB, MESSAGES_WAITING_MAX) as socket:
            socket.subscribe(self._config.topic)
            if self._config.bind:
                socket.bind(self._endpoint(rank))
                await self._take_all(context, socket, rank)
            else:
                hung_up = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
                socket.connect(self._endpoint(rank))
                taking = asyncio.create_task(self._take_all(context, socket, rank))
                ending = asyncio.ensure_future(hung_up.recv_multipart())
                try:
                    await asyncio.wait((taking, ending), return_when=asyncio.FIRST_COMPLETED)
                    if taking.done():
                        taking.result()
                finally:
                    for task in (taking, ending):
                        task.cancel()
                    await asyncio.gather(taking, ending, return_exceptions=True)
                    socket.disable_monitor()
                    hung_up.close()

    async def _take_all(self, context: zmq.asyncio.Context, socket: Socket, rank: int) -> None:
        if self._config.replay is not None:
            await self._hear_again(context, rank, 0, 1)
        while True:
            frames = await socket.recv_multipart()  # lets nobody else go on where one is ready
            message = _message_of(frames)
            if message is None:
                self._watch.counts.malformed += 1
                self._pace.took(await self._pace.turn())
                continue
            number, payload = message
            missing = self._watch.missing_before(rank, number)
            if missing is not None and self._config.replay is not None:
                await self._hear_again(context, rank, missing, number)
            await self._take(rank, number, payload)

    async def _take(self, rank: int, number: int, payload: bytes, before: int | None = None) -> None:
        """One message, while others have their turn."""
        with contextlib.closing(self._watch.hear_in_slices(rank, number, payload, self._clock(), before)) as slices:
            going_on = True
            while going_on:
                since_s = await self._pace.turn()
                going_on = next(slices, _OVER) is not _OVER
                self._pace.took(since_s)

    async def _hear_again(self, context: zmq.asyncio.Context, rank: int, first: int, before: int) -> None:
        """Take all from this number on that the engine sends again, in `REPLAY_S` at most."""
        assert self._config.replay is not None
        with self._socket(context, zmq.DEALER, REPLAYED_WAITING_MAX) as socket, contextlib.suppress(TimeoutError):
            socket.connect(at_rank(self._config.replay, rank))
            async with asyncio.timeout(REPLAY_S):
                await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
                while (frames := await socket.recv_multipart())[-2:-1] != [_END]:
                    if (message := _message_of(frames)) is not None:
                        await self._take(rank, *message, before)
                    else:
                        self._pace.took(await self._pace.turn())
            self._watch.all_heard_again(rank)

    @contextlib.contextmanager
    def _socket(self, context: zmq.asyncio.Context, kind: int, waiting_max: int) -> Iterator[Socket]:
        socket = context.socket(kind)
        try:
            socket.linger = 0
            socket.ipv6 = True
            socket.rcvhwm = waiting_max
            socket.maxmsgsize = self._config.message_bytes_max
            socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MS_MAX
            yield socket
        finally:
            socket.close()


def _message_of(frames: Sequence[bytes]) -> Message | None:
    if len(frames) < 3 or len(frames[-2]) != _NUMBER_BYTES:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]
