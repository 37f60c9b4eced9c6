"""What a status or an access log's entry says of the node."""

from typing import Final

from extproc.core.outcome import Answered, Ending
from extproc.gateway.accesslog import AnswerEnded

_UNREACHABLE: Final = frozenset((502, 503))
_NOT_IMPLEMENTED: Final = 501
"""Engines say so of what they were not started for, as embeddings: it is the request that is at the wrong place."""
_BROKEN: Final = frozenset(
    (
        "no_healthy_upstream",
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_protocol_error",
        "upstream_remote_reset",
    )
)
"""Envoy's flags for a node that could not be reached or broke off."""
_SLOW: Final = frozenset(("upstream_max_stream_duration_reached", "upstream_request_timeout"))
"""Its flags for an answer that took longer than the route allows: that may be the request's own length."""
_CLIENT_LEFT: Final = frozenset(
    ("downstream_connection_termination", "downstream_protocol_error", "downstream_remote_reset")
)
_IDLE: Final = "stream_idle_timeout"


def of_status(status: int) -> Ending:
    """What a status says that is the node's own, or Envoy's where it could not reach the node."""
    if status in _UNREACHABLE:
        return Ending.UNREACHABLE
    if status >= 500 and status != _NOT_IMPLEMENTED:
        return Ending.ERROR
    return Ending.SERVED if status >= 100 else Ending.UNTOLD


def of_entry(ended: AnswerEnded) -> Answered:
    """What the balancer is told of an entry.

    Names that are in no list, as of Envoys to come, and answers of Envoy's or ours prove nothing about a node; neither
    does a good answer to what was no inference request: the API of a dead engine may live. Nor an error: it may be that
    path's alone, and no good answer to its like would ever make up for it. Only where nobody was there, or whoever was
    there broke off, all kinds of requests say the same.
    """
    ending = _ending(ended)
    if ended.model is None and ending is not Ending.UNREACHABLE:
        ending = Ending.UNTOLD
    return Answered(
        request_id=ended.request_id,
        ending=ending,
        host=ended.upstream_host,
        model=ended.model,
        output_tokens=_output_tokens(ended),
        used_tokens=_used_tokens(ended),
    )


def failed_before(ended: AnswerEnded, now_s: float) -> Answered | None:
    """What an entry says of the node that was chosen where another one served in the end; `None`: nothing.

    It failed when the request began, and the answer may have taken minutes.
    """
    if ended.failed_host is None:
        return None
    at_s = now_s - (ended.duration_s or 0.0)
    return Answered(ended.request_id, Ending.UNREACHABLE, host=ended.failed_host, over=False, at_s=at_s)


def _used_tokens(ended: AnswerEnded) -> int | None:
    """What a quota counts."""
    if ended.prompt_tokens is None:
        return None
    return ended.prompt_tokens + (ended.completion_tokens or 0)


def _output_tokens(ended: AnswerEnded) -> int | None:
    """Of one answer, on the average: `usage` tells the sum over all that a request asked for.

    0 is what embeddings have, and says nothing of what the model's chats are like.
    """
    return round(ended.completion_tokens / ended.sequences) if ended.completion_tokens else None


def _ending(ended: AnswerEnded) -> Ending:
    if ended.details.startswith("extproc_") or ended.status == 0 or not _CLIENT_LEFT.isdisjoint(ended.flags):
        return Ending.UNTOLD
    if not _BROKEN.isdisjoint(ended.flags):
        return Ending.UNREACHABLE
    if not _SLOW.isdisjoint(ended.flags):
        return Ending.ERROR
    if ended.details == "via_upstream":
        return of_status(ended.status)
    # Nothing came for too long. After a head (with its status) it may be a client that does not read.
    return Ending.ERROR if _IDLE in ended.flags and ended.status == 504 else Ending.UNTOLD
