import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.decision import Chosen, Refusal, Refused, Unknown
from extproc.core.filters import Limits
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, Phase, TokenCount
from extproc.core.router import FallBack, Verdict, decide
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeState, NodeView, OwnLoad, ServedModel
from tests.core.fleet import MODEL, NOW_S, SETTINGS, request, view

POLICY = RoutingPolicy()


def verdict(
    nodes: list[NodeView],
    asked: InferenceRequest | None = None,
    policy: RoutingPolicy = POLICY,
    with_settings: BalancerSettings = SETTINGS,
) -> Verdict:
    return decide(asked or request(), Phase.DECODE, nodes, policy, with_settings, NOW_S)


def chosen(found: Verdict) -> str:
    assert isinstance(found.outcome, Chosen), found.outcome
    return found.outcome.node_id


def refusal(found: Verdict) -> Refusal:
    assert isinstance(found.outcome, Refused), found.outcome
    return found.outcome.refusal


def test_the_cheapest_node_with_room_is_chosen() -> None:
    found = verdict([view("a", kv_usage=0.5), view("b", kv_usage=0.2), view("c", kv_usage=0.3)])
    assert chosen(found) == "b"
    assert [(one.node_id, one.excluded) for one in found.candidates] == [("b", None), ("c", None), ("a", None)]


def test_every_candidate_is_checked_for_room_in_the_order_of_cost() -> None:
    """Not only the second one, and not by its name."""
    nodes = [
        view("a", kv_usage=0.1, kv_blocks_available=0),
        view("b", kv_usage=0.2, kv_blocks_available=1),
        view("c", kv_usage=0.3, kv_blocks_available=2),
        view("d", kv_usage=0.4, kv_blocks_available=7),
        view("e", kv_usage=0.5),
    ]
    found = verdict(nodes, request(tokens=100))
    assert chosen(found) == "d"
    assert [one.excluded for one in found.candidates] == ["too few free KV blocks"] * 3 + [None] * 2


@pytest.mark.parametrize(("tokens", "blocks", "fits"), [(16, 1, True), (17, 1, False), (17, 2, True), (0, 0, True)])
def test_tokens_are_counted_in_blocks_not_one_for_one(tokens: int, blocks: int, fits: bool) -> None:
    found = verdict([view("a", kv_blocks_available=blocks)], request(tokens=tokens))
    assert isinstance(found.outcome, Chosen) is fits


@pytest.mark.parametrize(("tokens", "served"), [(1600, False), (1601, True)])
def test_what_even_an_empty_cache_could_not_hold_is_the_engines_to_refuse(tokens: int, served: bool) -> None:
    """A 429 would promise that waiting helps."""
    busy = view("a", kv_usage=0.5, kv_blocks_total=100, kv_blocks_available=50)
    assert isinstance(verdict([busy], request(tokens=tokens, exact=False)).outcome, Chosen) is served


def test_blocks_of_requests_that_no_sample_shows_are_taken() -> None:
    node = view("a", own=OwnLoad(1, 1, 8), kv_blocks_available=10)
    assert chosen(verdict([node], request(tokens=32))) == "a"
    assert refusal(verdict([node], request(tokens=33))) is Refusal.OVERLOADED


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({"kv_usage": 0.89}, False),
        ({"kv_usage": 0.90}, True),
        ({"requests_waiting": 99}, False),
        ({"requests_waiting": 100}, True),
    ],
)
def test_full_begins_exactly_at_the_limit(changes: dict[str, Any], full: bool) -> None:
    assert isinstance(verdict([view("a", **changes)]).outcome, Refused) is full


def test_unseen_requests_queue_only_where_the_engine_has_a_queue() -> None:
    burst = OwnLoad(200, 200, 0, 200)
    assert chosen(verdict([view("a", own=burst, requests_waiting=0)])) == "a"
    assert refusal(verdict([view("a", own=burst, requests_waiting=1)])) is Refusal.OVERLOADED
    few = OwnLoad(200, 200, 0, 98)
    assert chosen(verdict([view("a", own=few, requests_waiting=1)])) == "a", "requests count, not their answers"


def test_limits_come_from_the_policy() -> None:
    policy = RoutingPolicy(limits=Limits(kv_usage_max=0.5, requests_waiting_max=1))
    assert refusal(verdict([view("a", kv_usage=0.5)], policy=policy)) is Refusal.OVERLOADED
    assert refusal(verdict([view("a", requests_waiting=1)], policy=policy)) is Refusal.OVERLOADED


def test_full_is_not_stale_and_does_not_fall_back() -> None:
    """All fresh nodes full: refuse. A round robin would flood them; a stale node proves no room."""
    full = [view("a", kv_usage=0.95), view("b", requests_waiting=100)]
    found = verdict([*full, view("stale", sampled_at_s=NOW_S - 6)])
    assert refusal(found) is Refusal.OVERLOADED
    assert isinstance(found.outcome, Refused)
    assert found.outcome.retry_after_s == SETTINGS.retry_after_s


def test_absent_signals_do_not_make_a_node_full() -> None:
    bare = view("a", kv_usage=None, requests_waiting=None, kv_blocks_available=None, kv_block_size_tokens=None)
    assert chosen(verdict([bare])) == "a"


def test_stale_nodes_are_left_out_while_a_fresh_one_is_ready() -> None:
    nodes = [view("fresh", kv_usage=0.8), view("stale", sampled_at_s=NOW_S - 5, kv_usage=0.0)]
    assert chosen(verdict(nodes)) == "fresh"


@pytest.mark.parametrize(
    ("age_s", "state", "member"),
    [
        (4.9, NodeState.LOADING, False),
        (5.0, NodeState.READY, True),
        (5.0, NodeState.LOADING, False),
        (9.9, NodeState.DRAINING, False),
        (10.0, NodeState.READY, True),
        (10.0, NodeState.LOADING, True),
        (10.0, NodeState.DRAINING, True),
    ],
)
def test_the_fallback_takes_stale_ready_nodes_and_unknown_ones(age_s: float, state: NodeState, member: bool) -> None:
    found = verdict([view("a", sampled_at_s=NOW_S - age_s, state=state), view("b", state=NodeState.LOADING)])
    if member:
        assert isinstance(found.outcome, FallBack)
        assert [node.snapshot.node_id for node in found.outcome.members] == ["a"]
    else:
        assert refusal(found) is Refusal.NO_READY_NODE


def test_nodes_that_all_load_or_drain_are_no_ready_node() -> None:
    found = verdict([view("a", state=NodeState.LOADING), view("b", state=NodeState.DRAINING)])
    assert refusal(found) is Refusal.NO_READY_NODE


def test_a_model_is_not_found_only_if_every_list_is_known() -> None:
    known = view("a")
    assert refusal(verdict([known], request(model="other"))) is Refusal.MODEL_NOT_FOUND
    assert chosen(verdict([known, view("b", models=None)], request(model="other"))) == "b"
    assert refusal(verdict([view("c", models=())])) is Refusal.MODEL_NOT_FOUND


def test_model_lists_outlive_freshness() -> None:
    old = view("a", sampled_at_s=NOW_S - 200)
    assert refusal(verdict([old], request(model="other"))) is Refusal.MODEL_NOT_FOUND


@pytest.mark.parametrize(
    ("tokens", "exact", "output", "fits"),
    [
        (8192, True, None, True),
        (8193, True, None, False),
        (8000, True, 192, True),
        (8000, True, 193, False),
        (90_000, False, None, True),
        (90_000, False, 8193, False),
    ],
)
def test_only_what_is_surely_too_long_is_refused(tokens: int, exact: bool, output: int | None, fits: bool) -> None:
    node = view("a", kv_blocks_total=10**6, kv_blocks_available=10**6)
    found = verdict([node], request(tokens=tokens, exact=exact, output_tokens_max=output))
    if fits:
        assert chosen(found) == "a"
    else:
        assert refusal(found) is Refusal.CONTEXT_LENGTH_EXCEEDED


def test_a_longer_node_serves_what_is_too_long_for_others() -> None:
    long = view("long", kv_usage=0.8, models=(ServedModel(MODEL, context_length_tokens=32768),))
    assert chosen(verdict([view("short"), long], request(tokens=9000))) == "long"
    both = verdict([view("short"), long], request(tokens=40_000))
    assert isinstance(both.outcome, Refused)
    assert "32768" in both.outcome.message
    assert "40000" in both.outcome.message


def test_an_empty_table_is_unknown_never_an_error() -> None:
    assert isinstance(verdict([]).outcome, Unknown)


def test_ties_spread_evenly_by_the_request() -> None:
    nodes = [view(name) for name in "abcd"]
    served = Counter(chosen(verdict(nodes, request(f"r{number}"))) for number in range(4000))
    assert set(served) == set("abcd")
    assert all(850 < count < 1150 for count in served.values())


def test_a_tied_node_without_room_leaves_the_turn_to_the_next() -> None:
    nodes = [view("a", kv_blocks_available=0), view("b")]
    assert {chosen(verdict(nodes, request(f"r{number}"))) for number in range(50)} == {"b"}


def test_kept_candidates_are_bounded_and_hold_the_chosen_one() -> None:
    few = BalancerSettings(candidates_kept_max=3)
    nodes = [view(f"n{number:02}", kv_usage=number / 100, kv_blocks_available=0) for number in range(20)]
    nodes.append(view("last", kv_usage=0.5))
    found = verdict(nodes, with_settings=few)
    assert chosen(found) == "last"
    assert [one.node_id for one in found.candidates] == ["n00", "n01", "last"]


maybe = st.none() | st.integers(0, 2000)
NODES = st.builds(
    view,
    node_id=st.sampled_from([f"n{number}" for number in range(12)]),
    own=st.builds(OwnLoad, st.integers(0, 300), st.integers(0, 300), st.integers(0, 2000), st.integers(0, 300)),
    sampled_at_s=st.floats(NOW_S - 400, NOW_S),
    state=st.sampled_from(NodeState),
    models=st.none()
    | st.lists(st.builds(ServedModel, st.sampled_from([MODEL, "other"]), st.none(), maybe), max_size=2).map(tuple),
    gpu_utilization=st.none() | st.floats(0, 1),
    kv_usage=st.none() | st.floats(0, 1),
    kv_block_size_tokens=st.none() | st.integers(1, 256),
    kv_blocks_total=maybe,
    kv_blocks_available=maybe,
    pending_prefills=maybe,
    requests_waiting=st.none() | st.integers(0, 200),
    weight=st.floats(0.001, 1000),
)
FLEETS = st.lists(NODES, max_size=12, unique_by=lambda node: node.snapshot.node_id)
REQUESTS = st.builds(
    InferenceRequest,
    request_id=st.text(max_size=8).filter(lambda text: text.isprintable()),
    model=st.sampled_from([MODEL, "other", "nobody's"]),
    endpoint=st.sampled_from(Endpoint),
    prompt=st.builds(TokenCount, st.integers(0, 10**7), st.booleans()),
    output_tokens_max=st.none() | st.integers(0, 10**7),
    sequences=st.integers(1, 128),
)


@given(nodes=FLEETS, asked=REQUESTS, phase=st.sampled_from(Phase), seed=st.integers())
def test_the_order_of_the_table_never_matters(
    nodes: list[NodeView], asked: InferenceRequest, phase: Phase, seed: int
) -> None:
    shuffled = nodes[:]
    random.Random(seed).shuffle(shuffled)
    one = decide(asked, phase, nodes, POLICY, SETTINGS, NOW_S)
    other = decide(asked, phase, shuffled, POLICY, SETTINGS, NOW_S)
    if isinstance(one.outcome, FallBack) and isinstance(other.outcome, FallBack):
        assert {id(node) for node in one.outcome.members} == {id(node) for node in other.outcome.members}
    else:
        assert one == other


@given(nodes=FLEETS, asked=REQUESTS, phase=st.sampled_from(Phase))
def test_decide_raises_for_no_input_and_names_eligible_nodes_only(
    nodes: list[NodeView], asked: InferenceRequest, phase: Phase
) -> None:
    found = decide(asked, phase, nodes, POLICY, SETTINGS, NOW_S).outcome
    match found:
        case Chosen(node_id, host):
            node = next(node for node in nodes if node.snapshot.node_id == node_id)
            one = node.snapshot
            assert one.host == host
            assert one.state is NodeState.READY
            assert NOW_S - node.sampled_at_s < SETTINGS.nodes.fresh_s
            assert may_hold(node, asked)
            assert one.kv_usage is None or one.kv_usage < POLICY.limits.kv_usage_max
            assert one.requests_waiting is None or one.requests_waiting < POLICY.limits.requests_waiting_max
            if one.kv_blocks_available is not None and one.kv_block_size_tokens is not None:
                free_tokens = (one.kv_blocks_available - node.own.kv_blocks_unseen) * one.kv_block_size_tokens
                all_tokens = (one.kv_blocks_total or 10**9) * one.kv_block_size_tokens
                assert asked.prompt.tokens <= free_tokens or asked.prompt.tokens > all_tokens
        case FallBack(members):
            assert members
            for node in members:
                age_s = NOW_S - node.sampled_at_s
                assert age_s >= SETTINGS.nodes.fresh_s
                assert age_s >= SETTINGS.nodes.stale_s or node.snapshot.state is NodeState.READY
                assert may_hold(node, asked)
        case Unknown():
            assert not nodes
        case Refused():
            assert nodes


def may_hold(node: NodeView, asked: InferenceRequest) -> bool:
    """Whether nothing known speaks against the node's serving the model, and against the request's length."""
    if node.context_lengths is None:
        return True
    if asked.model not in node.context_lengths:
        return False
    length_tokens = node.context_lengths[asked.model]
    surely_tokens = (asked.prompt.tokens if asked.prompt.exact else 0) + (asked.output_tokens_max or 0)
    return length_tokens is None or surely_tokens <= length_tokens
