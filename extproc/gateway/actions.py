"""What Envoy is told of one request: decisions and faults as actions, with what access logs shall show."""

from typing import assert_never

from extproc.config import ServeLimits
from extproc.core.decision import Chosen, Decision, Queued, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.request import TokenCount
from extproc.gateway import answers, openai
from extproc.gateway.conversation import Action, Continue, Metadata, RequestHeaders, Respond, SetDestination
from extproc.gateway.rewrite import with_model
from extproc.gateway.upload import Overflow, Upload

BUDGET_RETRY_AFTER_S = 1
"""What clients are told to wait when bodies fill their share of memory."""


class Actions:
    """Makes the actions of one request; what is known of it so far is written into the fields below."""

    __slots__ = (
        "_limits",
        "_policy",
        "_policy_fault",
        "_request_id",
        "_strict",
        "_upload",
        "asked",
        "longest_field",
        "observed",
        "sequences",
        "shown",
    )

    def __init__(
        self,
        request_id: str,
        policy: RoutingPolicy,
        policy_fault: str | None,
        upload: Upload,
        limits: ServeLimits,
        *,
        strict: bool,
    ) -> None:
        self._request_id = request_id
        self._policy = policy
        self._policy_fault = policy_fault
        self._upload = upload
        self._limits = limits
        self._strict = strict
        self.asked: str | None = None
        """The model that the body names."""
        self.observed = False
        """Whether nothing is done about the request, whatever is decided: it goes on as if we were not there."""
        self.shown: str | None = None
        """What the decision rests on where it is not the whole body: `head` or `part`."""
        self.sequences: int | None = None
        self.longest_field: str | None = None

    def beforehand(self, head: RequestHeaders) -> Respond | Continue | None:
        """What is said whatever the request is: that the policy is off, or cannot be used and no other may serve."""
        self.observed = head.observed or self._policy.mode == "observe"
        if self._policy.mode == "off":
            return Continue(self._metadata("off", "the policy's mode is off", None), body_wanted=False)
        if self._strict and self._policy_fault is not None:
            return self._error(answers.POLICY_FAULT, f"The route's policy cannot be used: {self._policy_fault}")
        return None

    def knows(self, parsed: openai.ParsedBody, prompt: TokenCount) -> None:
        """The body is read as far as it is shown, and its prompt counted."""
        if parsed.prompt.unread_bytes is not None:
            self.shown = "part" if parsed.prompt.texts or parsed.prompt.chat is not None else "head"
        self.sequences = parsed.sequences
        self.longest_field = answers.longest_field(parsed, prompt)

    def of(self, decision: Decision, model: str | None, *, body_wanted: bool = True) -> Action:
        """What carries out a decision of the balancer's. Where it names no model the request is for this one.

        `body_wanted`: whether somebody here reads the body that may follow.
        """
        outcome = decision.outcome
        match outcome:
            case Refused(refusal=refusal, message=message, retry_after_s=retry_after_s, headers=headers):
                param = answers.field_of(refusal, self.longest_field)
                return self._error(refusal.value, message, param, retry_after_s, decision, headers)
            case Queued():
                msg = "who waits is decided later"
                raise AssertionError(msg)
            case Chosen() | Unknown():
                pass
            case _:
                assert_never(outcome)
        if self.observed:
            return Continue(self._metadata("observed", outcome.reason, decision))
        body, model = None, decision.model or model
        if model is not None and model != self.asked:
            body = with_model(self._upload.whole(), model, self._limits.body_items_max)
            if body is None:
                return self.invalid(f"The body cannot be written anew for `{model}`: too many fields or digits.", None)
            if len(body) > self._limits.body_bytes_max:
                return self.overflow(Overflow.TOO_LARGE)
        if isinstance(outcome, Unknown):
            metadata = self._metadata("unknown", outcome.reason, decision)
            return Continue(metadata, body, body_wanted, self._policy.destination)
        by_turn = "control" if decision.arm == "control" else "fallback"
        label = "uninspected" if decision.model is None else by_turn if outcome.fallback else "chosen"
        metadata = self._metadata(label, outcome.reason, decision)
        hosts = (outcome.host, *outcome.others)
        return SetDestination(hosts, self._policy.destination, metadata, body, body_wanted)

    def unobserved(self) -> Continue:
        """There is nothing to decide about a request that is only observed."""
        metadata = self._metadata("uninspected", "no inference, and only observed", None)
        return Continue(metadata, body_wanted=False)

    def invalid(self, message: str, param: str | None) -> Respond | Continue:
        """The body cannot be understood, for this field."""
        return self._error(answers.INVALID, message, param)

    def overflow(self, overflow: Overflow) -> Respond | Continue:
        """The body is not taken."""
        match overflow:
            case Overflow.TOO_LARGE:
                message = f"The request body is larger than {self._limits.body_bytes_max} bytes."
                return self._error(answers.TOO_LARGE, message)
            case Overflow.NO_ROOM:
                message = "The bodies of running requests fill the memory set aside for them; try again."
                return self._error(answers.OVERLOADED, message, retry_after_s=BUDGET_RETRY_AFTER_S)
            case _:
                assert_never(overflow)

    def _error(
        self,
        code: str,
        message: str,
        param: str | None = None,
        retry_after_s: int | None = None,
        decision: Decision | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Respond | Continue:
        if self.observed:
            return Continue(self._metadata(code, message, decision))
        return answers.error(code, message, param, retry_after_s, self._metadata(code, message, decision), headers)

    def _metadata(self, outcome: str, reason: str, decision: Decision | None) -> Metadata:
        routed = decision is not None and decision.model is not None
        return answers.metadata_of(
            self._request_id,
            outcome,
            reason,
            self._policy.name,
            self._policy_fault,
            decision,
            self.sequences,
            decision.priority if decision is not None and routed else None,
            round(decision.queued_s * 1000) if decision is not None and decision.queued_s else None,
            self.asked if decision is not None and routed and decision.model != self.asked else None,
            self.shown,
            decision.arm if decision is not None and (self.observed or self._policy.canary < 100) else None,
        )
