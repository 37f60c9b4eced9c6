import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.decision import Chosen, Decision, Outcome, Refusal, Refused, Unknown
from extproc.ops.metrics import Metrics
from extproc.ops.queuemetrics import QueueMetrics
from tests.core.fleet import MODEL, NOW_S


def decision(outcome: Outcome, queued_s: float, priority: str = "batch") -> Decision:
    return Decision(
        request_id="r",
        trace_id="",
        at_s=NOW_S,
        model=MODEL,
        prompt_tokens=10,
        tokens_exact=True,
        tokens_source=None,
        phase=None,
        uncached_tokens=None,
        policy="default",
        strategy="least-added-delay",
        outcome=outcome,
        candidates=(),
        priority=priority,
        queued_s=queued_s,
    )


CHOSEN = Chosen("a", "127.0.0.1:8000", "it is there")
REFUSED = Refused(Refusal.OVERLOADED, "no", 1)


class Page:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queue = QueueMetrics(self.registry)

    def at(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(generate_latest(self.registry).decode()):
            for one in family.samples:
                if one.name == name and one.labels == labels:
                    return one.value
        return None

    def waited(self, priority: str, outcome: str) -> tuple[float | None, float | None]:
        """How many, and for how long together."""
        labels = {"priority": priority, "outcome": outcome}
        return self.at("extproc_queue_seconds_count", **labels), self.at("extproc_queue_seconds_sum", **labels)


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        (CHOSEN, "went"),
        (Unknown("nothing is known any more, so Envoy's own cluster serves"), "went"),
        *((Refused(refusal, "no"), "refused") for refusal in Refusal),
    ],
)
def test_how_long_a_request_waited_is_counted_by_its_class_and_end(outcome: Outcome, label: str) -> None:
    page = Page()
    page.queue.decided(decision(outcome, 0.5))
    page.queue.decided(decision(outcome, 2.0))
    page.queue.decided(decision(outcome, 4.0, "interactive"))
    assert page.waited("batch", label) == (2.0, 2.5)
    assert page.waited("interactive", label) == (1.0, 4.0)
    assert page.waited("batch", "refused" if label == "went" else "went") == (None, None)


@pytest.mark.parametrize("outcome", [CHOSEN, REFUSED])
def test_a_request_that_did_not_wait_is_not_counted(outcome: Outcome) -> None:
    page = Page()
    page.queue.decided(decision(outcome, 0.0))
    assert page.waited("batch", "went") == page.waited("batch", "refused") == (None, None)


def test_the_longest_wait_that_can_be_set_has_a_bucket() -> None:
    page = Page()
    page.queue.decided(decision(CHOSEN, 3600.0))
    labels = {"priority": "batch", "outcome": "went"}
    assert page.at("extproc_queue_seconds_bucket", le="3600.0", **labels) == 1.0
    assert page.at("extproc_queue_seconds_bucket", le="1800.0", **labels) == 0.0


def test_each_page_shows_who_waits_now_of_every_class() -> None:
    page = Page()
    depths = {"interactive": (0, 0), "batch": (3, 1200)}
    page.queue.watch(lambda: depths)
    for name, (requests, size) in depths.items():
        assert page.at("extproc_queue_requests", priority=name) == requests
        assert page.at("extproc_queue_body_bytes", priority=name) == size
    depths["interactive"] = (1, 80)
    assert page.at("extproc_queue_requests", priority="interactive") == 1.0
    assert page.at("extproc_queue_body_bytes", priority="interactive") == 80.0
    assert page.at("extproc_queue_requests", priority="batch") == 3.0


def test_the_queue_is_on_the_page_of_all_metrics() -> None:
    metrics = Metrics()
    metrics.queue.watch(lambda: {"batch": (3, 1200)})
    assert 'extproc_queue_requests{priority="batch"} 3.0' in metrics.page(()).decode().splitlines()
