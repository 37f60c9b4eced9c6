"""Waiting for the next message of a gRPC stream in a way that a drain can end without harm.

A cancelled `context.read()` frees memory that gRPC's core may still write to. So the read is a task of its own, left
alone when nobody waits for it any more, and the handler waits for a bare future that the read's end or the drain sets.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc


class Waits:
    """The streams of one service that wait for their peer."""

    __slots__ = ("_ended", "_waiting")

    def __init__(self) -> None:
        self._ended = False
        self._waiting: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    async def read(self, context: grpc.aio.ServicerContext[Any, Any]) -> object:
        """The next message; EOF once there is none, or waiting was ended. Raises what the read raises."""
        if self._ended:
            return grpc.aio.EOF
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        read = asyncio.ensure_future(context.read())
        read.add_done_callback(partial(_wake, done))
        self._waiting.add(done)
        try:
            await done
        finally:
            self._waiting.discard(done)
        return read.result() if read.done() else grpc.aio.EOF

    async def each(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        take: Callable[[Any], Awaitable[None]],
        silence_s_max: float | None = None,
    ) -> bool:
        """Have every message taken, until there is none or waiting was ended. Raises what the read or `take` raises.

        False: it was waited for the next message for `silence_s_max`; nothing more is taken.

        As a loop over `read`, with one task for the whole stream instead of one for each message. What is being taken
        when waiting is ended is taken to its end.
        """
        if self._ended:
            return True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        silence = None if silence_s_max is None else _Silence(silence_s_max, done)
        taking = asyncio.ensure_future(self._take_each(context, take if silence is None else silence.of(take), done))
        taking.add_done_callback(partial(_wake, done))
        try:
            await done
        finally:
            self._waiting.discard(done)
            if silence is not None:
                silence.stop()
        if taking.done():
            taking.result()
        return silence is None or not silence.is_over

    async def _take_each(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        take: Callable[[Any], Awaitable[None]],
        done: "asyncio.Future[None]",
    ) -> None:
        while not (self._ended or done.done()):
            self._waiting.add(done)
            message = await context.read()
            self._waiting.discard(done)
            if done.done() or message is grpc.aio.EOF:
                return
            await take(message)

    def end(self) -> None:
        """Every stream reads EOF: those that wait, at once, and those that will."""
        self._ended = True
        for done in self._waiting:
            if not done.done():
                done.set_result(None)


class _Silence:
    """Sets `done` when no message came for so long. One timer looks now and then: messages only note the time.

    While one is being taken the peer is not silent, and gRPC could not end the stream: a write may be under way.
    """

    __slots__ = ("_done", "_longest_s", "_loop", "_since_s", "_taking", "_timer", "is_over")

    def __init__(self, longest_s: float, done: asyncio.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._longest_s = longest_s
        self._done = done
        self._since_s = self._loop.time()
        self._taking = False
        self._timer = self._loop.call_later(longest_s, self._look)
        self.is_over = False

    def of(self, take: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def taken(message: Any) -> None:
            self._taking = True
            await take(message)
            self._taking = False
            self._since_s = self._loop.time()

        return taken

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left_s = self._since_s + self._longest_s - self._loop.time()
        if left_s > 0 or self._taking:
            self._timer = self._loop.call_later(left_s if left_s > 0 else self._longest_s, self._look)
        elif not self._done.done():
            self.is_over = True
            self._done.set_result(None)


def _wake(done: asyncio.Future[None], read: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_result(None)
    elif not read.cancelled():
        read.exception()  # nobody waits; a read that fails as its RPC ends is no news
