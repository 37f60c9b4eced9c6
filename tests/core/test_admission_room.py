"""What room is: reserves, caches, blocks; and when there will be some."""

import pytest

from extproc.core.admissionsettings import PriorityClass
from extproc.core.decision import Chosen, Queued, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits
from tests.core.fleet import LOAD_SCORE, NOW_S, POLICY, balancer, request, snapshot
from tests.core.waiters import CLASSES, Crowd, models

ONE_PLACE = RoutingPolicy(limits=Limits(kv_blocks_required=True))


RESERVED = {**CLASSES, "high": PriorityClass(reserved_share=0.25), "mid": PriorityClass(reserved_share=0.15)}


@pytest.mark.parametrize(("name", "places"), [("high", 100), ("mid", 75), ("low", 60), ("never", 60)])
def test_what_a_class_reserves_is_left_free_by_all_below_it(name: str, places: int) -> None:
    for waiting, goes in [(places - 1, True), (places, False)]:
        one = Crowd({**RESERVED, "low": PriorityClass()})
        one.node("a", 100 - waiting)
        assert isinstance(one.comes("r1", name), Chosen if goes else Refused)


@pytest.mark.parametrize("policy", [POLICY, LOAD_SCORE])
@pytest.mark.parametrize(("name", "share"), [("high", 1.0), ("mid", 0.75), ("low", 0.6)])
def test_the_same_of_the_kv_cache(policy: RoutingPolicy, name: str, share: float) -> None:
    """Without a limit of its own, a node is full at 1 for who must leave something, and never for who need not."""
    if policy is LOAD_SCORE:
        share *= 0.9
    never_full = policy is POLICY and name == "high"
    for usage, goes in [(share - 0.001, True), (share, never_full)]:
        one = Crowd({**RESERVED, "low": PriorityClass()})
        one.node("a", 100, kv_usage=usage)
        assert isinstance(one.comes("r1", name, policy), Chosen if goes else Refused)


def test_who_waits_below_a_reserve_leaves_it_free() -> None:
    one = Crowd({"high": PriorityClass(reserved_share=0.5), "low": PriorityClass(queue_ms_max=1000)})
    one.node("a", 50)
    one.waits("r1")
    assert one.admitted() == []
    assert isinstance(one.comes("r2", "high"), Chosen)
    one.node("a", 51)
    assert one.admitted() == [], "49 and r2, of 50"
    one.balancer.finish("r2", one.now_s)
    assert one.admitted() == ["r1 to a"]


@pytest.mark.parametrize(
    ("limits", "strategy", "usage", "goes"),
    [
        ({}, "load-score", 0.9, False),
        ({}, "load-score", 0.899, True),
        ({}, "least-added-delay", 1.0, True),
        ({}, "lmetric", 1.0, True),
        ({"kv_usage_max": 0.5}, "least-added-delay", 0.5, False),
        ({"kv_usage_max": 0.5}, "least-added-delay", 0.499, True),
        ({"kv_usage_max": 0.95}, "load-score", 0.94, True),
        ({"kv_usage_max": 0.95}, "load-score", 0.95, False),
    ],
)
def test_a_full_cache_is_a_full_node_only_where_that_is_said(
    limits: dict[str, float], strategy: str, usage: float, goes: bool
) -> None:
    fleet = balancer(snapshot("a", kv_usage=usage))
    policy = RoutingPolicy(strategy=strategy, limits=Limits.model_validate(limits))
    assert isinstance(fleet.route(request(), policy, NOW_S).outcome, Chosen if goes else Refused)


@pytest.mark.parametrize(("blocks", "goes"), [(16, True), (15, False)])
def test_too_few_blocks_make_a_node_full_only_where_they_are_required(blocks: int, goes: bool) -> None:
    """The prompt takes 7 blocks of 16 tokens, the answer 9."""
    fleet = balancer(snapshot("a", kv_blocks_available=blocks))
    asked = request(tokens=112, output_tokens_max=144)
    outcome = fleet.would_route(asked, ONE_PLACE, NOW_S).outcome
    assert isinstance(outcome, Chosen if goes else Refused)
    assert isinstance(fleet.route(asked, POLICY, NOW_S).outcome, Chosen)


def test_what_does_not_fit_an_empty_cache_is_no_matter_of_room() -> None:
    """Waiting would not help: the engine shall say what is wrong with it."""
    one = Crowd()
    one.node("a", 50, kv_blocks_available=0, kv_blocks_total=100)
    assert isinstance(one.comes("r1", tokens=1601, policy=ONE_PLACE), Chosen)
    assert isinstance(one.comes("r2", tokens=1600, policy=ONE_PLACE), Queued)


@pytest.mark.parametrize(("places", "tokens", "least_s", "most_s"), [(0, 100, 1, 1), (1, 400_000, 50, 60)])
def test_refused_clients_are_told_when_to_come_again(places: int, tokens: int, least_s: int, most_s: int) -> None:
    one = Crowd()
    one.node("a", places, models=models(length_tokens=None))
    if places:
        one.comes("before", tokens=tokens)
    refused = one.comes("r1", "never")
    assert isinstance(refused, Refused)
    assert refused.retry_after_s is not None
    assert least_s <= refused.retry_after_s <= most_s


def test_tokens_that_wait_for_other_nodes_make_nobody_come_later() -> None:
    one = Crowd()
    one.node("a", 0, models=models("x", length_tokens=None))
    one.node("b", 0, models=models("y"))
    one.waits("x1", model="x", tokens=10**6)
    one.waits("y1", model="y")
    for model, after_s in [("x", 60), ("y", 1)]:
        refused = one.comes(f"{model}2", "never", model=model)
        assert isinstance(refused, Refused)
        assert "others wait" in refused.message
        assert refused.retry_after_s == after_s
