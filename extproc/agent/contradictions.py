"""What cannot be true of one look at an engine, whatever was seen before: numbers out of range, and such as contradict
each other. A contradiction says that one of its signals lies and not which, so all of them are doubted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.core.snapshot import (
    ADAPTERS_MAX,
    COUNTER_MAX,
    KV_BLOCK_SIZE_TOKENS_MAX,
    KV_BLOCKS_MAX,
    LATENCY_MS_MAX,
    REQUESTS_MAX,
)

KV_DISAGREEMENT_MAX = 0.3
"""Share of the cache by which its usage and its free blocks may differ: some engines count blocks that they keep for
reuse as used in the one and as free in the other, and round one of them to hundredths."""

_COUNTS = {
    "kv_block_size_tokens": (1, KV_BLOCK_SIZE_TOKENS_MAX),
    "kv_blocks_total": (1, KV_BLOCKS_MAX),
    "kv_blocks_available": (0, KV_BLOCKS_MAX),
    "pending_prefills": (0, REQUESTS_MAX),
    "active_decodes": (0, REQUESTS_MAX),
    "requests_running": (0, REQUESTS_MAX),
    "requests_waiting": (0, REQUESTS_MAX),
    "prefill_tokens_total": (0, COUNTER_MAX),
    "first_tokens_total": (0, COUNTER_MAX),
    "prefix_queries_total": (0, COUNTER_MAX),
    "prefix_hits_total": (0, COUNTER_MAX),
    "adapter_slots_free": (0, ADAPTERS_MAX),
}
_MEASURES = {
    "kv_usage": 1.0,
    "prefill_latency_ms": LATENCY_MS_MAX,
    "decode_ms_per_token": LATENCY_MS_MAX,
    "prefill_seconds_total": float(COUNTER_MAX),
}


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Signals that cannot all be true."""

    signals: tuple[str, ...]
    reason: str
    at_once: bool = False
    """Whether routers would refuse the whole report for it. Else it may be that the page was written in the midst of a
    step, so it has to be there for some looks in a row."""


def out_of_range(told: Mapping[str, float]) -> dict[str, str]:
    """Signals that no snapshot may hold, with the reasons: routers would refuse the whole report."""
    faults = {}
    for name, value in told.items():
        if name in _COUNTS:
            least, most = _COUNTS[name]
            if not (isinstance(value, int) and least <= value <= most):
                faults[name] = f"{name} is no whole number in {least}..{most}"
        elif not 0 <= value <= _MEASURES[name]:
            faults[name] = f"{name} is not in 0..{_MEASURES[name]:g}"
    return faults


def contradictions(told: Mapping[str, float]) -> list[Contradiction]:
    """Those among signals that are in range.

    - No more blocks are free than there are, and no more tokens found than looked up.
    - A request without its first token runs or waits, and so does one past it.
    - Each running sequence has a KV block of its own: the one that it writes to, whatever it shares.
    - The share in use is that of the blocks that are not free, within `KV_DISAGREEMENT_MAX`.
    """
    found = []
    available, total = told.get("kv_blocks_available"), told.get("kv_blocks_total")
    if available is not None and total is not None and available > total:
        found.append(
            Contradiction(
                ("kv_blocks_available", "kv_blocks_total"), "more KV blocks are free than there are", at_once=True
            )
        )
    hits, queries = told.get("prefix_hits_total"), told.get("prefix_queries_total")
    if hits is not None and queries is not None and hits > queries:
        reason = "more prompt tokens were found in the cache than looked up"
        found.append(Contradiction(("prefix_hits_total", "prefix_queries_total"), reason, at_once=True))
    running, waiting = told.get("requests_running"), told.get("requests_waiting")
    if running is not None and waiting is not None:
        counts = ("requests_running", "requests_waiting")
        if told.get("pending_prefills", 0) > running + waiting:
            reason = "more requests lack their first token than run and wait"
            found.append(Contradiction((*counts, "pending_prefills"), reason))
        if told.get("active_decodes", 0) > running + waiting:
            found.append(Contradiction((*counts, "active_decodes"), "more requests decode than run and wait"))
    if running is not None and total is not None and running > total:
        found.append(Contradiction(("requests_running",), "more requests run than there are KV blocks"))
    usage = told.get("kv_usage")
    if usage is not None and available is not None and total is not None and available <= total:
        differs = abs(usage - (1 - available / total)) > KV_DISAGREEMENT_MAX
        if differs:
            reason = "the share of the KV cache in use is not that of its free blocks"
            found.append(Contradiction(("kv_usage", "kv_blocks_available"), reason))
    return found
