"""Strategies through the balancer: whose turn it is, and how ties and bursts spread."""

from collections import Counter

import pytest

from extproc.core.balancer import Balancer
from extproc.core.chooser import TURNS_COUNTED_MAX
from extproc.core.cost import STRATEGIES
from extproc.core.decision import Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.snapshot import NodeReported, NodeState, ServedModel
from tests.core.fleet import MODEL, NOW_S, balancer, node_of, request, snapshot

TURNS = RoutingPolicy(name="turns", strategy="round-robin")


def served(fleet: Balancer, policy: RoutingPolicy, count: int, name: str = "r", model: str = MODEL) -> list[str]:
    """Who takes so many requests, each of which is over at once."""
    nodes = []
    for number in range(count):
        nodes.append(node_of(fleet.route(request(f"{name}{number}", model=model), policy, NOW_S)))
        fleet.finish(f"{name}{number}", NOW_S)
    return nodes


def test_round_robin_gives_each_its_turn_whatever_its_load() -> None:
    fleet = balancer(snapshot("a", requests_running=90), snapshot("b"), snapshot("c"))
    assert "".join(served(fleet, TURNS, 9)) == "abcabcabc"


def test_two_policies_that_alternate_have_turns_of_their_own() -> None:
    """Were they counted together, each of them would always go to the same of two nodes."""
    fleet = balancer(snapshot("a"), snapshot("b"))
    other = RoutingPolicy(name="other", strategy="round-robin")
    one, two = [], []
    for number in range(10):
        one += served(fleet, TURNS, 1, f"one{number}.")
        two += served(fleet, other, 1, f"two{number}.")
    assert "".join(one) == "".join(two) == "ababababab"


def test_two_models_that_alternate_under_one_policy_have_turns_of_their_own() -> None:
    names = {"a": "m1", "b": "m1", "c": "m2", "d": "m2"}
    fleet = balancer(*(snapshot(name, models=(ServedModel(model),)) for name, model in names.items()))
    nodes = Counter[str]()
    for number in range(20):
        nodes.update(served(fleet, TURNS, 1, f"r{number}.", model=f"m{number % 2 + 1}"))
    assert set(nodes.values()) == {5}


def test_requests_that_are_refused_take_no_turn() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    taken = []
    for number in range(10):
        refused = fleet.route(request(f"x{number}", 9000), TURNS, NOW_S)
        assert isinstance(refused.outcome, Refused)
        taken += served(fleet, TURNS, 1, f"r{number}.")
    assert "".join(taken) == "ababababab"


def test_nodes_that_leave_the_round_leave_the_others_their_turns() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    fleet.observe(NodeReported(snapshot("b", sequence=2, state=NodeState.DRAINING)), NOW_S)
    assert Counter(served(fleet, TURNS, 10)) == {"a": 5, "c": 5}


def test_what_is_counted_for_turns_is_bounded() -> None:
    """Policies come from Envoy's routes and models from clients."""
    fleet = balancer(snapshot("a", models=None))
    for number in range(TURNS_COUNTED_MAX + 10):
        served(fleet, TURNS, 1, f"r{number}.", model=f"m{number}")
        assert len(fleet._chooser._turns) <= TURNS_COUNTED_MAX


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"round-robin"}))
def test_equal_nodes_share_requests_that_are_over_at_once(strategy: str) -> None:
    """All costs are tied, or thrown: each request finds the fleet as idle as the one before."""
    fleet = balancer(*(snapshot(name) for name in "abcd"))
    nodes = Counter(served(fleet, RoutingPolicy(strategy=strategy), 2000))
    assert all(400 < nodes[name] < 600 for name in "abcd")


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_burst_between_two_snapshots_spreads(strategy: str) -> None:
    fleet = balancer(*(snapshot(name, kv_blocks_total=None) for name in "abcd"))
    policy = RoutingPolicy(strategy=strategy)
    nodes = Counter(node_of(fleet.route(request(f"r{number}"), policy, NOW_S)) for number in range(400))
    most_apart = {"random": 60, "power-of-two": 20}.get(strategy, 1)
    assert max(nodes.values()) - min(nodes.values()) <= most_apart
    assert len(nodes) == 4


def test_power_of_two_never_takes_the_busiest() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("busiest", requests_running=9))
    assert "busiest" not in served(fleet, RoutingPolicy(strategy="power-of-two"), 200)


@pytest.mark.parametrize(
    ("first_token_weight", "output_token_weight", "chosen"),
    [(2.0, 0.0, "decoding"), (1.0, 0.0, "prefilling"), (2.0, 0.1, "prefilling"), (2.2, 0.1, "decoding")],
)
def test_the_weights_of_the_first_token_and_of_the_answer_are_the_policys(
    first_token_weight: float, output_token_weight: float, chosen: str
) -> None:
    """Decoding costs (100 + v·100)·21 and prefilling w·1000 + (100 + v·100)·2: they meet at w = 1.9·(1 + v)."""
    fleet = balancer(
        snapshot("decoding", requests_running=20, active_decodes=20),
        snapshot("prefilling", requests_running=1, pending_prefills=1),
    )
    policy = RoutingPolicy(
        first_token_weight=first_token_weight, output_token_weight=output_token_weight, crowding_weight=0
    )
    assert node_of(fleet.would_route(request(tokens=100, output_tokens_max=100), policy, NOW_S)) == chosen


@pytest.mark.parametrize(("crowding_weight", "chosen"), [(0.0, "waiting"), (0.19, "waiting"), (0.21, "decoding")])
def test_the_weight_of_crowding_is_the_policys(crowding_weight: float, chosen: str) -> None:
    """(2 + c·5)·1000 + 100·6 where five wait for the work ahead, and 100·36 at the other node: equal at c = 0.2."""
    fleet = balancer(
        snapshot("waiting", requests_running=5, pending_prefills=1),
        snapshot("decoding", requests_running=35, active_decodes=35),
    )
    policy = RoutingPolicy(crowding_weight=crowding_weight, output_token_weight=0)
    assert node_of(fleet.would_route(request(tokens=100), policy, NOW_S)) == chosen
