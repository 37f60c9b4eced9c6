from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.agent.engines import vllm
from extproc.agent.engines.adapter import Missing
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.generic import GenericLook, adapter_of, reader_of
from extproc.agent.engines.reading import FIRST_LOOK, MEASURED, NOT_MAPPED, QUIET, EngineReading
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.genericsettings import GenericConfig
from extproc.agent.scrape import EnginePages
from extproc.agent.settings import AgentConfig, parse
from extproc.agent.watch import EngineWatch
from extproc.core.snapshot import NodeState, ServedModel
from tests.agent.bounds import in_bounds
from tests.agent.engine import vllm_engine
from tests.agent.pages import sample, started

VLLM = {
    "requests_running": "sum(vllm:num_requests_running)",
    "requests_waiting": "sum(vllm:num_requests_waiting)",
    "kv_usage": "avg(vllm:kv_cache_usage_perc)",
    "kv_blocks_total": 'sum(label(vllm:cache_config_info, "num_gpu_blocks"))',
    "kv_block_size_tokens": 'max(label(vllm:cache_config_info, "block_size"))',
    "prefill_latency_ms": {
        "seconds": "sum(vllm:request_prefill_time_seconds_sum)",
        "count": "sum(vllm:request_prefill_time_seconds_count)",
    },
    "decode_ms_per_token": {
        "seconds": "sum(vllm:inter_token_latency_seconds_sum)",
        "count": "sum(vllm:inter_token_latency_seconds_count)",
    },
    "prefill_tokens_total": 'sum(vllm:prompt_tokens_by_source_total{source="local_compute"})',
    "prefill_seconds_total": "sum(vllm:time_to_first_token_seconds_sum)",
    "first_tokens_total": "sum(vllm:time_to_first_token_seconds_count)",
    "prefix_queries_total": "sum(vllm:prefix_cache_queries_total)",
    "prefix_hits_total": "sum(vllm:prefix_cache_hits_total)",
}


class Engine:
    """Looks again and again."""

    def __init__(self, mapping: object) -> None:
        self._read = reader_of(GenericConfig.model_validate(mapping))
        self._before: GenericLook | None = None

    def __call__(self, page: str) -> EngineReading:
        reading, self._before = self._read(page, self._before)
        return reading


def test_vllm_is_read_by_a_mapping_as_its_adapter_reads_it() -> None:
    engine, before = Engine(VLLM), None
    for name in ("idle_fresh", "load_3", "after", "smallcache_5"):
        page = sample(f"vllm_0.32.0_cpu_{name}.prom")
        ours = engine(page)
        theirs, before = vllm.read(page, before)
        for field in (*VLLM, "kv_blocks_available", "restarted", "started_at_s"):
            assert getattr(ours, field) == getattr(theirs, field), (name, field)
        assert ours.restarted is (name == "smallcache_5")


def documented() -> AgentConfig:
    page = (Path(__file__).parent.parent.parent / "docs" / "agent.md").read_text()
    example = page.partition("## An engine that is not known here")[2].partition("```yaml\n")[2].partition("```")[0]
    mapping = yaml.safe_load(example)
    assert mapping["engines"][0]["generic"].keys() == GenericConfig.model_fields.keys()
    config = parse(mapping)
    assert isinstance(config, AgentConfig), config
    return config


def documented_page(**more: float) -> str:
    numbers = {"cached": 300, "firsts": 10, "prefill_ms": 5000} | more
    return f"""
my_requests{{state="running",rank="0"}} 3
my_requests{{state="running",rank="1"}} 4
my_requests{{state="queued"}} 2
my_decodes 5
my_kv_used{{rank="0"}} 10
my_kv_used{{rank="1"}} 30
my_kv_size{{rank="0"}} 50
my_kv_size{{rank="1"}} 110
my_config{{rank="0",blocks="50"}} 1
my_config{{rank="1",blocks="110"}} 1
my_prefill_ms_sum {numbers["prefill_ms"]}
my_prefill_ms_count {numbers["firsts"]}
my_token_seconds_sum 1
my_token_seconds_count 100
my_prompt_tokens 1000
my_cached_tokens {numbers["cached"]}
my_first_token_seconds_sum 2.5
my_first_token_seconds_count {numbers["firsts"]}
"""


def test_the_documented_mapping_reads_a_page() -> None:
    config = documented().engines[0]
    assert (config.engine_kind, config.metrics) == (EngineKind.GENERIC, "/stats/prometheus")
    engine = Engine(config.generic)
    engine(documented_page(firsts=8, prefill_ms=4000))
    reading = engine(documented_page())
    assert (reading.requests_running, reading.requests_waiting) == (7, 2)
    assert (reading.active_decodes, reading.pending_prefills) == (5, 4)
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_blocks_available) == (0.25, 160, 120)
    assert reading.kv_block_size_tokens == 16
    assert (reading.prefill_latency_ms, reading.absent["decode_ms_per_token"]) == (500, QUIET)
    assert (reading.prefill_tokens_total, reading.prefill_seconds_total, reading.first_tokens_total) == (700, 2.5, 10)
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (1000, 300)
    assert reading.absent.keys() == {"decode_ms_per_token", "adapter_slots_free"}
    assert reading.absent["adapter_slots_free"] == NOT_MAPPED


@pytest.mark.parametrize(
    ("field", "text", "page", "expected"),
    [
        ("requests_running", "a", "a 5.0000001\n", 5),
        ("requests_running", "a", "a 4.9999999\n", 5),
        ("requests_running", "a", "a 5.00001\n", "a is no whole number in 0..1000000"),
        ("requests_running", "a * 1", "a 1000000\n", 1_000_000),
        ("requests_running", "a", "a 1000001\n", "a is no whole number in 0..1000000"),
        ("requests_running", "a - 1", "a 0\n", "a - 1 is no whole number in 0..1000000"),
        ("requests_running", "a", "b 1\n", "a is missing"),
        ("kv_usage", "a / 100", "a 41\n", 0.41),
        ("kv_usage", "a", "a 41\n", "a is not in 0..1"),
        ("kv_usage", "a", "a NaN\n", "a is no number"),
        ("kv_usage", "a / b", "a 0\nb 0\n", "b is 0"),
        ("kv_blocks_total", "a", "a 0\n", "a is 0"),
        ("kv_block_size_tokens", "a", "a 0\n", "a is 0"),
        ("kv_block_size_tokens", "16", "", 16),
        ("kv_blocks_available", "a", "a 0\n", 0),
        ("prefill_seconds_total", "a", "a -1\n", "a is no number of seconds"),
        (
            "prefill_tokens_total",
            "a * 1024",
            "a 9007199254740992\n",
            "a * 1024 is no whole number in 0..9007199254740992",
        ),
        ("adapter_slots_free", "a", "a 10001\n", "a is no whole number in 0..10000"),
    ],
)
def test_a_field_has_a_value_that_it_may_have_or_says_why_not(
    field: str, text: str, page: str, expected: float | str
) -> None:
    reading = Engine({field: text})(page)
    assert (reading.absent[field] if isinstance(expected, str) else getattr(reading, field)) == expected


def test_parts_that_are_over_their_whole_are_both_absent() -> None:
    mapping = {
        "kv_blocks_available": "a",
        "kv_blocks_total": "b",
        "prefix_hits_total": "a",
        "prefix_queries_total": "b",
    }
    reading = Engine(mapping)("a 5\nb 5\n")
    assert (reading.kv_blocks_available, reading.prefix_hits_total) == (5, 5)
    reading = Engine(mapping)("a 6\nb 5\n")
    assert {field: reading.absent[field] for field in mapping} == {
        "kv_blocks_available": "kv_blocks_available is over kv_blocks_total",
        "kv_blocks_total": "kv_blocks_available is over kv_blocks_total",
        "prefix_hits_total": "prefix_hits_total is over prefix_queries_total",
        "prefix_queries_total": "prefix_hits_total is over prefix_queries_total",
    }


def test_what_follows_from_others_is_told_unless_it_has_an_expression() -> None:
    mapping = {"requests_running": "a", "requests_waiting": "b", "active_decodes": "c"}
    assert Engine(mapping)("a 5\nb 2\nc 4\n").pending_prefills == 3
    assert Engine(mapping | {"pending_prefills": "b"})("a 5\nb 2\nc 4\n").pending_prefills == 2
    assert Engine(mapping)("a 5\nc 4\n").absent["pending_prefills"] == "b is missing"
    assert Engine({"requests_running": "a"})("a 5\n").absent["pending_prefills"] == NOT_MAPPED
    cache = {"kv_usage": "u", "kv_blocks_total": "t"}
    assert Engine(cache)("u 0.3\nt 10\n").kv_blocks_available == 7
    assert Engine(cache)("u 2\nt 10\n").absent["kv_blocks_available"] == "u is not in 0..1"


def test_counters_that_fall_together_are_a_restart_and_a_difference_that_falls_is_none() -> None:
    mapping = {"prefill_tokens_total": "prompts - hits", "decode_ms_per_token": {"seconds": "s", "count": "n"}}
    engine = Engine(mapping)
    assert engine("prompts 100\nhits 20\ns 1\nn 10\n").prefill_tokens_total == 80
    reading = engine("prompts 100\nhits 60\ns 2\nn 20\n")
    assert (reading.restarted, reading.prefill_tokens_total) == (False, 80)
    assert reading.decode_ms_per_token == 100
    reading = engine("prompts 110\nhits 5\ns 3\nn 20\n")  # one that falls alone is no counter
    assert (reading.restarted, reading.prefill_tokens_total) == (False, 105)
    reading = engine("prompts 10\nhits 2\ns 0.1\nn 1\n")
    assert (reading.restarted, reading.prefill_tokens_total) == (True, 8)
    assert reading.absent["decode_ms_per_token"] == FIRST_LOOK
    assert not engine("prompts 10\nhits 2\ns 0.1\nn 1\n").restarted


def test_a_gauge_that_falls_is_no_restart() -> None:
    engine = Engine({"requests_running": "a", "prefix_hits_total": "b"})
    engine("a 9\n")
    assert not engine("a 1\n").restarted


def test_another_process_start_is_a_restart() -> None:
    engine = Engine({"first_tokens_total": "a"})
    engine(started(1) + "a 1\n")
    assert not engine(started(1) + "a 1\n").restarted
    assert engine(started(2) + "a 5\n").restarted
    assert not engine(started(3) + started(4) + "a 5\n").restarted  # of several processes nobody knows whose it is


def test_a_mean_lives_through_a_look_without_it() -> None:
    engine = Engine({"decode_ms_per_token": {"seconds": "s / 1000", "count": "n"}})
    engine("s 1000\nn 10\n")
    assert engine("s 1000\n").absent["decode_ms_per_token"] == "n is missing"
    assert engine("s 3000\nn 20\n").decode_ms_per_token == 200


def faults(engine: dict[str, object]) -> dict[str, str]:
    found = parse({"engines": [{"node_id": "a", "engine": "http://127.0.0.1:1"} | engine]})
    assert isinstance(found, list), found
    return {fault.path.removeprefix("engines.0."): fault.wanted for fault in found}


@pytest.mark.parametrize(
    ("mapping", "path", "wanted"),
    [
        (None, "generic", "a mapping from fields to metrics, as engine_kind: generic needs"),
        ({}, "generic", "at least one field of a report"),
        ({"kv_usage": None}, "generic", "at least one field of a report"),
        ("kv_usage", "generic", "a mapping"),
        ({"kv_cache_usage": "a"}, "generic.kv_cache_usage", "a known key"),
        ({"kv_usage": "a +"}, "generic.kv_usage", "ends too early"),
        ({"kv_usage": "a ** 2"}, "generic.kv_usage", "character 4"),
        ({"kv_usage": True}, "generic.kv_usage", "an expression, as a text or a number"),
        ({"kv_usage": ["a"]}, "generic.kv_usage", "an expression, as a text or a number"),
        ({"kv_usage": "a" * 501}, "generic.kv_usage", "500 characters"),
        ({"decode_ms_per_token": "a"}, "generic.decode_ms_per_token", "a mapping"),
        ({"decode_ms_per_token": {"seconds": "a"}}, "generic.decode_ms_per_token.count", "a value"),
        (
            {"decode_ms_per_token": {"seconds": "(", "count": 1}},
            "generic.decode_ms_per_token.seconds",
            "ends too early",
        ),
        ({"decode_ms_per_token": {"seconds": 1, "count": 1, "ms": 1}}, "generic.decode_ms_per_token.ms", "a known key"),
    ],
)
def test_a_wrong_mapping_is_a_fault_with_its_path(mapping: object, path: str, wanted: str) -> None:
    found = faults({"engine_kind": "generic", "generic": mapping})
    assert found.keys() == {path}
    assert wanted in found[path]


def test_a_mapping_is_for_the_generic_kind_only() -> None:
    for kind in ("vllm", "auto"):
        found = faults({"engine_kind": kind, "generic": {"kv_usage": "a"}})
        assert found == {"generic": "no mapping, since it is only for engine_kind: generic"}
    assert faults({"engine_kind": "unknown", "generic": {"kv_usage": "a"}}).keys() == {"engine_kind"}


async def test_a_generic_engine_is_watched_where_its_metrics_are() -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        engine.pages |= {"/metrics": 404, "/v1/models": 404, "/stats": "busy 3\n"}
        config = EngineConfig.model_validate(
            {"node_id": "n", "engine": engine.url, "engine_kind": "generic", "metrics": "/stats"}
            | {"generic": {"requests_running": "busy"}, "models": [{"name": "m"}]}
        )
        seen = await EngineWatch(pages, config, 5.0, 3600).look()
    assert (seen.state, seen.models) == (NodeState.READY, (ServedModel("m"),))
    assert seen.reading.requests_running == 3


def test_a_page_that_did_not_come_is_told() -> None:
    adapter = adapter_of(GenericConfig.model_validate({"kv_usage": "a"}))
    reading, before = adapter.read({"/metrics": Missing("/metrics answers 500")}, None)
    assert before is None
    assert set(reading.absent.values()) == {"/metrics answers 500"}


NUMBERS = st.one_of(st.floats(), st.integers(-2, 10), st.integers(0, 2**60), st.just("garbage"))
EXPRESSIONS = st.sampled_from(["a", "b", "sum(a)", "a / b", "a - b", "a * b * 7", "1e300 * a", "(a + b) / 2"])
MEANS = ("prefill_latency_ms", "decode_ms_per_token")
MAPPINGS = st.dictionaries(st.sampled_from(MEASURED), EXPRESSIONS, min_size=1).map(
    lambda mapping: {
        field: {"seconds": text, "count": "b"} if field in MEANS else text for field, text in mapping.items()
    }
)


@settings(deadline=None)
@given(MAPPINGS, st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=3))
def test_whatever_it_tells_nothing_is_raised_and_nothing_is_out_of_bounds(
    mapping: dict[str, object], looks: list[tuple[object, object]]
) -> None:
    engine = Engine(mapping)
    for a, b in looks:
        reading = engine(f"a {a}\nb {b}\n")
        assert in_bounds(reading)
        assert reading.absent.keys() == {name for name in MEASURED if getattr(reading, name) is None}
