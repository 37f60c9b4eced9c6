"""What an adapter reads out of an engine's pages: values only, the same for every engine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from extproc.core.snapshot import COUNTER_MAX, LATENCY_MS_MAX

QUIET = "no request in the interval"
"""Reason of a signal that is absent because nothing happened: nothing is wrong with it."""
FIRST_LOOK = "first look: nothing to compare with"
"""Reason of a signal that is a difference between two looks; nothing is wrong with it either."""
NOT_TOLD = "this engine does not tell it"
"""Reason of a signal that an engine never has."""
NOT_MAPPED = "not mapped in `generic`"
"""Reason of a signal that the mapping of an engine leaves out."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One look at an engine. `None` is absent, and `absent` says why, by the field's name."""

    asleep: bool = False
    """The engine answers, but has put its weights away: not ready."""
    restarted: bool = False
    """The engine began anew since the look before."""
    frozen: bool = False
    """It has work, and nothing moved since the look before: the page still shows the step of then."""
    started_at_s: float | None = None
    """The engine's process start by its own wall clock; only compared with itself."""
    decode_seconds_total: float | None = None
    """Σ over all requests of the gaps between their tokens, as they come; since the engine's start. Routers are not
    told: it is to check other signals by. `None`: the engine does not tell."""
    gauges_every_s: float = 0.0
    """Longest time between two moments at which an engine with work writes its gauges, where that is not every step."""
    kv_usage: float | None = None
    kv_block_size_tokens: int | None = None
    kv_blocks_total: int | None = None
    kv_blocks_available: int | None = None
    pending_prefills: int | None = None
    active_decodes: int | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    prefill_latency_ms: float | None = None
    decode_ms_per_token: float | None = None
    prefill_tokens_total: int | None = None
    prefill_seconds_total: float | None = None
    first_tokens_total: int | None = None
    prefix_queries_total: int | None = None
    prefix_hits_total: int | None = None
    adapter_slots_free: int | None = None
    absent: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Reasons carry no values, so that there are few of them and each is logged once."""


MEASURED = (
    "kv_usage",
    "kv_block_size_tokens",
    "kv_blocks_total",
    "kv_blocks_available",
    "pending_prefills",
    "active_decodes",
    "requests_running",
    "requests_waiting",
    "prefill_latency_ms",
    "decode_ms_per_token",
    "prefill_tokens_total",
    "prefill_seconds_total",
    "first_tokens_total",
    "prefix_queries_total",
    "prefix_hits_total",
    "adapter_slots_free",
)
"""The fields of a reading that a snapshot carries under the same name."""


def reading_from(
    values: Mapping[str, float | int | str],
    *,
    asleep: bool = False,
    restarted: bool = False,
    frozen: bool = False,
    started_at_s: float | None = None,
    decode_seconds_total: float | None = None,
    gauges_every_s: float = 0.0,
) -> EngineReading:
    """A reading out of one value for each of `MEASURED`, where a text is the reason why the signal is absent."""
    known: dict[str, Any] = {name: value for name, value in values.items() if not isinstance(value, str)}
    absent = {name: value for name, value in values.items() if isinstance(value, str)}
    return EngineReading(
        asleep, restarted, frozen, started_at_s, decode_seconds_total, gauges_every_s, absent=absent, **known
    )


def unread(reason: str) -> EngineReading:
    """A reading without any signal."""
    return reading_from(dict.fromkeys(MEASURED, reason))


def count_of(value: float | None, maximum: int, name: str) -> int | str:
    """A whole number 0..maximum out of a metric; NaN, fractions and what is out of range are absent."""
    if value is None:
        return f"{name} is missing"
    if not (0 <= value <= maximum and value == math.floor(value)):
        return f"{name} is no whole number in 0..{maximum}"
    return int(value)


def seconds_of(value: float | None, name: str) -> float | str:
    """Seconds since the engine's start out of a counter; NaN and what is out of range are absent."""
    if value is None:
        return f"{name} is missing"
    if not 0 <= value <= COUNTER_MAX:
        return f"{name} is no number of seconds"
    return value


@dataclass(frozen=True, slots=True)
class Total:
    """Two counters that belong together: seconds spent, and how many times."""

    seconds: float
    count: float

    def mean_ms_since(self, before: "Total | None", name: str) -> float | str:
        """Mean in ms of what came after `before`."""
        if before is None:
            return FIRST_LOOK
        seconds, count = self.seconds - before.seconds, self.count - before.count
        if count == 0:
            return QUIET
        mean_ms = seconds / count * 1000
        if not (math.isfinite(mean_ms) and count > 0 and 0 <= mean_ms <= LATENCY_MS_MAX):
            return f"{name} gives no mean in 0..{LATENCY_MS_MAX:g} ms"
        return mean_ms
