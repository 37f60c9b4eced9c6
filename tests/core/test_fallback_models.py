"""Models with one that serves instead: where the own is overloaded, and the other can go now."""

from typing import Any

import pytest
from msgspec.structs import replace

from extproc.core.admissionsettings import Quota
from extproc.core.decision import Chosen, Decision, Queued, Refusal, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.snapshot import NodeState, OwnLoad
from tests.core.fleet import POLICY, request
from tests.core.waiters import Crowd, models

LARGE = RoutingPolicy(fallback_models={"large": "small", "small": "tiny"})


def crowd(large: int, small: int, **changes: Any) -> Crowd:
    """Two nodes with so many places, each with its model."""
    one = Crowd()
    one.node("l", large, models=models("large"), **changes)
    one.node("s", small, models=models("small"))
    return one


def asks(one: Crowd, request_id: str = "r1", priority: str = "low", **changes: Any) -> Decision:
    asked = request(request_id, priority=priority, model="large", **changes)
    return one.balancer.route(asked, LARGE, one.now_s)


def test_the_own_model_serves_as_long_as_it_can() -> None:
    one = crowd(1, 1)
    decision = asks(one)
    assert isinstance(decision.outcome, Chosen)
    assert (decision.outcome.node_id, decision.model) == ("l", "large")


def test_the_other_serves_where_the_own_is_overloaded() -> None:
    one = crowd(0, 1)
    decision = asks(one)
    assert isinstance(decision.outcome, Chosen)
    assert (decision.outcome.node_id, decision.model) == ("s", "small")
    owns: dict[str, OwnLoad] = {view.snapshot.node_id: view.own for view in one.balancer.views()}
    assert (owns["l"].sequences_open, owns["s"].sequences_open) == (0, 1), "it is counted where it goes"
    one.balancer.finish("r1", one.now_s)
    assert one.balancer.requests_open == 0


@pytest.mark.parametrize(("priority", "outcome"), [("never", Refused), ("low", Queued)])
def test_where_neither_can_go_it_is_told_so_of_its_own(priority: str, outcome: type) -> None:
    one = crowd(0, 0)
    decision = asks(one, priority=priority)
    assert isinstance(decision.outcome, outcome)
    assert decision.model == "large"
    assert [candidate.node_id for candidate in decision.candidates] == ["l"]
    if isinstance(decision.outcome, Refused):
        assert "`large`" in decision.outcome.message


@pytest.mark.parametrize(
    ("changes", "asked", "refusal"),
    [
        ({"state": NodeState.LOADING}, {}, Refusal.NO_READY_NODE),
        ({}, {"tokens": 9000}, Refusal.CONTEXT_LENGTH_EXCEEDED),
    ],
)
def test_only_overload_is_a_reason(changes: dict[str, Any], asked: dict[str, Any], refusal: Refusal) -> None:
    outcome = asks(crowd(9, 9, **changes), priority="never", **asked).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is refusal


def test_a_model_that_nobody_serves_has_no_other() -> None:
    one = Crowd()
    one.node("s", 9, models=models("small"))
    outcome = asks(one).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.MODEL_NOT_FOUND


def test_there_are_no_chains() -> None:
    one = crowd(0, 0)
    one.node("t", 9, models=models("tiny"))
    assert isinstance(asks(one, priority="never").outcome, Refused)


def test_a_fixed_model_has_no_other() -> None:
    one = crowd(0, 9)
    assert isinstance(asks(one, priority="never", model_fixed=True).outcome, Refused)


def test_other_policies_have_none() -> None:
    one = crowd(0, 9)
    outcome = one.balancer.route(request(model="large", priority="never"), POLICY, one.now_s).outcome
    assert isinstance(outcome, Refused)


def test_an_unknown_other_refuses_nobody_for_that() -> None:
    one = Crowd()
    one.node("l", 0, models=models("large"))
    outcome = asks(one, priority="never").outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.OVERLOADED
    assert "`large`" in outcome.message


def test_a_count_of_the_own_tokenizer_is_an_estimate_for_the_other() -> None:
    """So it is too long only where it is so by half: then it waits for its own rather than fail at once."""
    one = Crowd()
    one.node("l", 0, models=models("large"))
    one.node("s", 2, models=models("small", length_tokens=100))
    decision = asks(one, tokens=150)
    assert isinstance(decision.outcome, Chosen)
    assert (decision.prompt_tokens, decision.tokens_exact) == (150, False)
    assert isinstance(asks(one, "long", tokens=153).outcome, Queued)
    one.node("s", 1, models=models("small", length_tokens=50))
    assert isinstance(asks(one, "r2", priority="never", output_tokens_max=51).outcome, Refused)


def test_prompts_that_went_to_the_other_are_found_there_again() -> None:
    """And are not taken for those of the own model."""
    one = crowd(0, 9)
    blocks = tuple(range(1, 41))
    asks(one, tokens=2600, prompt_blocks=blocks)
    again = asks(one, "r2", tokens=2600, prompt_blocks=blocks)
    assert again.model == "small"
    assert again.uncached_tokens is not None
    assert again.uncached_tokens < 100
    plain = one.balancer.would_route(request("r3", 2600, model="small", prompt_blocks=blocks), LARGE, one.now_s)
    assert plain.uncached_tokens == 2600


def test_who_waits_goes_wherever_there_is_room_first() -> None:
    for model, places in [("large", (1, 0)), ("small", (0, 1)), ("large", (1, 1))]:
        one = crowd(0, 0)
        one.waits("r1", model="large", policy=LARGE)
        one.now_s += 1
        one.node("l", places[0], models=models("large"))
        one.node("s", places[1], models=models("small"))
        (decision,) = one.balancer.admit(one.now_s)
        assert (decision.model, decision.queued_s) == (model, 1.0)
        assert one.nothing_is_left()


def test_who_waits_for_the_other_by_its_own_name_comes_before_lower_classes_that_fall_back() -> None:
    one = crowd(0, 0)
    one.waits("small1", model="small", priority="high")
    one.waits("large1", model="large", policy=LARGE)
    one.node("s", 5, models=models("small"))
    assert isinstance(asks(one, "large2").outcome, Queued), "small1 waits for that node"
    assert one.admitted() == ["small1 to s", "large1 to s", "large2 to s"]


def test_who_has_no_other_holds_up_nobody_who_has() -> None:
    """Both wait for the same node, and only one may go elsewhere."""
    one = crowd(0, 0)
    one.waits("plain", model="large")
    one.waits("falls back", model="large", policy=LARGE)
    one.node("s", 5, models=models("small"))
    assert one.admitted() == ["falls back to s"]


def test_others_of_whom_nothing_fresh_is_known_serve_by_the_round_robin() -> None:
    one = crowd(0, 0)
    one.now_s += 5
    one.node("l", 0, models=models("large"))
    outcome = asks(one).outcome
    assert isinstance(outcome, Chosen)
    assert (outcome.node_id, outcome.fallback) == ("s", True)


def test_each_model_has_its_own_turns() -> None:
    one = Crowd()
    one.node("l", 0, models=models("large"))
    for node_id in "stu":
        one.node(node_id, 50, models=models("small"))
    policy = RoutingPolicy(strategy="round-robin", fallback_models={"large": "small"})
    served = []
    for number in range(6):
        model = "large" if number % 2 else "small"
        outcome = one.balancer.route(request(f"r{number}", model=model), policy, one.now_s).outcome
        assert isinstance(outcome, Chosen)
        served.append(outcome.node_id)
    assert served == list("stustu")


def test_an_objective_that_the_own_model_misses_is_overload_too() -> None:
    """Rates are known by seconds of prompts that a third node told of."""
    one = crowd(50, 50)
    for seconds in (0, 60):
        one.now_s += seconds
        one.node("z", 0, models=(), prefill_tokens_total=4000 * seconds, prefill_seconds_total=seconds)
    one.node("l", 50, models=models("large", length_tokens=None))
    one.node("s", 50, models=models("small"))
    policy = LARGE.model_copy(update={"ttft_s": 1.0})
    assert isinstance(one.comes("r1", model="large", policy=policy, tokens=10**6), Chosen)
    outcome = one.comes("r2", model="large", policy=policy)
    assert isinstance(outcome, Chosen)
    assert outcome.node_id == "s"


def test_what_is_asked_is_not_changed() -> None:
    """The request for another model is another value."""
    asked = request(model="large", prompt_blocks=(1, 2))
    other = asked.for_model("small")
    assert (asked.model, asked.prompt_blocks) == ("large", (1, 2))
    assert other.model == "small"
    assert other.prompt_blocks != asked.prompt_blocks
    assert len(other.prompt_blocks) == 2
    assert replace(other, model="large", prompt=asked.prompt, prompt_blocks=(1, 2)) == asked


def test_the_quota_is_that_of_the_model_that_was_asked_for() -> None:
    one = Crowd(quotas=(Quota(model="small", request_tokens_max=1), Quota(model="large", concurrent_tokens=1000)))
    one.node("l", 0, models=models("large"))
    one.node("s", 9, models=models("small"))
    assert isinstance(asks(one, "r1", output_tokens_max=600).outcome, Chosen)
    refused = asks(one, "r2", output_tokens_max=600).outcome
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.RATE_LIMIT_EXCEEDED
    assert "large" in refused.message
