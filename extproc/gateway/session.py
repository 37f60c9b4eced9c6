"""One request's conversation with Envoy, without I/O: an event in, an action out.

    OPENED ── headers ──► BODY ── the whole body ──► COUNTING ── tokens counted ──► DECIDED
       │                   │                             └── no room ──► WAITING ── admitted ──► DECIDED
       └───────────────────┴── nothing to count, or a refusal ────────────────────► DECIDED

OPENED    Nothing has come. The headers tell whether there is a body, whether it is inference, and how many bytes the
          client claims. A large claim must find room here, before Envoy buffers the body. No body, or no inference: the
          fallback's node is named in the reply to the headers.
BODY      Pieces are gathered until the body is whole; how it was cut never matters. Each must find room as it comes.
          Over a limit the client is answered at once. Whole: parsed, and the tokens asked for.
COUNTING  Waits for us and not for Envoy, as the next.
WAITING   No node has room, and the request's class may wait. The balancer lets it go, or turns it away; if its client
          goes first, closing the session takes it out of the queue.
DECIDED   The reply to the latest message carried the decision. Whatever comes now is acknowledged; what it shows of the
          answer is looked at (`answerwatch`). The stream stays open for as long as the response runs, or until it is
          left: closing the session ends the balancer's reservation.

Room is given back at the decision, or at the stream's end; that of a body that nobody reads, when it has come.

Where the policy gives the request another model than its body names, the reply to the whole body carries it anew.
"""

import enum
from typing import assert_never

from msgspec.structs import replace

from extproc.config import ServeLimits
from extproc.core.balancer import Balancer
from extproc.core.decision import Decision, Queued
from extproc.core.policy import RoutingPolicy
from extproc.core.request import CountSource, Endpoint, InferenceRequest, TokenCount
from extproc.gateway import openai
from extproc.gateway.actions import Actions
from extproc.gateway.answerwatch import AnswerWatch
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    Acknowledge,
    Action,
    Admitted,
    CountTokens,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    Respond,
    ResponseBody,
    ResponseHeaders,
    ResponseMessage,
    TokensCounted,
    Wait,
)
from extproc.gateway.upload import Upload
from extproc.prompt import CountedPrompt

_ACKNOWLEDGE = Acknowledge()


class _State(enum.Enum):
    OPENED = enum.auto()
    BODY = enum.auto()
    COUNTING = enum.auto()
    WAITING = enum.auto()
    DECIDED = enum.auto()


class Session:
    """One request. `receive` answers each event by one action; `close` must be called once the stream has ended."""

    __slots__ = (
        "_actions",
        "_balancer",
        "_body_in_one",
        "_body_items_max",
        "_endpoint",
        "_model",
        "_parsed",
        "_policy",
        "_priority",
        "_routed",
        "_state",
        "_tenant",
        "_trace_id",
        "_upload",
        "_watch",
        "decision",
        "request_id",
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
        self._upload = Upload(body_budget, limits)
        self._actions = Actions(request_id, policy, policy_fault, self._upload, limits)
        self._body_items_max = limits.body_items_max
        self.request_id = request_id
        self._trace_id = ""
        self._priority = policy.priority or ""
        self._tenant = ""
        self._state = _State.OPENED
        self._endpoint: Endpoint | None = None
        self._body_in_one = False
        self._parsed: openai.ParsedBody | None = None
        self._model: str | None = None
        """What the policy gives to who asks for the body's model."""
        self._routed: InferenceRequest | None = None
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
            case Admitted():
                assert self._state is _State.WAITING, "admitted that did not wait"
                return self._decide(event.decision)
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
            self._balancer.finish(self.request_id, now_s)  # it may wait
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
        policy = self._policy
        named = headers.named.get(policy.priority_header or "")
        if named in self._balancer.settings.classes:
            self._priority = named
        self._tenant = headers.tenant_claim or headers.named.get(policy.tenant_header or "") or ""
        if not headers.end_of_stream:
            overflow = self._upload.announced(headers.content_length or 0)
            if overflow is not None:
                return self._respond(self._actions.overflow(overflow))
            self._endpoint = openai.endpoint_of(headers.method, headers.path)
        if self._endpoint is None:
            return self._fallback(now_s, body_follows=not headers.end_of_stream)
        return _ACKNOWLEDGE

    def _body(self, body: RequestBody, now_s: float) -> Action:
        overflow = self._upload.add(body.data)
        if overflow is not None:
            return self._respond(self._actions.overflow(overflow))
        if not (body.end_of_stream or self._body_in_one):
            return _ACKNOWLEDGE
        if self._upload.bytes_come == 0:
            return self._fallback(now_s)
        assert self._endpoint is not None, "only bodies of inference paths are gathered"
        parsed = openai.parse(self._endpoint, self._upload.whole(), self._body_items_max)
        if isinstance(parsed, openai.BodyFault):
            return self._respond(self._actions.invalid(parsed.message, parsed.param))
        self._parsed = parsed
        self._model = self._actions.asked = parsed.model
        if self._body_in_one:  # else its first pieces have gone on
            self._model = self._policy.model_for(parsed.model, self.request_id)
        if self._model == parsed.model and self._model not in self._policy.fallback_models:
            self._upload.forget()
        self._state = _State.COUNTING
        return CountTokens(self._model, parsed.prompt, self._upload.bytes_come)

    def _route(self, counted: CountedPrompt, now_s: float) -> Action:
        parsed = self._parsed
        assert parsed is not None, "parsed before counting"
        assert self._model is not None, "named with it"
        count = counted.count
        request = InferenceRequest(
            request_id=self.request_id,
            model=self._model,
            endpoint=parsed.endpoint,
            prompt=replace(count, exact=False) if count.exact and not parsed.length_binds else count,
            prompt_blocks=counted.blocks,
            output_tokens_max=parsed.output_tokens_max,
            sequences=parsed.sequences,
            trace_id=self._trace_id,
            priority=self._priority,
            tenant=self._tenant,
            body_bytes=self._upload.bytes_come,
            model_fixed=not self._body_in_one,
        )
        self._actions.knows(parsed, request.prompt)
        self._watch.counted = True
        if count.source is CountSource.ESTIMATED:
            self._routed = request
        return self._decide(self._balancer.route(request, self._policy, now_s))

    def _decide(self, decision: Decision) -> Action:
        if isinstance(decision.outcome, Queued):
            self._state = _State.WAITING
            self._parsed = None  # it may wait for long, and texts are as large as the body
            return Wait(decision.at_s, decision.outcome.until_s, decision.priority)
        self.decision = decision
        if self._routed is not None:
            self._routed = replace(self._routed, prompt_blocks=())  # of no more use, and the answer may take long
        return self._carry_out(decision)

    def _fallback(self, now_s: float, *, body_follows: bool = False) -> Action:
        self.decision = self._balancer.route_uninspected(self.request_id, self._trace_id, now_s)
        return self._carry_out(self.decision, body_follows=body_follows)

    def _carry_out(self, decision: Decision, *, body_follows: bool = False) -> Action:
        self._state = _State.DECIDED
        action = self._actions.of(decision, self._model)
        if not body_follows:
            self._drop_body()  # not before: after an error of ours the action is made again
        return action

    def _respond(self, answer: Respond) -> Respond:
        """The client is answered without asking the balancer."""
        self._drop_body()
        self._state = _State.DECIDED
        return answer

    def _drop_body(self) -> None:
        self._parsed = None
        self._upload.drop()
