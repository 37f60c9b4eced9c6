"""One request's conversation with Envoy, without I/O: an event in, an action out.

    OPENED ── headers ──► BODY ── the whole body ──► COUNTING ── tokens counted ──► DECIDED
       │                   │
       └───────────────────┴── nothing to count, or a refusal ────────────────────► DECIDED

OPENED    Nothing has come. The headers tell whether there is a body, whether it is inference, and how many bytes the
          client claims. A large claim must find room here, before Envoy buffers the body. No body, or no inference: the
          fallback's node is named in the reply to the headers.
BODY      Pieces are gathered until the body is whole; how it was cut never matters. Each must find room as it comes.
          Over a limit the client is answered at once. Whole: parsed, and the tokens asked for.
COUNTING  The one state that waits for us and not for Envoy.
DECIDED   The reply to the latest message carried the decision. Whatever comes now is acknowledged; what it shows of the
          answer is looked at (`answerwatch`). The stream stays open for as long as the response runs, or until it is
          left: closing the session ends the balancer's reservation.

Room is given back at the decision, or at the stream's end; that of a body that nobody reads, when it has come.
"""

import enum
from typing import assert_never

from msgspec.structs import replace

from extproc.config import ServeLimits
from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen, Decision, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.request import CountSource, Endpoint, InferenceRequest, TokenCount
from extproc.gateway import answers, openai
from extproc.gateway.answerwatch import AnswerWatch
from extproc.gateway.budget import BodyBudget, BodyShare
from extproc.gateway.conversation import (
    Acknowledge,
    Action,
    Continue,
    CountTokens,
    Event,
    Metadata,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    Respond,
    ResponseBody,
    ResponseHeaders,
    ResponseMessage,
    SetDestination,
    TokensCounted,
)
from extproc.prompt import CountedPrompt

BUDGET_RETRY_AFTER_S = 1
"""What clients are told to wait when bodies fill their share of memory."""

_ACKNOWLEDGE = Acknowledge()


class _State(enum.Enum):
    OPENED = enum.auto()
    BODY = enum.auto()
    COUNTING = enum.auto()
    DECIDED = enum.auto()


class Session:
    """One request. `receive` answers each event by one action; `close` must be called once the stream has ended."""

    __slots__ = (
        "_balancer",
        "_body_in_one",
        "_bytes_come",
        "_chunks",
        "_endpoint",
        "_limits",
        "_longest_field",
        "_parsed",
        "_policy",
        "_policy_fault",
        "_request_id",
        "_routed",
        "_sequences",
        "_share",
        "_state",
        "_trace_id",
        "_watch",
        "decision",
    )

    def __init__(
        self,
        balancer: Balancer,
        policy: RoutingPolicy,
        policy_fault: str | None,
        body_budget: BodyBudget,
        limits: ServeLimits,
        request_id: str,
    ) -> None:
        self._balancer = balancer
        self._policy = policy
        self._policy_fault = policy_fault
        self._share = BodyShare(body_budget)
        self._limits = limits
        self._request_id = request_id
        self._trace_id = ""
        self._state = _State.OPENED
        self._endpoint: Endpoint | None = None
        self._body_in_one = False
        self._chunks: list[bytes] = []
        self._bytes_come = 0
        self._parsed: openai.ParsedBody | None = None
        self._routed: InferenceRequest | None = None
        self._sequences: int | None = None
        self._longest_field: str | None = None
        self._watch = AnswerWatch(balancer, request_id, leaves_early=policy.leave_after_first_token)
        self.decision: Decision | None = None
        """The balancer's; `None` as well where a client was refused without asking it."""

    @property
    def decided(self) -> bool:
        """Whether the latest action carried the decision, or an earlier one did."""
        return self._state is _State.DECIDED

    @property
    def leaves(self) -> bool:
        """Whether the stream may be left, after the reply to the latest event."""
        return self._watch.leaves

    def receive(self, event: Event, now_s: float) -> Action:
        """Answer one event. Never raises for what an event says; what the core raises goes through: see `recover`."""
        match event:
            case RequestHeaders():
                return self._headers(event, now_s) if self._state is _State.OPENED else _ACKNOWLEDGE
            case RequestBody():
                if self._state is _State.BODY:
                    return self._body(event, now_s)
                self._drop_body()
                return _ACKNOWLEDGE
            case TokensCounted():
                assert self._state is _State.COUNTING, "tokens counted that were not asked for"
                return self._route(event.prompt, now_s)
            case RequestTrailers():
                # Without a whole body before them it is too late to name a node: their reply cannot set headers.
                self._drop_body()
                self._state = _State.DECIDED
                return _ACKNOWLEDGE
            case ResponseHeaders():
                if self.decided:  # before, it is Envoy's own
                    self._watch.begins(event.status, now_s)
                return _ACKNOWLEDGE
            case ResponseBody():
                if self.decided:
                    self._watch.goes_on(event, now_s)
                return _ACKNOWLEDGE
            case ResponseMessage():
                return _ACKNOWLEDGE
            case _:
                assert_never(event)

    def recover(self, now_s: float) -> Action:
        """After an error of ours: what was decided already, or else the fallback's node."""
        if not self.decided:
            return self._fallback(now_s)
        return _ACKNOWLEDGE if self.decision is None else self._carry_out(self.decision)

    def recount(self, count: TokenCount) -> None:
        """The tokens were estimated for the decision and are counted now. Ignored once the stream has ended."""
        if self._routed is not None:
            self._balancer.recount(replace(self._routed, prompt=count))

    def leave(self, now_s: float) -> None:
        """The stream is ended by us, before the answer's end."""
        self._watch.leave(now_s)

    def close(self, now_s: float) -> None:
        """The stream has ended: give everything back, but for the reservation of a stream that was left. Idempotent."""
        self._state = _State.DECIDED
        self._drop_body()
        self._routed = None
        self._watch.close(now_s)

    def _headers(self, headers: RequestHeaders, now_s: float) -> Action:
        self._trace_id = headers.trace_id
        self._body_in_one = headers.body_in_one
        self._state = _State.BODY
        if not headers.end_of_stream:
            refusal = self._claim(headers.content_length or 0)
            if refusal is not None:
                return refusal
            self._endpoint = openai.endpoint_of(headers.method, headers.path)
        if self._endpoint is None:
            return self._fallback(now_s, body_follows=not headers.end_of_stream)
        return _ACKNOWLEDGE

    def _body(self, body: RequestBody, now_s: float) -> Action:
        refusal = self._hold(len(body.data))
        if refusal is not None:
            return refusal
        self._chunks.append(body.data)
        if not (body.end_of_stream or self._body_in_one):
            return _ACKNOWLEDGE
        if self._bytes_come == 0:
            return self._fallback(now_s)
        assert self._endpoint is not None, "only bodies of inference paths are gathered"
        parsed = openai.parse(self._endpoint, b"".join(self._chunks), self._limits.body_items_max)
        if isinstance(parsed, openai.BodyFault):
            return self._respond(answers.INVALID, parsed.message, parsed.param)
        self._parsed = parsed
        self._chunks.clear()
        self._state = _State.COUNTING
        return CountTokens(parsed.model, parsed.prompt, self._bytes_come)

    def _route(self, counted: CountedPrompt, now_s: float) -> Action:
        parsed = self._parsed
        assert parsed is not None, "parsed before counting"
        count = counted.count
        request = InferenceRequest(
            request_id=self._request_id,
            model=parsed.model,
            endpoint=parsed.endpoint,
            prompt=replace(count, exact=False) if count.exact and not parsed.length_binds else count,
            prompt_blocks=counted.blocks,
            output_tokens_max=parsed.output_tokens_max,
            sequences=parsed.sequences,
            trace_id=self._trace_id,
        )
        self._sequences = parsed.sequences
        self._longest_field = answers.longest_field(parsed, request.prompt)
        self._watch.counted = True
        self.decision = self._balancer.route(request, self._policy, now_s)
        if count.source is CountSource.ESTIMATED:
            self._routed = replace(request, prompt_blocks=())
        self._drop_body()
        return self._carry_out(self.decision)

    def _fallback(self, now_s: float, *, body_follows: bool = False) -> Action:
        if not body_follows:
            self._drop_body()
        self._state = _State.DECIDED
        self.decision = self._balancer.route_uninspected(self._request_id, self._trace_id, now_s)
        return self._carry_out(self.decision)

    def _carry_out(self, decision: Decision) -> Action:
        self._state = _State.DECIDED
        outcome = decision.outcome
        match outcome:
            case Chosen(host=host, reason=reason, fallback=fallback):
                label = "uninspected" if decision.model is None else "fallback" if fallback else "chosen"
                return SetDestination(host, self._metadata(label, reason, decision))
            case Unknown(reason=reason):
                return Continue(self._metadata("unknown", reason, decision))
            case Refused(refusal=refusal, message=message, retry_after_s=retry_after_s):
                param = answers.field_of(refusal, self._longest_field)
                return self._respond(refusal.value, message, param, retry_after_s, decision)
            case _:
                assert_never(outcome)

    def _claim(self, amount: int) -> Respond | None:
        """What the headers announce; the answer to the client where that is too much."""
        if amount > self._limits.body_bytes_max:
            return self._too_large()
        if amount >= self._limits.body_claim_bytes_min and not self._share.claim(amount):
            return self._no_room()
        return None

    def _hold(self, amount: int) -> Respond | None:
        """What has come of the body; the answer to the client where it is too much."""
        self._bytes_come += amount
        if self._bytes_come > self._limits.body_bytes_max:
            return self._too_large()
        return None if self._share.hold(amount) else self._no_room()

    def _too_large(self) -> Respond:
        message = f"The request body is larger than {self._limits.body_bytes_max} bytes."
        return self._respond(answers.TOO_LARGE, message)

    def _no_room(self) -> Respond:
        message = "The bodies of running requests fill the memory set aside for them; try again."
        return self._respond(answers.OVERLOADED, message, retry_after_s=BUDGET_RETRY_AFTER_S)

    def _drop_body(self) -> None:
        self._chunks.clear()
        self._parsed = None
        self._share.give_back()

    def _respond(
        self,
        code: str,
        message: str,
        param: str | None = None,
        retry_after_s: int | None = None,
        decision: Decision | None = None,
    ) -> Respond:
        self._drop_body()
        self._state = _State.DECIDED
        return answers.error(code, message, param, retry_after_s, self._metadata(code, message, decision))

    def _metadata(self, outcome: str, reason: str, decision: Decision | None) -> Metadata:
        policy, fault = self._policy.name, self._policy_fault
        return answers.metadata_of(self._request_id, outcome, reason, policy, fault, decision, self._sequences)
