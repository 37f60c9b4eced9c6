"""The gRPC service that Envoy asks: reads messages, lets the stream's `Session` answer, writes the replies.

A stream lasts as long as its request, answer included; its end is how we know that a node is free again. So most
streams are decided and rest until Envoy ends them, or says something about the response: that is rare, unless a route
shows us answers piece by piece. Then a stream can be left at the first token, where Envoy's access log tells the end.

No request fails for a fault of ours: an exception is logged and counted, and the request goes on by the fallback, or
without a destination.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import count
from typing import NamedTuple, Protocol

import grpc
import structlog
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server

from extproc.config import ServeLimits
from extproc.core.balancer import Balancer
from extproc.core.request import TokenCount
from extproc.gateway import codec, policysource
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    Acknowledge,
    Action,
    Admitted,
    BodyMode,
    Continue,
    CountTokens,
    HeadersWanted,
    Respond,
    TokensCounted,
    Wait,
)
from extproc.gateway.replies import Replies, replies_to
from extproc.gateway.requesthead import mode_of
from extproc.gateway.routepolicy import RoutePolicies, headers_wanted
from extproc.gateway.session import Session
from extproc.gateway.waiting import WaitingRequests
from extproc.ops.metrics import Metrics
from extproc.prompt import CountedPrompt, Prompt
from extproc.streams import Waits

log = structlog.get_logger()

_MESSAGE_MARGIN_BYTES = 2 * 1024 * 1024
"""A gRPC message is larger than the body in it; a body a little over the limit still gets its 413. And where bodies are
kept short an access log's message must pass all the same: Envoy gathers 1 MiB, as shipped, before the last entry."""
_METADATA_MARGIN_BYTES = 32 * 1024
"""For all that stands in a stream's gRPC metadata beside policies."""
_PING_INTERVAL_MIN_MS = 5_000
"""Envoy may ping as often as this, with streams or without."""

_Context = grpc.aio.ServicerContext[ProcessingRequest, ProcessingResponse]


class TokenCounter(Protocol):
    """Counts prompts. Never raises: where it cannot count it estimates."""

    def count(
        self, model: str, prompt: Prompt, body_bytes: int, late: Callable[[TokenCount], None]
    ) -> CountedPrompt | Awaitable[CountedPrompt]:
        """Count at once where that takes no time. `late` is told a count that was not there within its budget."""


def grpc_options(limits: ServeLimits) -> list[tuple[str, int]]:
    """What a gRPC server for Envoy must allow: the longest body, and the longest policy of a filter and of a route."""
    metadata_bytes_max = 2 * limits.policy_bytes_max + _METADATA_MARGIN_BYTES
    return [
        ("grpc.max_receive_message_length", limits.body_bytes_max + _MESSAGE_MARGIN_BYTES),
        ("grpc.max_metadata_size", metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", metadata_bytes_max),  # else gRPC refuses at random a quarter beyond it
        ("grpc.max_concurrent_streams", 2**31 - 1),  # the limit on streams is the server's, over all connections
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MIN_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_INTERVAL_MIN_MS),
    ]


def register(server: grpc.aio.Server, processor: "ExternalProcessor") -> None:
    """Let a server serve Envoy."""
    add_ExternalProcessorServicer_to_server(processor, server)


class ExternalProcessor:
    """Envoy's `ExternalProcessor` service: one `Session` for each stream.

    `boot` names this start of the process: a few characters that no other start has. `ends_are_told` says whether an
    access log reaches us: no stream is left whose end we would never learn.
    """

    def __init__(
        self,
        balancer: Balancer,
        policies: RoutePolicies,
        counter: TokenCounter,
        limits: ServeLimits,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        boot: str,
        ends_are_told: Callable[[], bool],
    ) -> None:
        self._balancer = balancer
        self._policies = policies
        self._counter = counter
        self._limits = limits
        self._budget = BodyBudget(limits.body_bytes_total_max)
        self._metrics = metrics
        self._clock = clock
        self._boot = boot
        self._ends_are_told = ends_are_told
        self._request_ids = count(1)
        self._streams_open = 0
        self._draining = False
        self._rests = Waits()
        self._waiting = WaitingRequests(balancer, clock, lambda: self._our_error("admit"))
        metrics.queue.watch(lambda: balancer.waiting)
        metrics.requests.watch(lambda: self._streams_open, lambda: self._budget.bytes_reserved)

    @property
    def streams_open(self) -> int:
        """Requests that Envoy has open with us."""
        return self._streams_open

    def drain(self) -> None:
        """Take no new streams, end each open one with gRPC OK as soon as it is decided. Envoy goes on without us.

        Who waits for room is turned away: its client may find it elsewhere.
        """
        self._draining = True
        self._waiting.drain()
        self._rests.end()

    async def Process(self, request_iterator: AsyncIterator[ProcessingRequest], context: _Context) -> None:  # noqa: ARG002, N802
        """One request of Envoy's."""
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        # Not by the server's own `maximum_concurrent_rpcs`: that would refuse health checks too, and Envoy would take
        # a busy processor for a dead one.
        if self._streams_open >= self._limits.streams_max:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"streams_max is {self._limits.streams_max}")
        # All that is wanted of the context is read here: once its RPC has ended it must not be touched.
        metadata = context.invocation_metadata() or ()
        self._streams_open += 1
        try:
            message = await context.read()
            if message is not grpc.aio.EOF:
                await self._converse(self._open(context, metadata, message), message)
        finally:
            self._streams_open -= 1

    async def _converse(self, stream: "_Stream", message: ProcessingRequest) -> None:
        session, replies, context = stream.session, stream.replies, stream.context
        try:
            while message is not grpc.aio.EOF:
                was_decided = session.decided
                action = await self._action(stream, message)
                if session.leaves and replies.can_leave and self._leave(session):
                    return  # which sends the message on its way as well, for less
                for reply in self._replies(stream, message, action):
                    await context.write(reply)
                    del reply
                del message, action  # each may be a whole body, and the next message may be hours away
                if session.decided and not was_decided:
                    session.written()
                    self._settle()
                rests = session.decided and replies.is_through
                message = await (self._rests.read(context) if rests else context.read())
        finally:
            session.close(self._clock())

    def _open(
        self, context: _Context, metadata: Iterable[tuple[str, str | bytes]], first: ProcessingRequest
    ) -> "_Stream":
        try:
            asked = policysource.asked(metadata) or policysource.asked_in(first)
            policy, fault = self._policies.of(asked, policysource.destination(metadata))
        except Exception:  # noqa: BLE001
            self._our_error("policies")
            policy, fault = self._policies.default, "could not be read"
        if fault is not None:
            self._metrics.requests.policy_fault()
        # Envoy may tell of a request after a restart of ours, so no number is used twice over all starts.
        request_id = f"{self._boot}-{next(self._request_ids)}"
        strict = self._policies.strict
        session = Session(self._balancer, policy, fault, self._budget, self._limits, request_id, strict=strict)
        passing = Continue(unnamed=policy.destination)
        return _Stream(session, headers_wanted(policy), mode_of(first), replies_to(first), passing, context)

    def _replies(self, stream: "_Stream", message: ProcessingRequest, action: Action) -> Iterator[ProcessingResponse]:
        try:
            yield from stream.replies.to(message, action)
        except Exception:  # noqa: BLE001
            self._our_error("reply")
            yield from stream.replies.to(message, stream.passing)

    async def _action(self, stream: "_Stream", message: ProcessingRequest) -> Action:
        session = stream.session
        was_decided = session.decided
        try:
            action, began_s = await self._answer(stream, message)
        except Exception:  # noqa: BLE001
            self._our_error("answer")
            action, began_s = (Acknowledge(), 0.0) if was_decided else self._recover(stream)
        if session.decided and not was_decided:
            self._note(session, action, time.perf_counter() - began_s)
        return action

    async def _answer(self, stream: "_Stream", message: ProcessingRequest) -> tuple[Action, float]:
        """The action, and since when it was chosen."""
        session = stream.session
        event = codec.event_of(message, stream.wanted, stream.mode)
        began_s = time.perf_counter()
        action = session.receive(event, self._clock())
        prompt: CountedPrompt | None = None
        if isinstance(action, CountTokens):
            counted = self._counter.count(action.model, action.prompt, action.body_bytes, session.recount)
            prompt = counted if isinstance(counted, CountedPrompt) else await counted
            began_s = time.perf_counter()
            action = session.receive(TokensCounted(prompt), self._clock())
        if isinstance(action, Wait):
            del event, prompt  # they hold the body
            patience = None
            if stream.replies.can_wait:
                # Envoy would take us for dead, long before the request's time is up.
                patience = stream.context.write(codec.hold(action.until_s - self._clock()))
            try:
                decision = await self._waiting.decision(session.request_id, patience)
            except asyncio.CancelledError:
                self._metrics.queue.gone(action.priority, self._clock() - action.since_s)
                raise
            began_s = time.perf_counter()
            action = session.receive(Admitted(decision), self._clock())
        return action, began_s

    def _recover(self, stream: "_Stream") -> tuple[Action, float]:
        began_s = time.perf_counter()
        try:
            return stream.session.recover(self._clock()), began_s
        except Exception:  # noqa: BLE001
            self._our_error("recovery")
            return stream.passing, began_s

    def _settle(self) -> None:
        try:
            self._balancer.settle()
        except Exception:  # noqa: BLE001
            self._our_error("settle")

    def _leave(self, session: Session) -> bool:
        """Whether the stream may end now."""
        try:
            if self._ends_are_told():
                session.leave(self._clock())
                return True
        except Exception:  # noqa: BLE001
            self._our_error("leave")
        return False

    def _note(self, session: Session, action: Action, seconds: float) -> None:
        try:
            if session.decision is not None:
                self._metrics.requests.decided(session.decision, seconds)
                self._metrics.queue.decided(session.decision)
            if isinstance(action, Respond):
                self._metrics.requests.responded(action.code)
        except Exception:  # noqa: BLE001
            self._our_error("metrics")

    def _our_error(self, where: str) -> None:
        log.exception("error of ours; the request goes on", where=where)
        self._metrics.our_error(where)


class _Stream(NamedTuple):
    session: Session
    wanted: HeadersWanted
    mode: BodyMode
    replies: Replies
    passing: Continue
    """The last resort after errors of ours: the request goes on, and nowhere that its client named."""
    context: _Context
