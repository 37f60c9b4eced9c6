"""Pages of any kind of nonsense, made of names that an adapter looks for; and what a reading may be made of them."""

from collections.abc import Collection, Mapping

from hypothesis import strategies as st

from extproc.agent.engines.reading import MEASURED, EngineReading
from extproc.core.snapshot import (
    ADAPTERS_MAX,
    COUNTER_MAX,
    KV_BLOCK_SIZE_TOKENS_MAX,
    KV_BLOCKS_MAX,
    LATENCY_MS_MAX,
    REQUESTS_MAX,
)

NUMBERS = st.one_of(
    st.integers(0, 40).map(float),
    st.floats(0, 1),
    st.floats(),
    st.sampled_from([-1.0, 1e6, 1e6 + 1, 1e9, 2.0**53, 1e300]),
)

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "kv_usage": (0, 1),
    "kv_block_size_tokens": (1, KV_BLOCK_SIZE_TOKENS_MAX),
    "kv_blocks_total": (1, KV_BLOCKS_MAX),
    "kv_blocks_available": (0, KV_BLOCKS_MAX),
    **dict.fromkeys(("pending_prefills", "active_decodes", "requests_running", "requests_waiting"), (0, REQUESTS_MAX)),
    **dict.fromkeys(("prefill_latency_ms", "decode_ms_per_token"), (0, LATENCY_MS_MAX)),
    "adapter_slots_free": (0, ADAPTERS_MAX),
}


def lines(names: Collection[str], labels: Mapping[str, Collection[str]]) -> st.SearchStrategy[str]:
    """One line: a name or one that begins alike, some of the labels with some of their values, a number or not."""
    chosen = st.fixed_dictionaries({}, optional={name: st.sampled_from(sorted(of)) for name, of in labels.items()})
    return st.builds(
        lambda name, tail, where, value: f"{name}{tail}{_braces(where)} {value}",
        st.sampled_from(sorted(names)),
        st.sampled_from(["", "", "", "", "", "_more", "{"]),
        chosen,
        NUMBERS | st.sampled_from(["", "x", "1_0", "0x1"]),
    )


def pages(names: Collection[str], labels: Mapping[str, Collection[str]]) -> st.SearchStrategy[str]:
    """Any lines in any order, however often."""
    return st.lists(lines(names, labels), max_size=12).map("\n".join)


def assert_sane(reading: EngineReading) -> None:
    """Each signal is told, in its bounds, or absent with a reason."""
    for name in MEASURED:
        value = getattr(reading, name)
        least, most = _BOUNDS.get(name, (0, COUNTER_MAX))
        assert (value is None) == (name in reading.absent), name
        assert value is None or least <= value <= most, name
    hits, queries = reading.prefix_hits_total, reading.prefix_queries_total
    assert hits is None or queries is None or hits <= queries
    free, total = reading.kv_blocks_available, reading.kv_blocks_total
    assert free is None or total is None or free <= total


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
