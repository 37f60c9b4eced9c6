"""What routers take of a reading: they refuse the whole snapshot otherwise."""

from extproc.agent.engines.reading import MEASURED, EngineReading
from extproc.core.snapshot import COUNTER_MAX, KV_BLOCKS_MAX, LATENCY_MS_MAX, REQUESTS_MAX

_SHARES = {"kv_usage"}
_POSITIVE = {"kv_blocks_total", "kv_block_size_tokens"}
_MEANS = {"prefill_latency_ms", "decode_ms_per_token"}
_REQUESTS = {"requests_running", "requests_waiting", "active_decodes", "pending_prefills"}
_FLOATS = {*_SHARES, *_MEANS, "prefill_seconds_total"}


def in_bounds(reading: EngineReading) -> bool:
    """Whether every value is of its type and range, and no part is over its whole."""
    for name in MEASURED:
        value = getattr(reading, name)
        if value is None:
            continue
        highest: float = COUNTER_MAX
        if name in _SHARES:
            highest = 1
        elif name in _MEANS:
            highest = LATENCY_MS_MAX
        elif name in _REQUESTS:
            highest = REQUESTS_MAX
        elif name.startswith("kv_blocks"):
            highest = KV_BLOCKS_MAX
        if not (isinstance(value, float | int if name in _FLOATS else int) and (name in _POSITIVE) <= value <= highest):
            return False
    available, total = reading.kv_blocks_available, reading.kv_blocks_total
    hits, queries = reading.prefix_hits_total, reading.prefix_queries_total
    return not (
        (available is not None and total is not None and available > total)
        or (hits is not None and queries is not None and hits > queries)
    )
