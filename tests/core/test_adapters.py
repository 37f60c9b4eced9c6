"""LoRA adapters: models that a node may load. Nodes that have one loaded come first, then those with a place for it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from extproc.core.balancer import Balancer
from extproc.core.cost import STRATEGIES
from extproc.core.decision import Chosen
from extproc.core.policy import RoutingPolicy
from extproc.core.router import Known, decide
from extproc.core.snapshot import NodeReported, NodeView, OwnLoad, ServedModel
from tests.core.fleet import MODEL, NOW_S, POLICY, SETTINGS, balancer, node_of, request, snapshot, view

BUSY = OwnLoad(sequences_open=50, sequences_unseen=50, prefill_tokens=50_000)


def node(
    node_id: str, loaded: bool | None, slots: int | None = 0, own: OwnLoad | None = None, **changes: Any
) -> NodeView:
    """A node that has the adapter loaded, may load it, or (`None`) does not know it."""
    adapters = () if loaded is None else (ServedModel("tuned", loaded=loaded),)
    return view(node_id, own or OwnLoad(), models=(ServedModel(MODEL), *adapters), adapter_slots_free=slots, **changes)


def order(nodes: list[NodeView], model: str = "tuned", policy: RoutingPolicy = POLICY) -> str:
    """Node ids in the order in which they would take the request; in capitals those that have no room for it."""
    verdict = decide(request(model=model), nodes, policy, SETTINGS, Known(), NOW_S)
    assert isinstance(verdict.outcome, Chosen)
    return "".join(one.node_id.upper() if one.excluded else one.node_id for one in verdict.candidates)


def test_loaded_comes_before_a_free_slot_before_none_before_cost() -> None:
    nodes = [
        node("a", loaded=False, slots=0),
        node("b", loaded=False, slots=1, own=OwnLoad(2, 2, prefill_tokens=500)),
        node("c", loaded=False, slots=3),
        node("d", loaded=True, own=BUSY),
        node("e", loaded=True, own=OwnLoad(1, 1, prefill_tokens=100)),
    ]
    assert order(nodes) == "edcba"
    assert order(nodes, MODEL)[0] in "ac", "to the model below all nodes are alike, but for their load"


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_whatever_the_strategy(strategy: str) -> None:
    nodes = [node("a", loaded=False, slots=0), node("b", loaded=False, slots=9), node("c", loaded=True, own=BUSY)]
    assert order(nodes, policy=RoutingPolicy(strategy=strategy)) == "cba"


def test_a_full_node_that_has_it_loaded_leaves_the_turn_to_one_that_may_load_it() -> None:
    nodes = [
        node("a", loaded=True, requests_waiting=100),
        node("b", loaded=False, slots=0),
        node("c", loaded=False, slots=1),
    ]
    assert order(nodes) == "Acb"
    no_blocks = [node("a", loaded=True, kv_blocks_available=0), node("b", loaded=False, slots=0)]
    assert order(no_blocks) == "Ab"


def test_where_nobody_has_the_blocks_the_one_that_has_it_loaded_queues_the_request() -> None:
    nodes = [node("b", loaded=False, slots=1, kv_blocks_available=0), node("a", loaded=True, kv_blocks_available=0)]
    verdict = decide(request(model="tuned"), nodes, POLICY, SETTINGS, Known(), NOW_S)
    assert isinstance(verdict.outcome, Chosen)
    assert verdict.outcome.node_id == "a"


def test_a_node_gains_nothing_by_hiding_its_slots() -> None:
    """Unknown slots stand with none, behind any that is told."""
    nodes = [
        node("hides", loaded=False, slots=None),
        node("none", loaded=False, slots=0, own=OwnLoad(1, 1, prefill_tokens=50)),
        node("tells", loaded=False, slots=1, own=BUSY),
    ]
    assert [one[0] for one in order_of(nodes)] == ["tells", "hides", "none"]


def order_of(nodes: list[NodeView]) -> list[tuple[str, str | None]]:
    verdict = decide(request(model="tuned"), nodes, POLICY, SETTINGS, Known(), NOW_S)
    return [(one.node_id, one.excluded) for one in verdict.candidates]


def test_nodes_that_do_not_list_an_adapter_never_serve_it() -> None:
    assert order([node("a", loaded=None), node("b", loaded=False, slots=0, own=BUSY)]) == "b"


def test_a_node_whose_list_is_unknown_stands_with_those_that_would_have_to_throw_another_out() -> None:
    """What is not known excludes nobody, and is no reason to be preferred to those that tell."""
    unknown = view("a", models=None)
    assert order([unknown, node("b", loaded=False, slots=1, own=BUSY)]) == "ba"
    assert order([unknown, node("b", loaded=False, slots=0, own=BUSY)]) == "ab"
    sent = view("a", OwnLoad(adapters_sent=frozenset({"tuned"})), models=None)
    assert order([sent, node("b", loaded=False, slots=1)]) == "ab"


def fleet_of(slots: int, names: str = "abcd") -> Balancer:
    return balancer(
        *(
            snapshot(
                name,
                models=(ServedModel(MODEL), *(ServedModel(f"tuned-{kind}", loaded=False) for kind in range(9))),
                adapter_slots_free=slots,
            )
            for name in names
        )
    )


def test_a_burst_for_an_adapter_that_nobody_has_loaded_makes_one_node_load_it() -> None:
    fleet = fleet_of(slots=1)
    homes = [node_of(fleet.route(request(f"r{number}", model="tuned-0"), POLICY, NOW_S)) for number in range(20)]
    assert len(set(homes)) == 1
    for number in range(20):
        fleet.finish(f"r{number}", NOW_S + 0.1)
    assert node_of(fleet.route(request("late", model="tuned-0"), POLICY, NOW_S + 0.1)) == homes[0], "over, and loaded"


def test_a_burst_for_many_adapters_takes_no_more_places_than_there_are() -> None:
    fleet = fleet_of(slots=2)
    homes = {kind: node_of(fleet.route(request(f"r{kind}", model=f"tuned-{kind}"), POLICY, NOW_S)) for kind in range(8)}
    assert Counter(homes.values()) == dict.fromkeys("abcd", 2)
    again = {kind: node_of(fleet.route(request(f"s{kind}", model=f"tuned-{kind}"), POLICY, NOW_S)) for kind in homes}
    assert again == homes
    fleet.route(request("ninth", model="tuned-8"), POLICY, NOW_S)  # some other must go: any node may take it


@pytest.mark.parametrize(("slots", "taken", "expected"), [(1, 0, "ab"), (1, 1, "ba"), (2, 1, "ab"), (2, 2, "ba")])
def test_a_place_that_is_taken_is_none_for_the_next_adapter(slots: int, taken: int, expected: str) -> None:
    """Though its node has less to do."""
    own = OwnLoad(adapters_sent=frozenset(f"other-{number}" for number in range(taken)), adapters_unseen=taken)
    assert (
        order([node("a", loaded=False, slots=slots, own=own), node("b", loaded=False, slots=1, own=BUSY)]) == expected
    )


def report(fleet: Balancer, at_s: float, sampled_s: float, **changes: Any) -> None:
    """Every node's next report, of a sample taken then; its list of models says what it did."""
    for one in list(fleet.views()):
        sequence = one.snapshot.sequence + 1
        later = replace(one.snapshot, sequence=sequence, sample_age_s=at_s - sampled_s, **changes)
        fleet.observe(NodeReported(later), at_s)


@pytest.mark.parametrize(("sampled_s", "unseen"), [(0.4, 1), (0.5, 1), (0.6, 0)])
def test_a_place_is_taken_until_a_sample_can_show_it(sampled_s: float, unseen: int) -> None:
    """Asked for at 0.5 s. What the node calls free after that is free."""
    fleet = fleet_of(slots=1, names="a")
    fleet.route(request("r1", model="tuned-0"), POLICY, NOW_S + 0.5)
    report(fleet, NOW_S + 1, NOW_S + sampled_s, requests_running=1)
    (view,) = fleet.views()
    assert view.own.adapters_sent == {"tuned-0"}
    assert view.own.adapters_unseen == unseen


@pytest.mark.parametrize("changing", [True, False])
def test_an_adapter_stays_with_who_loads_it_until_the_list_of_models_must_have_it(changing: bool) -> None:
    """Reports come every second, the list of models every half minute: until then it says that nobody has it.

    Where it never comes, as the node refuses it, perhaps at once and without a change to any counter, others are asked
    after a minute.
    """
    fleet = fleet_of(slots=4)
    homes = []
    for second in range(130):
        report(fleet, NOW_S + second, NOW_S + second, requests_running=second % 2 if changing else 0)
        homes.append(node_of(fleet.route(request(f"r{second}", model="tuned-0"), POLICY, NOW_S + second)))
        fleet.finish(f"r{second}", NOW_S + second)
    asked = [len(set(homes[first : first + 60])) for first in (0, 60)]
    assert asked == [1, 1]
    (view,) = (one for one in fleet.views() if one.snapshot.node_id == homes[-1])
    assert view.own.adapters_sent == {"tuned-0"}
    report(fleet, NOW_S + 500, NOW_S + 500)
    assert not any(one.own.adapters_sent for one in fleet.views()), "all of it is forgotten"
