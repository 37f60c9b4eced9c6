"""One port for agents: each agent's stream is passed on to every worker, byte for byte.

    agent ──► relay ──► worker 0 ──► acknowledgements ──► agent
                 ├────► worker 1      (those of the others are read and dropped)
                 └────► …

What is read of an agent's stream all workers have: so no worker lacks what an agent tells once, as its KV blocks. Where
that cannot be, since a worker ended, came, or does not read, the agent's stream ends, and the agent comes again within
a second and tells all anew.

An agent is read no faster than the slowest worker reads. A worker that takes no message for `RELAY_S_MAX` is left out
until it answers again.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import grpc
import structlog

from extproc.address import Address
from extproc.workers.passing import NAME, SERVICE, Passing, WorkerLink

RELAY_S_MAX: Final = 2.0
"""A worker that takes a message no sooner than this hangs."""
PROBE_S: Final = 0.5
"""How often it is asked whether it still does."""

_Context = grpc.aio.ServicerContext[bytes, bytes]


class Relay:
    """Passes on `extproc.pb.Nodes/Report`. Workers come and go by `up` and `down`."""

    def __init__(
        self, log: structlog.typing.FilteringBoundLogger, *, streams_max: int, relay_s_max: float = RELAY_S_MAX
    ) -> None:
        self._log = log
        self._streams_max = streams_max
        self._relay_s_max = relay_s_max
        self._links: dict[int, WorkerLink] = {}
        self._doubted: dict[int, asyncio.Task[None]] = {}
        self._streams: set[Passing] = set()
        self._streams_open = 0
        self._draining = False

    @property
    def streams_open(self) -> int:
        """Agents connected."""
        return self._streams_open

    def up(self, number: int, at: Address) -> None:
        """A worker listens. Agents that it does not hear come again."""
        assert number not in self._links, "a worker goes down before it comes again"
        self._links[number] = WorkerLink(number, at)
        self._end_all("a worker has come")

    async def down(self, number: int) -> None:
        """A worker has ended."""
        link = self._links.pop(number, None)
        if (probing := self._doubted.pop(number, None)) is not None:
            probing.cancel()
        if link is not None:
            for one in list(self._streams):
                if number in one.calls:
                    one.end("a worker has ended")
            await link.close()

    def drain(self) -> None:
        """End every stream after the message in hand, and every new one at once: agents go elsewhere."""
        self._draining = True
        self._end_all("")

    async def close(self) -> None:
        """Let go of all workers."""
        for number in list(self._links):
            await self.down(number)

    async def report(self, _: AsyncIterator[bytes], context: _Context) -> None:
        """One agent's stream."""
        if self._streams_open >= self._streams_max:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent_streams_max is {self._streams_max}")
        if self._draining:
            return
        heard = [link for number, link in self._links.items() if number not in self._doubted]
        if not heard:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no worker is there")
        passing = Passing(context, sorted(heard, key=lambda link: link.number), self._relay_s_max)
        self._streams_open += 1
        self._streams.add(passing)
        try:
            end = await passing.run()
        finally:
            self._streams.discard(passing)
            self._streams_open -= 1
        for number in end.doubted:
            self._doubt(number)
        if end.code is not grpc.StatusCode.OK:
            await context.abort(end.code, end.reason)

    def _end_all(self, reason: str) -> None:
        for one in list(self._streams):
            one.end(reason)

    def _doubt(self, number: int) -> None:
        link = self._links.get(number)
        if link is None or number in self._doubted:
            return
        self._log.warning("a worker does not hear agents; they go on without it", worker=number)
        self._doubted[number] = asyncio.create_task(self._probe(number, link))
        for one in list(self._streams):
            if number in one.calls:
                one.end("a worker does not answer")

    async def _probe(self, number: int, link: WorkerLink) -> None:
        while not await link.answers(self._relay_s_max):  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(PROBE_S)
        self._log.info("a worker hears agents again", worker=number)
        del self._doubted[number]
        self._end_all("a worker has come")


def register(server: grpc.aio.Server, relay: Relay) -> None:
    """Serve the agents on this server."""
    # Without serializers: bytes as they are, both ways.
    report: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(cast(Any, relay.report))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {NAME: report}),))
