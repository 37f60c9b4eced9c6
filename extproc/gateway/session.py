"""One request's conversation with Envoy, without I/O: an event in, an action out.

    OPENED ── headers ──► BODY ── all that will be shown ──► COUNTING ── tokens counted ──► DECIDED
       │  └── too late to see the body ──────────────────────►┘ └── no room ──► WAITING ── admitted ──► DECIDED
       └───────────────────┴── nothing to count, or a refusal ────────────────────────► DECIDED

OPENED    Nothing has come. The headers tell how the body will be shown, whether it is inference, and how many bytes the
          client claims. A large claim must find room here, before Envoy buffers the body. No body, or no inference: the
          fallback's node is named in the reply to the headers.
BODY      Pieces are gathered until the body is whole; how it was cut never matters. Each must find room as it comes.
          Over a limit the client is answered at once. What came is read (`inference`), and the tokens asked for.
COUNTING  Waits for us and not for Envoy, as the next.
WAITING   No node has room, and the request's class may wait. The balancer lets it go, or turns it away; if its client
          goes first, closing the session takes it out of the queue.
DECIDED   The reply to the latest message carried the decision. Whatever comes now is acknowledged; what it shows of the
          answer is looked at (`answerwatch`). The stream stays open for as long as the response runs, or until it is
          left: closing the session ends the balancer's reservation.

Room is given back at the decision, in full duplex when that is written, or at the stream's end.

Where the policy gives the request another model than its body names, the reply to the whole body carries it anew. Where
the policy or Envoy only observes, all is decided and kept, nothing counted, and nothing said.
"""

import enum
from typing import assert_never

from msgspec.structs import replace

from extproc.config import ServeLimits
from extproc.core.balancer import Balancer
from extproc.core.decision import Decision, Queued
from extproc.core.policy import RoutingPolicy
from extproc.core.request import CountSource, Endpoint, InferenceRequest, TokenCount
from extproc.gateway import inference, openai
from extproc.gateway.actions import Actions
from extproc.gateway.answerwatch import AnswerWatch
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    IN_ONE,
    REPLACEABLE,
    Acknowledge,
    Action,
    Admitted,
    BodyMode,
    CountTokens,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseMessage,
    TokensCounted,
    Wait,
)
from extproc.gateway.upload import Upload
from extproc.prompt import CountedPrompt

_ACKNOWLEDGE = Acknowledge()
_NOT_COME = RequestHeaders("", "")


class _State(enum.Enum):
    OPENED = enum.auto()
    BODY = enum.auto()
    COUNTING = enum.auto()
    WAITING = enum.auto()
    DECIDED = enum.auto()


class Session:
    """One request. `receive` answers each event by one action; `close` must be called once the stream has ended.

    `policy_fault` says what is wrong with the policy that was asked for, if anything is: then `policy` is another, and
    where it is `strict` the request is refused.
    """

    __slots__ = (
        "_actions",
        "_balancer",
        "_body_items_max",
        "_endpoint",
        "_head",
        "_model",
        "_parsed",
        "_policy",
        "_routed",
        "_state",
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
        *,
        strict: bool = False,
    ) -> None:
        self._balancer = balancer
        self._policy = policy
        self._upload = Upload(body_budget, limits)
        self._actions = Actions(request_id, policy, policy_fault, self._upload, limits, strict=strict)
        self._body_items_max = limits.body_items_max
        self.request_id = request_id
        self._head = _NOT_COME
        self._state = _State.OPENED
        self._endpoint: Endpoint | None = None
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
                self._upload.drop()
                return _ACKNOWLEDGE
            case TokensCounted():
                assert self._state is _State.COUNTING, "tokens counted that were not asked for"
                return self._route(event.prompt, now_s)
            case Admitted():
                assert self._state is _State.WAITING, "admitted that did not wait"
                return self._decide(event.decision)
            case RequestTrailers():
                return self._trailers(now_s)
            case ResponseHeaders():
                if self.decided:  # before, it is Envoy's own
                    self._watch.begins(event, self.decision, now_s)
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

    def written(self) -> None:
        """The decision has been written to Envoy, and what was held of the body with it."""
        self._upload.drop()

    def recount(self, count: TokenCount) -> None:
        """The tokens were estimated for the decision and are counted now. Ignored once the stream has ended."""
        if self._routed is not None:
            self._balancer.recount(replace(self._routed, prompt=count))

    def leave(self, now_s: float) -> None:
        """The stream is ended by us, before the answer's end."""
        self._watch.leave(now_s)

    def close(self, now_s: float) -> None:
        """The stream has ended: give everything back, but for the reservation of a stream that was left. Idempotent."""
        self._say(_ACKNOWLEDGE)
        self._routed = None
        self._watch.close(now_s)

    def _headers(self, head: RequestHeaders, now_s: float) -> Action:
        self._head = head
        self._state = _State.BODY
        said = self._actions.beforehand(head)
        if said is not None:
            return self._say(said)
        if not head.end_of_stream:
            overflow = self._upload.announced(head.content_length or 0, comes=head.mode is not BodyMode.NONE)
            if overflow is not None:
                return self._say(self._actions.overflow(overflow))
            self._endpoint = openai.endpoint_of(head.method, head.path)
        decides = head.mode is BodyMode.NONE or (head.mode is BodyMode.STREAMED and not head.observed)
        if self._endpoint is not None and not decides:
            return _ACKNOWLEDGE
        parsed = None if self._endpoint is None else inference.of_head(self._endpoint, head, self._policy)
        return self._fallback(now_s, body_follows=not head.end_of_stream) if parsed is None else self._count(parsed)

    def _body(self, body: RequestBody, now_s: float) -> Action:
        overflow = self._upload.add(body.data)
        if overflow is not None:
            return self._say(self._actions.overflow(overflow))
        if body.end_of_stream or self._head.mode in IN_ONE:
            return self._body_come(now_s, ended=body.end_of_stream)
        return _ACKNOWLEDGE

    def _trailers(self, now_s: float) -> Action:
        if self._state is _State.BODY and (self._head.mode is BodyMode.DUPLEX or self._actions.observed):
            return self._body_come(now_s, ended=True)
        # Without a whole body before them it is too late to name a node: their reply cannot set headers.
        return self._say(_ACKNOWLEDGE)

    def _body_come(self, now_s: float, *, ended: bool) -> Action:
        """All has come that will be shown."""
        if self._upload.bytes_come == 0:
            return self._fallback(now_s)
        assert self._endpoint is not None, "only bodies of inference paths are gathered"
        head, body, items_max = self._head, self._upload.whole(), self._body_items_max
        parsed = inference.of_body(self._endpoint, head, self._policy, body, items_max, ended=ended)
        if parsed is None:
            return self._fallback(now_s)
        if isinstance(parsed, openai.BodyFault):
            return self._say(self._actions.invalid(parsed.message, parsed.param))
        return self._count(parsed)

    def _count(self, parsed: openai.ParsedBody) -> Action:
        self._parsed = parsed
        self._model = self._actions.asked = parsed.model
        if self._head.mode in REPLACEABLE:
            self._model = self._policy.model_for(parsed.model, self.request_id)
        if self._model == parsed.model and self._model not in self._policy.fallback_models:
            self._upload.forget()
        self._state = _State.COUNTING
        return CountTokens(self._model, parsed.prompt, self._upload.bytes_come)

    def _route(self, counted: CountedPrompt, now_s: float) -> Action:
        parsed = self._parsed
        assert parsed is not None and self._model is not None, "parsed before counting"  # noqa: PT018
        request = inference.request_of(
            self.request_id,
            self._head,
            self._policy,
            self._balancer.settings.classes,
            parsed,
            self._model,
            counted,
            body_bytes=self._upload.bytes_come,
            model_fixed=self._head.mode not in REPLACEABLE,
        )
        self._actions.knows(parsed, request.prompt)
        if self._actions.observed:
            return self._decide(self._balancer.rehearse(request, self._policy, now_s))
        self._watch.counted = True
        if counted.count.source is CountSource.ESTIMATED:
            self._routed = request
        return self._decide(self._balancer.route(request, self._policy, now_s))

    def _decide(self, decision: Decision) -> Action:
        if isinstance(decision.outcome, Queued):
            self._state = _State.WAITING
            self._parsed = None  # it may wait for long, and texts are as large as the body
            return Wait(decision.at_s, decision.outcome.until_s, decision.priority)
        self.decision = decision
        if self._routed is not None:
            self._routed = replace(self._routed, prompt_blocks=(), token_blocks=())  # answers may take long
        return self._carry_out(decision)

    def _fallback(self, now_s: float, *, body_follows: bool = False) -> Action:
        if self._actions.observed:
            return self._say(self._actions.unobserved())
        trace_id, subset = self._head.trace_id, self._head.subset
        self.decision = self._balancer.route_uninspected(self.request_id, trace_id, now_s, self._policy, subset)
        return self._carry_out(self.decision, body_follows=body_follows)

    def _carry_out(self, decision: Decision, *, body_follows: bool = False) -> Action:
        self._state = _State.DECIDED
        body_wanted = not body_follows or self._head.mode is BodyMode.DUPLEX  # there nobody but us has it
        action = self._actions.of(decision, self._model, body_wanted=body_wanted)
        self._parsed = None  # not before: after an error of ours the action is made again
        if self._head.mode is BodyMode.DUPLEX:
            self._upload.forget()  # what has come is held until it is `written`
        else:
            self._upload.drop()
        return action

    def _say(self, action: Action) -> Action:
        """Something is said without asking the balancer, and the body is dropped."""
        self._parsed = None
        self._upload.drop()
        self._state = _State.DECIDED
        return action
