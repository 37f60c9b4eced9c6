"""What is learned and counted of answers that Envoy says have ended."""

import pytest
from msgspec.structs import replace

from extproc.assembling import ended
from extproc.core.decision import Chosen
from extproc.core.policy import RoutingPolicy
from extproc.gateway.accesslog import AnswerEnded
from extproc.ops.metrics import Metrics
from tests.core.fleet import MODEL, NOW_S, balancer, request, snapshot


@pytest.mark.parametrize("exact", [True, False])
def test_what_the_engine_counted_is_compared_with_our_count(exact: bool) -> None:
    metrics = Metrics()
    answer = AnswerEnded("a-1", 200, "via_upstream", (), "10.0.0.1:80", 0.25, 2.0, "m", 10, exact, 12, 5)
    for one in (answer, replace(answer, prompt_tokens=None), replace(answer, counted_tokens=None)):
        ended(balancer(), metrics, lambda: NOW_S, one)
    page = metrics.page(()).decode()
    for name, label, number in (
        ("extproc_token_usage_difference_tokens_bucket", f'exact="{str(exact).lower()}",le="1.0"', 0),
        ("extproc_token_usage_difference_tokens_bucket", f'exact="{str(exact).lower()}",le="10.0"', 1),
        ("extproc_token_usage_difference_tokens_bucket", f'exact="{str(not exact).lower()}",le="+Inf"', 0),
        ("extproc_answers_total", 'status="2xx"', 3),
        ("extproc_answer_seconds_bucket", 'le="1.0"', 0),
        ("extproc_answer_seconds_bucket", 'le="3.0"', 3),
        ("extproc_answer_first_byte_seconds_bucket", 'le="0.3"', 3),
    ):
        assert f"{name}{{{label}}} {number}.0" in page.splitlines(), (name, label)


def test_the_balancer_learns_how_requests_ended_that_it_sent_or_another() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    assert isinstance(fleet.route(request("a-1"), RoutingPolicy(), NOW_S).outcome, Chosen)
    good = AnswerEnded("a-1", 200, "via_upstream", (), None, 0.25, 2.0, MODEL, 10, True, None, 900)
    ended(fleet, Metrics(), lambda: NOW_S, good)
    assert fleet.requests_open == 0
    # Of a request that another process sent: it says as much about the node.
    bad = replace(good, request_id="other-1", status=503, upstream_host=snapshot("a").host, completion_tokens=None)
    ended(fleet, Metrics(), lambda: NOW_S, bad)
    # Neither of a node of ours, nor of a request of ours.
    ended(fleet, Metrics(), lambda: NOW_S, replace(bad, request_id="other-2", upstream_host="10.9.9.9:1"))
    sent = [fleet.route(request(f"a-{number}"), RoutingPolicy(), NOW_S).outcome for number in range(2, 10)]
    assert [one.node_id for one in sent if isinstance(one, Chosen)] == ["b"] * 8


def test_a_node_that_failed_before_another_served_is_left_out() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    host, other = snapshot("a").host, snapshot("b").host
    answer = AnswerEnded(
        "other-1", 200, "via_upstream", (), other, 0.25, 2.0, MODEL, 10, True, None, 9, failed_host=host
    )
    ended(fleet, Metrics(), lambda: NOW_S + 1.9, answer)
    assert fleet.out_until_s == {}, "that was before it was ready"
    ended(fleet, Metrics(), lambda: NOW_S + 2.1, answer)
    assert set(fleet.out_until_s) == {"a"}
