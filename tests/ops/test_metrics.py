import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.decision import Chosen, Decision, Outcome, Refusal, Refused, Unknown
from extproc.core.request import Phase
from extproc.core.snapshot import Freshness, NodeState, NodeView, OwnLoad, Snapshot
from extproc.ops.metrics import Estimated, Metrics, NodeSample


def decision(outcome: Outcome, *, tokens: int | None = 100, phase: Phase | None = Phase.DECODE) -> Decision:
    return Decision(
        request_id="r",
        trace_id="",
        at_s=1.0,
        model="m",
        prompt_tokens=tokens,
        tokens_exact=True,
        phase=phase,
        policy="default",
        strategy="load-score",
        outcome=outcome,
        candidates=(),
    )


def chosen(node_id: str, *, fallback: bool = False) -> Chosen:
    return Chosen(node_id, "127.0.0.1:8000", "it is there", fallback=fallback)


def sample(node_id: str, *, kv_usage: float | None, freshness: Freshness = Freshness.FRESH) -> NodeSample:
    snapshot = Snapshot(node_id, "127.0.0.1:8000", "b", 1, 0.0, NodeState.READY, kv_usage=kv_usage, requests_waiting=3)
    return NodeSample(NodeView(snapshot, 5.0, None, OwnLoad(sequences_open=2)), freshness, 1.5)


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
    metrics.decided(decision(outcome), 0.00003)
    found = series(metrics)
    assert at(found, "extproc_decisions_total", outcome=label, phase="decode") == 1
    assert at(found, "extproc_decide_seconds_bucket", le="5e-05") == 1
    assert at(found, "extproc_decide_seconds_bucket", le="2e-05") == 0
    assert at(found, "extproc_prompt_tokens_sum") == 100


def test_paths_that_are_no_inference_have_no_phase_and_no_tokens(metrics: Metrics) -> None:
    metrics.decided(decision(chosen("a", fallback=True), tokens=None, phase=None), 0.0)
    found = series(metrics)
    assert at(found, "extproc_decisions_total", outcome="fallback", phase="none") == 1
    assert at(found, "extproc_prompt_tokens_count") == 0


def test_requests_are_counted_by_node_until_the_node_is_forgotten(metrics: Metrics) -> None:
    for node_id in ("a", "a", "b"):
        metrics.decided(decision(chosen(node_id)), 0.0)
    assert at(series(metrics), "extproc_node_requests_total", node="a") == 2
    metrics.keep_nodes({"b", "c"})
    found = series(metrics)
    assert at(found, "extproc_node_requests_total", node="a") is None
    assert at(found, "extproc_node_requests_total", node="b") == 1
    metrics.keep_nodes(set())
    metrics.decided(decision(chosen("a")), 0.0)
    assert at(series(metrics), "extproc_node_requests_total", node="a") == 1


def test_what_happens_in_the_gateway_is_counted(metrics: Metrics) -> None:
    metrics.responded("overloaded")
    metrics.policy_fault()
    metrics.watch_gateway(lambda: 2, lambda: 7)
    metrics.snapshot("refused")
    metrics.our_error("session")
    metrics.tokens(0.002, exact=True)
    metrics.tokens_estimated(Estimated.BUSY)
    found = series(metrics)
    assert at(found, "extproc_responses_total", code="overloaded") == 1
    assert at(found, "extproc_policy_faults_total") == 1
    assert at(found, "extproc_streams_open") == 2
    assert at(found, "extproc_body_bytes_held") == 7
    assert at(found, "extproc_snapshots_total", verdict="refused") == 1
    assert at(found, "extproc_errors_total", where="session") == 1
    assert at(found, "extproc_token_count_seconds_bucket", exact="true", le="0.003") == 1
    assert at(found, "extproc_token_estimates_total", reason="busy") == 1


def test_a_node_has_gauges_and_what_is_unknown_has_none(metrics: Metrics) -> None:
    nodes = (sample("a", kv_usage=0.25), sample("b", kv_usage=None, freshness=Freshness.STALE))
    found = series(metrics, *nodes)
    assert at(found, "extproc_nodes", state="ready", freshness="fresh") == 1
    assert at(found, "extproc_nodes", state="ready", freshness="stale") == 1
    assert at(found, "extproc_node_kv_usage_ratio", node="a") == 0.25
    assert at(found, "extproc_node_kv_usage_ratio", node="b") is None
    assert at(found, "extproc_node_requests_waiting", node="a") == 3
    assert at(found, "extproc_node_sequences_open", node="a") == 2
    assert at(found, "extproc_node_snapshot_age_seconds", node="a") == 1.5
    assert at(found, "extproc_node_fresh", node="a") == 1
    assert at(found, "extproc_node_fresh", node="b") == 0


def test_gauges_do_not_outlive_their_node(metrics: Metrics) -> None:
    assert at(series(metrics, sample("a", kv_usage=0.5)), "extproc_node_fresh", node="a") == 1
    assert at(series(metrics), "extproc_node_fresh", node="a") is None


def test_a_node_id_may_hold_any_character(metrics: Metrics) -> None:
    odd = 'a"\\\n é'
    assert at(series(metrics, sample(odd, kv_usage=0.5)), "extproc_node_kv_usage_ratio", node=odd) == 0.5


def test_every_name_is_ours_or_the_processs_and_has_a_help_text(metrics: Metrics) -> None:
    families = list(text_string_to_metric_families(metrics.page([sample("a", kv_usage=0.5)]).decode()))
    assert len(families) > 15
    for family in families:
        assert family.name.startswith(("extproc_", "process_")), family.name
        assert len(family.documentation) > 10, family.name
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
