"""LoRA adapters: models that a node may load. Nodes that have one loaded come first, then those with a place for it."""

from typing import Any

import pytest

from extproc.core.cost import STRATEGIES
from extproc.core.decision import Chosen
from extproc.core.policy import RoutingPolicy
from extproc.core.router import Known, decide
from extproc.core.snapshot import NodeView, OwnLoad, ServedModel
from tests.core.fleet import MODEL, NOW_S, POLICY, SETTINGS, request, view

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
    nodes = [node("a", loaded=True, kv_usage=0.95), node("b", loaded=False, slots=0), node("c", loaded=False, slots=1)]
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


def test_a_node_whose_list_is_unknown_may_have_anything_loaded() -> None:
    """It stands with those that have it: what is not known excludes nobody."""
    unknown = view("a", BUSY, models=None)
    assert order([unknown, node("b", loaded=False, slots=1)]) == "ab"
