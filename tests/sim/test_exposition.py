"""/metrics against text captured from a real vLLM 0.32."""

import functools
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Request
from extproc.sim.exposition import EngineCollector

CAPTURED = Path(__file__).parents[1] / "samples" / "vllm_0.32.0_cpu_load_3.prom"
STARTED_AT_S = 1_700_000_000.5


def engine_with_load() -> Engine:
    """Of five requests one is finished, one aborted, two run and one waits."""
    engine = Engine(EngineSettings(kv_blocks=101, context_length_tokens=1600, sequences_max=3))
    engine.submit(Request("done", 40, 2, block_keys=(1, 2)), 0.0)
    engine.submit(Request("gone", 10, 50), 0.0)
    for name in "abc":
        engine.submit(Request(name, 40, 50, block_keys=(1, 2)), 0.0)
    end_s = 0.0
    for _ in range(2):
        end_s = engine.next_step_end_s or 0.0
        engine.advance(end_s)
    engine.abort("gone", end_s)
    engine.advance(engine.next_step_end_s or 0.0)
    return engine


def exposed(engine: Engine, model: str = "tiny") -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, model, STARTED_AT_S))
    return families(generate_latest(registry).decode())


@functools.cache
def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def series(family: Metric, without: tuple[str, ...] = ()) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Sample names with their labels."""
    return {
        (sample.name, tuple(sorted(pair for pair in sample.labels.items() if pair[0] not in without)))
        for sample in family.samples
    }


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in metrics.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, found)
    return found[0]


def test_every_family_of_vllm_is_there_and_no_other() -> None:
    captured = {name for name in families(CAPTURED.read_text()) if name.startswith("vllm:")}
    assert len(captured) > 50
    assert set(exposed(engine_with_load())) == captured | {"process_start_time_seconds"}


@pytest.mark.parametrize(
    "name", sorted(n for n in families(CAPTURED.read_text()) if n.startswith("vllm:") and "cache_config" not in n)
)
def test_a_family_has_the_type_the_labels_and_the_buckets_of_vllm(name: str) -> None:
    ours, theirs = exposed(engine_with_load())[name], families(CAPTURED.read_text())[name]
    assert ours.type == theirs.type
    assert series(ours) == series(theirs)


def test_the_cache_config_has_the_labels_of_vllm_and_our_pool() -> None:
    (ours,) = exposed(engine_with_load())["vllm:cache_config_info"].samples
    (theirs,) = families(CAPTURED.read_text())["vllm:cache_config_info"].samples
    assert ours.labels.keys() == theirs.labels.keys()
    assert ours.value == 1.0
    assert (ours.labels["block_size"], ours.labels["num_gpu_blocks"], ours.labels["engine"]) == ("16", "101", "0")
    assert (ours.labels["kv_cache_size_tokens"], ours.labels["kv_cache_max_concurrency"]) == ("1616", "1.01")


def test_values_are_those_of_the_engine() -> None:
    engine = engine_with_load()
    metrics = exposed(engine)
    assert value(metrics, "process_start_time_seconds") == STARTED_AT_S
    assert value(metrics, "vllm:num_requests_running", engine="0", model_name="tiny") == 2
    assert value(metrics, "vllm:num_requests_waiting") == 1
    assert value(metrics, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
    assert value(metrics, "vllm:kv_cache_usage_perc") == engine.counters.kv_cache_usage > 0
    assert value(metrics, "vllm:request_success_total", finished_reason="length") == 1
    assert value(metrics, "vllm:request_success_total", finished_reason="abort") == 0
    assert value(metrics, "vllm:time_to_first_token_seconds_count") == 4
    assert value(metrics, "vllm:generation_tokens_total") == engine.counters.generation_tokens
    computed = value(metrics, "vllm:prompt_tokens_by_source_total", source="local_compute")
    cached = value(metrics, "vllm:prompt_tokens_by_source_total", source="local_cache_hit")
    assert cached == value(metrics, "vllm:prompt_tokens_cached_total") == 64
    # Hits count at admission, prompt tokens at the first token: "c" has just been admitted.
    assert value(metrics, "vllm:prefix_cache_hits_total") == 96
    assert value(metrics, "vllm:prompt_tokens_cached_by_source_total", source="device") == 96
    assert value(metrics, "vllm:prompt_tokens_total") == computed + cached == 130
    iterations = value(metrics, "vllm:iteration_tokens_total_sum")
    assert iterations == computed + value(metrics, "vllm:generation_tokens_total")


def test_buckets_are_cumulative_and_end_in_the_count() -> None:
    metrics = exposed(engine_with_load())
    buckets = [s for s in metrics["vllm:inter_token_latency_seconds"].samples if s.name.endswith("_bucket")]
    counts = [bucket.value for bucket in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == value(metrics, "vllm:inter_token_latency_seconds_count") > 0
    # A step of this engine lasts about 19 ms.
    assert {bucket.labels["le"]: bucket.value for bucket in buckets}["0.01"] == 0
    assert {bucket.labels["le"]: bucket.value for bucket in buckets}["0.025"] == counts[-1]


def test_a_model_name_with_quotes_is_escaped() -> None:
    metrics = exposed(engine_with_load(), 'a "b"\\c\n')
    assert value(metrics, "vllm:num_requests_running", model_name='a "b"\\c\n') == 2
