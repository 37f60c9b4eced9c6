"""What was known of a node when a request went there: each signal's name, its unit, and where it stands."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from extproc.core.filters import freshness
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import Freshness, NodeView, Snapshot


class Moment(Struct, frozen=True):
    """A request about to go to a node."""

    view: NodeView
    """Without this request."""
    now_s: float
    uncached_tokens: int
    """Of its prompt, as far as was known then: at least 1."""


class Signal(Struct, frozen=True):
    """One number that may tell how long a first token takes."""

    name: str
    text: str
    """For people."""
    of: Callable[[Moment], float | None]
    """`None`: not known then."""


def _told(name: str, text: str) -> Signal:
    def of(moment: Moment) -> float | None:
        value: float | None = getattr(moment.view.snapshot, name)
        return value

    assert name in Snapshot.__dataclass_fields__
    return Signal(name, text, of)


def _ahead_s(moment: Moment) -> float:
    return prefill_tokens_ahead(moment.view, moment.now_s) / moment.view.learned.prefill_tokens_per_s


def _expected_s(moment: Moment) -> float:
    return _ahead_s(moment) + moment.uncached_tokens / moment.view.learned.prefill_tokens_per_s


SIGNALS: Final = (
    _told("kv_usage", "KV cache in use, share"),
    _told("requests_waiting", "engine's queue"),
    _told("requests_running", "engine's batch"),
    _told("pending_prefills", "without a first token"),
    _told("active_decodes", "past their first token"),
    _told("gpu_utilization", "GPU busy, share"),
    _told("gpu_memory_usage", "GPU memory, share"),
    _told("prefill_latency_ms", "mean prefill, ms"),
    _told("decode_ms_per_token", "decode step, ms"),
    Signal("age_s", "snapshot's age, s", lambda moment: moment.now_s - moment.view.sampled_at_s),
    Signal("n", "n: answers there, ours since included", lambda moment: moment.view.in_flight),
    Signal("w_tokens", "W: prompt tokens ahead", lambda moment: prefill_tokens_ahead(moment.view, moment.now_s)),
    Signal("w_s", "W/r: seconds ahead", _ahead_s),
    Signal("uncached_tokens", "u: its own uncached tokens", lambda moment: moment.uncached_tokens),
    Signal("expected_s", "(W+u)/r: what was expected, s", _expected_s),
)
"""What agents told, and below that what the router made of it and of its ledger: see docs/decisions/0015."""

OWN_SIZE: Final = "uncached_tokens"
"""A request's own part of its first token's time, whatever the node's state."""


def is_fresh(moment: Moment, limits: NodeLimits) -> bool:
    """Whether decisions rested on the node's snapshot then."""
    return freshness(moment.now_s - moment.view.sampled_at_s, limits) is Freshness.FRESH
