"""Quotas as the balancer keeps them: taken when a request goes or waits, given back however it ends."""

from typing import Any

import pytest

from extproc.core.admissionsettings import PriorityClass, Quota
from extproc.core.aliases import Frozen
from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen, Decision, Queued, Refusal, Refused
from extproc.core.fleetstate import BOOT_S_MIN
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint
from extproc.core.settings import BalancerSettings, ExpectedRates, NodeLimits
from extproc.core.snapshot import NodeReported, ServedModel
from tests.core.fleet import NOW_S, request, snapshot

OUTPUT_TOKENS = 100
TOKENS = 10 + OUTPUT_TOKENS
POLICY = RoutingPolicy()
PATIENT = RoutingPolicy(priority="batch")


def fleet(*quotas: Quota, **snapshots: Any) -> Balancer:
    settings = BalancerSettings(
        nodes=NodeLimits(fresh_s=3000, stale_s=3000, member_s=9000),
        rates=ExpectedRates(output_tokens=OUTPUT_TOKENS),
        quotas=quotas,
        classes={"standard": PriorityClass(), "batch": PriorityClass(queue_ms_max=1000)},
    )
    made = Balancer(settings, NOW_S - 100)
    made.observe(NodeReported(snapshot("a", **snapshots)), NOW_S)
    return made


def ask(balancer: Balancer, name: str, now_s: float = NOW_S, policy: RoutingPolicy = POLICY, **fields: Any) -> Decision:
    asked = request(name, tokens=10, tenant="acme", priority=policy.priority or "", **fields)
    return balancer.route(asked, policy, now_s)


def is_over_quota(decision: Decision) -> bool:
    outcome = decision.outcome
    return isinstance(outcome, Refused) and outcome.refusal is Refusal.RATE_LIMIT_EXCEEDED


CONCURRENT = Quota(concurrent_tokens=TOKENS)


def test_what_goes_is_in_flight_until_its_stream_ends() -> None:
    balancer = fleet(CONCURRENT)
    assert isinstance(ask(balancer, "r1").outcome, Chosen)
    refused = ask(balancer, "r2").outcome
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.RATE_LIMIT_EXCEEDED
    assert dict(refused.headers)["x-ratelimit-limit-tokens"] == str(TOKENS)
    assert balancer.requests_open == 1, "what is refused is sent nowhere"
    balancer.finish("r1", NOW_S + 1)
    assert isinstance(ask(balancer, "r3", NOW_S + 1).outcome, Chosen)


def test_would_route_takes_nothing() -> None:
    balancer = fleet(CONCURRENT)
    asked = request("r1", tokens=10, tenant="acme")
    for _ in range(2):
        assert isinstance(balancer.would_route(asked, POLICY, NOW_S).outcome, Chosen)
    assert isinstance(ask(balancer, "r1").outcome, Chosen)
    assert is_over_quota(balancer.would_route(request("r2", tokens=10, tenant="acme"), POLICY, NOW_S))


@pytest.mark.parametrize("how", ["its client left", "its time was up", "we ended"])
def test_who_waited_and_never_went_used_nothing(how: str) -> None:
    balancer = fleet(Quota(tokens_per_minute=TOKENS, concurrent_tokens=TOKENS), requests_waiting=100)
    assert isinstance(ask(balancer, "r1", policy=PATIENT).outcome, Queued)
    assert is_over_quota(ask(balancer, "r2", policy=PATIENT)), "who waits counts"
    match how:
        case "its client left":
            balancer.finish("r1", NOW_S)
        case "its time was up":
            (decision,) = balancer.admit(NOW_S + 1)
            assert isinstance(decision.outcome, Refused)
        case _:
            (decision,) = balancer.drain(NOW_S)
            assert isinstance(decision.outcome, Refused)
    assert isinstance(ask(balancer, "r3", NOW_S + 1, policy=PATIENT).outcome, Queued)


def test_who_waited_and_went_is_in_flight_as_before() -> None:
    balancer = fleet(CONCURRENT, requests_waiting=100)
    assert isinstance(ask(balancer, "r1", policy=PATIENT).outcome, Queued)
    balancer.observe(NodeReported(snapshot("a", sequence=2)), NOW_S + 0.5)
    (decision,) = balancer.admit(NOW_S + 0.5)
    assert isinstance(decision.outcome, Chosen)
    assert is_over_quota(ask(balancer, "r2", NOW_S + 0.5))
    balancer.finish("r1", NOW_S + 0.6)
    assert isinstance(ask(balancer, "r3", NOW_S + 0.6).outcome, Chosen)


@pytest.mark.parametrize("order", ["the stream ends first", "the log tells first", "the log alone tells"])
def test_a_minutes_tokens_are_those_that_the_engine_counted(order: str) -> None:
    """A short answer gives the rest back, whichever is told first: that the stream ended, or what was used."""
    balancer = fleet(Quota(tokens_per_minute=2 * TOKENS - 60))
    assert isinstance(ask(balancer, "r1").outcome, Chosen)
    assert is_over_quota(ask(balancer, "r2"))
    used = Answered("r1", Ending.SERVED, model="llama", output_tokens=5, used_tokens=15)
    if order == "the stream ends first":
        balancer.finish("r1", NOW_S)
        assert is_over_quota(ask(balancer, "r3")), "until it is told otherwise it used what it might"
    balancer.answered(used, NOW_S)
    if order == "the log tells first":
        balancer.finish("r1", NOW_S)
    balancer.answered(used, NOW_S)
    assert isinstance(ask(balancer, "r4", output_tokens_max=90).outcome, Chosen)


def test_a_request_whose_end_nobody_tells_is_over_when_it_is_forgotten() -> None:
    balancer = fleet(CONCURRENT)
    ask(balancer, "r1")
    balancer.leave("r1", NOW_S + 1)
    assert is_over_quota(ask(balancer, "r2", NOW_S + 2)), "its answer may still run"
    balancer.tick(NOW_S + 1000)
    assert isinstance(ask(balancer, "r3", NOW_S + 1000).outcome, Chosen)


def test_a_request_that_was_left_ends_with_its_engine() -> None:
    balancer = fleet(CONCURRENT)
    ask(balancer, "r1")
    balancer.leave("r1", NOW_S + 1)
    balancer.observe(NodeReported(snapshot("a", boot_id="another")), NOW_S + BOOT_S_MIN)
    assert isinstance(ask(balancer, "r2", NOW_S + BOOT_S_MIN).outcome, Chosen)


def test_a_model_that_nobody_serves_and_a_prompt_too_long_use_nothing() -> None:
    balancer = fleet(CONCURRENT)
    assert isinstance(ask(balancer, "r1", model="nobody's").outcome, Refused)
    assert isinstance(ask(balancer, "r2").outcome, Chosen)


def test_who_is_refused_for_its_quota_takes_no_turn_of_the_round_robin() -> None:
    balancer = fleet(Quota(tenant="acme", concurrent_tokens=9))
    balancer.observe(NodeReported(snapshot("b")), NOW_S)
    late_s = NOW_S + 3001

    def served(name: str) -> str:
        decision = balancer.route(request(name, tokens=10), POLICY, late_s)
        assert isinstance(decision.outcome, Chosen)
        assert decision.outcome.fallback
        return decision.outcome.node_id

    before = served("r1")
    assert is_over_quota(ask(balancer, "r2", late_s))
    assert served("r3") != before


def test_answers_count_as_long_as_the_client_allows_where_it_says_so() -> None:
    balancer = fleet(Quota(concurrent_tokens=10 + 500))
    assert is_over_quota(ask(balancer, "r1", output_tokens_max=501))
    assert isinstance(ask(balancer, "r2", output_tokens_max=500).outcome, Chosen)


def test_a_node_that_was_not_there_costs_nothing() -> None:
    balancer = fleet(Quota(tokens_per_minute=TOKENS))
    for name in ("r1", "r2"):
        assert isinstance(ask(balancer, name).outcome, Chosen)
        balancer.answered(Answered(name, Ending.UNREACHABLE), NOW_S)
    balancer.observe(NodeReported(snapshot("a", sequence=2)), NOW_S)


def needed(balancer: Balancer, model: str) -> tuple[float, int]:
    (found,) = [one for one in balancer.forecasts(NOW_S + 100) if one.model == model]
    return found.requests_per_s, found.nodes_needed


def test_what_cannot_be_served_with_more_nodes_either_is_not_forecast() -> None:
    balancer = fleet(Quota(tenant="poor", tokens_per_minute=1))
    for number in range(300):
        now_s = NOW_S + number / 3
        balancer.route(request(f"long{number}", tokens=9000), POLICY, now_s)
        balancer.route(request(f"poor{number}", tokens=10, tenant="poor"), POLICY, now_s)
        balancer.route(request(f"nobody{number}", model=f"name-{number}"), POLICY, now_s)
    assert needed(balancer, "llama") == (0.0, 1)


def test_what_another_model_serves_is_forecast_for_the_one_that_was_asked_for() -> None:
    balancer = fleet(requests_waiting=100)
    balancer.observe(NodeReported(snapshot("s", models=(ServedModel("small"),))), NOW_S)
    policy = RoutingPolicy(fallback_models=Frozen({"llama": "small"}))
    for number in range(50):
        decision = balancer.route(request(f"r{number}", tokens=10), policy, NOW_S + 50 + number)
        assert decision.model == "small"
    assert needed(balancer, "llama")[0] > 0
    assert needed(balancer, "small")[0] == 0


def test_a_guess_refuses_nobody_for_good() -> None:
    """Answers of the model have been long, and nobody said how long these may be."""
    balancer = fleet(Quota(tokens_per_minute=150, concurrent_tokens=1000))
    for number in range(100):
        balancer.answered(Answered(f"other{number}", Ending.SERVED, model="llama", output_tokens=30_000), NOW_S)
    assert isinstance(ask(balancer, "r1").outcome, Chosen), "it is counted with all that the minute holds"
    assert is_over_quota(ask(balancer, "r2"))
    balancer.answered(Answered("r1", Ending.SERVED, used_tokens=60), NOW_S + 1)
    assert isinstance(ask(balancer, "r3", NOW_S + 60).outcome, Chosen)
    assert is_over_quota(ask(balancer, "r4", NOW_S + 500, output_tokens_max=141)), "what is certain to be too much is"


def test_embeddings_have_no_answers_to_wait_for() -> None:
    balancer = fleet()
    for number in range(200):
        batch = request(f"r{number}", tokens=200, endpoint=Endpoint.EMBEDDING, sequences=100)
        balancer.route(batch, POLICY, NOW_S + number / 2)
    (found,) = balancer.forecasts(NOW_S + 100)
    assert found.nodes_needed == 1
    assert 1.5 < found.requests_per_s < 2.5, "a batch is one"
    assert found.output_tokens_per_s < 20, "it has been learned that they have none"


def test_names_that_clients_invent_are_not_forecast_though_a_node_may_serve_them() -> None:
    balancer = fleet()
    balancer.observe(NodeReported(snapshot("u", models=None)), NOW_S)
    for number in range(5):
        asked = request(f"r{number}", tokens=10, model=f"invented-{number}")
        assert isinstance(balancer.route(asked, POLICY, NOW_S + number).outcome, Chosen)
    assert [one.model for one in balancer.forecasts(NOW_S + 10)] == ["llama"]
