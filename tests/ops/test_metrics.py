import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.decision import Chosen, Decision, Outcome, Refusal, Refused, Unknown
from extproc.core.loads import view_of
from extproc.core.request import CountSource, Phase
from extproc.core.snapshot import Freshness, Learned, NodeState, OwnLoad, Snapshot
from extproc.ops.metrics import Metrics
from extproc.ops.nodegauges import NodeSample
from extproc.ops.requestmetrics import POLICIES_COUNTED_MAX
from extproc.ops.tokenmetrics import Estimated


def decision(outcome: Outcome, *, tokens: int | None = 100, phase: Phase | None = Phase.DECODE) -> Decision:
    return Decision(
        request_id="r",
        trace_id="",
        at_s=1.0,
        model="m",
        prompt_tokens=tokens,
        tokens_exact=True,
        tokens_source=CountSource.COUNTED,
        phase=phase,
        uncached_tokens=tokens,
        policy="default",
        strategy="least-added-delay",
        outcome=outcome,
        candidates=(),
    )


def chosen(node_id: str, *, fallback: bool = False) -> Chosen:
    return Chosen(node_id, "127.0.0.1:8000", "it is there", fallback=fallback)


def sample(
    node_id: str, *, kv_usage: float | None, freshness: Freshness = Freshness.FRESH, out_s: float | None = None
) -> NodeSample:
    snapshot = Snapshot(
        node_id,
        "127.0.0.1:8000",
        "b",
        1,
        0.0,
        NodeState.READY,
        kv_usage=kv_usage,
        requests_running=4,
        requests_waiting=3,
    )
    own = OwnLoad(sequences_open=2, sequences_unseen=1, prefill_tokens=500, prefills_of_others=2)
    view = view_of(snapshot, 5.0, 0.0, own, Learned(4000.0, 100.0, cache_trust=0.25))
    return NodeSample(view, freshness, 1.5, 700.0, out_s, 7 if node_id == "a" else None, view.own)


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(metrics: Metrics, *nodes: NodeSample) -> Series:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(metrics.page(nodes).decode())
        for one in family.samples
    }


def at(found: Series, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        (chosen("a"), "chosen"),
        (chosen("a", fallback=True), "fallback"),
        (Unknown("empty"), "unknown"),
        *((Refused(refusal, "no"), refusal.value) for refusal in Refusal),
    ],
)
def test_decisions_are_counted_by_outcome_and_phase(metrics: Metrics, outcome: Outcome, label: str) -> None:
    metrics.requests.decided(decision(outcome), 0.00003)
    found = series(metrics)
    assert at(found, "extproc_decisions_total", outcome=label, phase="decode") == 1
    assert at(found, "extproc_decide_seconds_bucket", le="5e-05") == 1
    assert at(found, "extproc_decide_seconds_bucket", le="2e-05") == 0
    assert at(found, "extproc_prompt_tokens_sum") == 100
    assert at(found, "extproc_uncached_prompt_tokens_total") == 100


def test_the_control_arm_of_a_canary_is_no_fallback(metrics: Metrics) -> None:
    by_turn, full = decision(chosen("a", fallback=True)), decision(Refused(Refusal.OVERLOADED, "no"))
    arms = [(by_turn, "control", "control"), (by_turn, "strategy", "fallback"), (full, "control", "overloaded")]
    for one, arm, label in arms:
        metrics.requests.decided(replace(one, arm=arm), 0.0)
        assert at(series(metrics), "extproc_decisions_total", outcome=label, phase="decode") == 1
        assert at(series(metrics), "extproc_decisions_by_arm_total", policy="default", arm=arm, outcome=label) == 1


def test_decisions_are_counted_by_policy_and_arm_and_further_policies_together(metrics: Metrics) -> None:
    for number in range(POLICIES_COUNTED_MAX + 5):
        one = replace(decision(chosen("a")), policy=f"p{number}", arm="control")
        metrics.requests.decided(one, 0.0)
    metrics.requests.decided(replace(decision(chosen("a")), policy="p0", arm="strategy"), 0.0)
    metrics.requests.decided(decision(chosen("a")), 0.0)  # of no arm
    found = series(metrics)
    name, values = "extproc_decisions_by_arm_total", {"outcome": "chosen"}
    assert at(found, name, policy="p0", arm="control", **values) == 1
    assert at(found, name, policy="p0", arm="strategy", **values) == 1
    assert at(found, name, policy="other", arm="control", **values) == 5
    assert sum(one == name for one, _ in found) == POLICIES_COUNTED_MAX + 2


def test_answers_are_counted_by_arm_where_it_is_known(metrics: Metrics) -> None:
    metrics.answers.ended(200, 7, 0.2, 1.0, "control")
    metrics.answers.ended(503, None, None, None, "control")
    metrics.answers.ended(200, 7, 0.2, 1.0, "whatever a log says")
    found = series(metrics)
    assert at(found, "extproc_answers_by_arm_total", arm="control", status="2xx") == 1
    assert at(found, "extproc_answers_by_arm_total", arm="control", status="5xx") == 1
    assert at(found, "extproc_answer_first_byte_by_arm_seconds_count", arm="control") == 1
    assert at(found, "extproc_answer_first_byte_by_arm_seconds_count", arm="strategy") == 0
    assert at(found, "extproc_answer_first_byte_seconds_count") == 2
    assert "whatever" not in str(found)


def test_paths_that_are_no_inference_have_no_phase_and_no_tokens(metrics: Metrics) -> None:
    metrics.requests.decided(decision(chosen("a", fallback=True), tokens=None, phase=None), 0.0)
    found = series(metrics)
    assert at(found, "extproc_decisions_total", outcome="fallback", phase="none") == 1
    assert at(found, "extproc_prompt_tokens_count") == 0


def test_requests_are_counted_by_node_until_the_node_is_forgotten(metrics: Metrics) -> None:
    for node_id in ("a", "a", "b"):
        metrics.requests.decided(decision(chosen(node_id)), 0.0)
    assert at(series(metrics), "extproc_node_requests_total", node="a") == 2
    metrics.requests.keep_nodes({"b", "c"})
    found = series(metrics)
    assert at(found, "extproc_node_requests_total", node="a") is None
    assert at(found, "extproc_node_requests_total", node="b") == 1
    metrics.requests.keep_nodes(set())
    metrics.requests.decided(decision(chosen("a")), 0.0)
    assert at(series(metrics), "extproc_node_requests_total", node="a") == 1


def test_what_happens_in_the_gateway_is_counted(metrics: Metrics) -> None:
    metrics.requests.responded("overloaded")
    metrics.requests.policy_fault()
    metrics.requests.watch(lambda: 2, lambda: 7)
    metrics.snapshot("refused")
    metrics.our_error("session")
    found = series(metrics)
    assert at(found, "extproc_responses_total", code="overloaded") == 1
    assert at(found, "extproc_policy_faults_total") == 1
    assert at(found, "extproc_streams_open") == 2
    assert at(found, "extproc_body_bytes_held") == 7
    assert at(found, "extproc_snapshots_total", verdict="refused") == 1
    assert at(found, "extproc_errors_total", where="session") == 1


def test_counts_are_told_by_their_source(metrics: Metrics) -> None:
    metrics.tokens.counted(CountSource.COUNTED, 0.002)
    metrics.tokens.counted(CountSource.COUNTED, 0.5)
    metrics.tokens.counted(CountSource.CACHED, 0.0002)
    metrics.tokens.estimated(Estimated.BUSY)
    found = series(metrics)
    for source, count in (("counted", 2), ("cached", 1), ("estimated", 1)):
        assert at(found, "extproc_token_counts_total", source=source) == count
    assert at(found, "extproc_token_count_seconds_bucket", source="counted", le="0.003") == 1
    assert at(found, "extproc_token_count_seconds_bucket", source="cached", le="0.0003") == 1
    assert at(found, "extproc_token_count_seconds_count", source="estimated") is None


@pytest.mark.parametrize("reason", Estimated)
def test_estimates_are_told_by_their_reason(metrics: Metrics, reason: Estimated) -> None:
    metrics.tokens.estimated(reason)
    found = series(metrics)
    for one in Estimated:
        assert at(found, "extproc_token_estimates_total", reason=one.value) == (one is reason)


def test_the_error_of_estimates_is_a_share(metrics: Metrics) -> None:
    metrics.tokens.estimate_error(0.03)
    metrics.tokens.estimate_error(5.0)
    found = series(metrics)
    assert at(found, "extproc_token_estimate_error_ratio_bucket", le="0.02") == 0
    assert at(found, "extproc_token_estimate_error_ratio_bucket", le="0.05") == 1
    assert at(found, "extproc_token_estimate_error_ratio_bucket", le="2.0") == 1
    assert at(found, "extproc_token_estimate_error_ratio_count") == 2


@pytest.mark.parametrize("exact", [True, False])
def test_how_often_engines_count_the_same_can_be_read_off(metrics: Metrics, exact: bool) -> None:
    for difference in (-20_000, -1, 0, 0, 0, 1, 20_000):
        metrics.tokens.usage_difference(difference, exact)
    found = series(metrics)

    def within(bound: str, label: bool) -> float:
        value = at(found, "extproc_token_usage_difference_tokens_bucket", exact=str(label).lower(), le=bound)
        assert value is not None
        return value

    assert within("0.0", exact) - within("-1.0", exact) == 3
    assert within("1.0", exact) - within("0.0", exact) == 1
    assert within("-1.0", exact) - within("-10.0", exact) == 1
    assert within("+Inf", exact) == 7
    assert within("+Inf", not exact) == 0


@pytest.mark.parametrize(
    ("status", "label"),
    [(100, "1xx"), (200, "2xx"), (302, "3xx"), (404, "4xx"), (503, "5xx"), (599, "5xx")]
    + [(one, "none") for one in (0, 99, 600, -1)],
)
def test_answers_are_counted_by_the_class_of_their_status(metrics: Metrics, status: int, label: str) -> None:
    metrics.answers.ended(status, None, None, None)
    found = series(metrics)
    for one in ("1xx", "2xx", "3xx", "4xx", "5xx", "none"):
        assert at(found, "extproc_answers_total", status=one) == (one == label)


def test_access_log_entries_are_read_or_ignored(metrics: Metrics) -> None:
    metrics.answers.ended(200, 40, 0.2, 2.0)
    metrics.answers.ended(200, 0, None, 2.0)
    metrics.answers.ended(200, None, None, None)
    metrics.answers.ignored(1)
    found = series(metrics)
    assert at(found, "extproc_access_log_entries_total", verdict="read") == 3
    assert at(found, "extproc_access_log_entries_total", verdict="ignored") == 1
    assert at(found, "extproc_answer_output_tokens_count") == 2
    assert at(found, "extproc_answer_output_tokens_sum") == 40


def test_tokenizers_are_told_with_what_they_count_by(metrics: Metrics) -> None:
    metrics.tokens.tokenizer_loaded("/models/qwen3", "fastokens", "agrees", "template", ["qwen3*", "q3"])
    metrics.tokens.tokenizer_loaded("x" * 300, "tokenizers", "y" * 300, "harmony", ["z" * 150, "z" * 150])
    found = series(metrics)
    name = "extproc_tokenizer_info"
    qwen = {"tokenizer": "/models/qwen3", "engine": "fastokens", "reason": "agrees", "renderer": "template"}
    assert at(found, name, **qwen, models="qwen3*, q3") == 1
    cut = {"tokenizer": "x" * 200, "engine": "tokenizers", "reason": "y" * 200, "renderer": "harmony"}
    assert at(found, name, **cut, models="z" * 150 + ", " + "z" * 48) == 1


def test_what_counting_holds_is_looked_up_for_each_page(metrics: Metrics) -> None:
    held = [1, 2]
    metrics.tokens.watch(lambda: held[0], lambda: held[1])
    held[:] = [3, 4]
    found = series(metrics)
    assert at(found, "extproc_token_waiting_bytes") == 3
    assert at(found, "extproc_token_cache_bytes") == 4


def test_a_node_has_gauges_and_what_is_unknown_has_none(metrics: Metrics) -> None:
    nodes = (sample("a", kv_usage=0.25), sample("b", kv_usage=None, freshness=Freshness.STALE))
    found = series(metrics, *nodes)
    assert at(found, "extproc_nodes", state="ready", freshness="fresh") == 1
    assert at(found, "extproc_nodes", state="ready", freshness="stale") == 1
    assert at(found, "extproc_node_kv_usage_ratio", node="a") == 0.25
    assert at(found, "extproc_node_kv_usage_ratio", node="b") is None
    assert at(found, "extproc_node_requests_waiting", node="a") == 3
    assert at(found, "extproc_node_sequences_open", node="a") == 2
    assert at(found, "extproc_node_in_flight", node="a") == 8
    assert at(found, "extproc_node_prefill_tokens_ahead", node="a") == 700
    assert at(found, "extproc_node_prefill_tokens_per_second", node="a") == 4000
    assert at(found, "extproc_node_cache_trust_ratio", node="a") == 0.25
    assert at(found, "extproc_node_kv_blocks_told", node="a") == 7
    assert at(found, "extproc_node_kv_blocks_told", node="b") is None
    assert at(found, "extproc_node_snapshot_age_seconds", node="a") == 1.5
    assert at(found, "extproc_node_fresh", node="a") == 1
    assert at(found, "extproc_node_fresh", node="b") == 0


@pytest.mark.parametrize(("out_s", "value"), [(None, 0), (3.0, 1), (-3.0, 1)])
def test_a_node_that_is_out_or_on_trial_is_told_apart(metrics: Metrics, out_s: float | None, value: float) -> None:
    found = series(metrics, sample("a", kv_usage=None, out_s=out_s))
    assert at(found, "extproc_node_out", node="a") == value


def test_gauges_do_not_outlive_their_node(metrics: Metrics) -> None:
    assert at(series(metrics, sample("a", kv_usage=0.5)), "extproc_node_fresh", node="a") == 1
    assert at(series(metrics), "extproc_node_fresh", node="a") is None


def test_a_node_id_may_hold_any_character(metrics: Metrics) -> None:
    odd = 'a"\\\n é'
    assert at(series(metrics, sample(odd, kv_usage=0.5)), "extproc_node_kv_usage_ratio", node=odd) == 0.5


def test_every_name_is_ours_or_the_processs_and_has_a_help_text(metrics: Metrics) -> None:
    families = list(text_string_to_metric_families(metrics.page([sample("a", kv_usage=0.5)]).decode()))
    names = {family.name for family in families if len(family.documentation) > 10}
    assert len(names) == len(families) > 25
    assert all(name.startswith(("extproc_", "process_")) for name in names), names
