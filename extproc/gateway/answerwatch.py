"""What Envoy shows us of one request's answer, and when there is nothing more to learn from it.

Envoy is configured, route by route, to show the head, the head and the pieces, or nothing. The head's status says how
the node fares. The first piece of a good answer that holds output is the first token; without a head nobody knows
whether a piece is of an answer or the text of an error, and it says nothing.
"""

from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen, Decision
from extproc.core.outcome import Answered, Ending
from extproc.gateway import endings
from extproc.gateway.conversation import ResponseBody, ResponseHeaders


class AnswerWatch:
    """The answer to one request. `close` must be called once its stream has ended.

    `leaves_early`: the stream is to be left, to spare us the pieces, once only the answer's end is to be learned from
    it, and at once where the request is counted nowhere. How a request ended that was left is told by Envoy's log.
    """

    __slots__ = (
        "_balancer",
        "_first_token_seen",
        "_leaves_early",
        "_left",
        "_request_id",
        "_status",
        "counted",
        "leaves",
    )

    def __init__(self, balancer: Balancer, request_id: str, *, leaves_early: bool) -> None:
        self._balancer = balancer
        self._request_id = request_id
        self._leaves_early = leaves_early
        self._status: int | None = None
        self._first_token_seen = False
        self._left = False
        self.counted = False
        """Whether the balancer was asked about the request, so that it may have a reservation."""
        self.leaves = False
        """Whether the stream may be left now, after the reply to the latest event."""

    def begins(self, head: ResponseHeaders, decision: Decision | None, now_s: float) -> None:
        """The answer begins so, after this decision. Only the first head counts."""
        if self._status is not None:
            return
        self._status = head.status
        if not self.counted:
            self.leaves = self._leaves_early
            return
        if head.served_by is not None and decision is not None and isinstance(decision.outcome, Chosen):
            self._served(head.served_by, decision.outcome, now_s)
        ending = endings.of_status(head.status)
        self._balancer.answered(Answered(self._request_id, ending, host=head.served_by, over=False), now_s)

    def _served(self, host: str, chosen: Chosen, now_s: float) -> None:
        """Envoy says who was tried last: those before it in the list have failed. Others are none of our business."""
        hosts = (chosen.host, *chosen.others)
        if host == chosen.host or host not in hosts:
            return
        for failed in hosts[: hosts.index(host)]:
            told = Answered(self._request_id, Ending.UNREACHABLE, host=failed, over=False)
            self._balancer.answered(told, now_s)
        self._balancer.served(self._request_id, host, now_s)

    def goes_on(self, piece: ResponseBody, now_s: float) -> None:
        """A piece came."""
        if self._first_token_seen or not (self.counted and piece.has_output):
            return
        if self._status is None or not 200 <= self._status <= 299:
            return
        self._first_token_seen = True
        self._balancer.first_token(self._request_id, now_s)
        self.leaves = self._leaves_early and not piece.end_of_stream

    def leave(self, now_s: float) -> None:
        """The stream is ended by us before the answer's end, which somebody else must tell the balancer."""
        self.leaves = False
        self._balancer.leave(self._request_id, now_s)
        self._left = True

    def close(self, now_s: float) -> None:
        """The stream has ended, and so has the request unless it was left. Idempotent."""
        if not self._left:
            self._balancer.finish(self._request_id, now_s)
