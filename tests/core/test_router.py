from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from extproc.core.decision import Chosen, Refusal, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.room import Limits
from extproc.core.router import FallBack, Known, Verdict, decide
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeState, NodeView, OwnLoad, ServedModel
from tests.core.fleet import LOAD_SCORE, MODEL, NOW_S, SETTINGS, request, view

NO_ANSWER = Known(output_tokens=0)
"""Where room is counted: only the prompt takes blocks."""


def verdict(
    nodes: list[NodeView],
    asked: InferenceRequest | None = None,
    policy: RoutingPolicy = LOAD_SCORE,
    with_settings: BalancerSettings = SETTINGS,
    known: Known = NO_ANSWER,
) -> Verdict:
    return decide(asked or request(), nodes, policy, with_settings, known, NOW_S)


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


@pytest.mark.parametrize(("tokens", "blocks", "fits"), [(16, 1, True), (17, 1, False), (17, 2, True), (0, 1, True)])
def test_tokens_are_counted_in_blocks_not_one_for_one(tokens: int, blocks: int, fits: bool) -> None:
    found = verdict([view("a", kv_blocks_available=blocks), view("dearer", kv_usage=0.5)], request(tokens=tokens))
    assert chosen(found) == ("a" if fits else "dearer")


def test_only_what_the_node_has_not_cached_takes_blocks() -> None:
    """A prompt of 1050 tokens in 10.5 blocks of text, 8 of them cached: so 250 tokens need 16 KV blocks."""
    asked = request(tokens=1050, prompt_blocks=tuple(range(10)))
    cached = replace(NO_ANSWER, cached_tokens={"a": 800})
    for blocks, expected in ((16, "a"), (15, "dearer")):
        nodes = [view("a", kv_blocks_available=blocks), view("dearer", kv_usage=0.5)]
        assert chosen(verdict(nodes, asked, known=cached)) == expected
        assert chosen(verdict(nodes, asked)) == "dearer"


@pytest.mark.parametrize(
    ("output", "allowed", "sequences", "fits"),
    [(160, None, 1, True), (161, None, 1, False), (900, 160, 1, True), (80, None, 2, True), (81, None, 2, False)],
)
def test_the_expected_answers_take_blocks_too(output: float, allowed: int | None, sequences: int, fits: bool) -> None:
    asked = request(tokens=160, output_tokens_max=allowed, sequences=sequences)
    nodes = [view("a", kv_blocks_available=20), view("dearer", kv_usage=0.5)]
    found = verdict(nodes, asked, known=Known(output_tokens=output))
    assert chosen(found) == ("a" if fits else "dearer")


@pytest.mark.parametrize(("tokens", "served"), [(1600, "dearer"), (1601, "busy")])
def test_what_even_an_empty_cache_could_not_hold_is_the_engines_to_refuse(tokens: int, served: str) -> None:
    """No waiting would help, so free blocks do not matter to it."""
    nodes = [view("busy", kv_blocks_total=100, kv_blocks_available=50), view("dearer", kv_usage=0.5)]
    assert chosen(verdict(nodes, request(tokens=tokens, exact=False))) == served


def test_a_prompt_that_just_fits_the_cache_needs_all_of_it_whatever_its_answer_is_expected_to_be() -> None:
    known = Known(output_tokens=500)
    for blocks, served in ((100, "a"), (99, "dearer")):
        nodes = [view("a", kv_blocks_total=100, kv_blocks_available=blocks), view("dearer", kv_usage=0.5)]
        assert chosen(verdict(nodes, request(tokens=1600), known=known)) == served


def test_blocks_of_requests_that_no_sample_shows_are_taken_and_those_of_ended_ones_are_free() -> None:
    for unseen, tokens, served in ((8, 32, "a"), (8, 33, "dearer"), (-2, 192, "a"), (-2, 193, "dearer")):
        own = OwnLoad(kv_blocks_unseen=unseen)
        nodes = [view("a", own=own, kv_blocks_available=10), view("dearer", kv_usage=0.5)]
        assert chosen(verdict(nodes, request(tokens=tokens))) == served


def test_where_no_node_has_the_blocks_the_cheapest_queues_the_request() -> None:
    """Engines queue what has to wait for blocks; a node over `kv_usage_max` takes nothing all the same."""
    nodes = [
        view("full", kv_usage=0.0, requests_waiting=100, kv_blocks_available=0),
        view("b", kv_usage=0.2, requests_waiting=99, kv_blocks_available=0),
        view("c", kv_usage=0.3, requests_waiting=99, kv_blocks_available=3),
    ]
    assert chosen(verdict(nodes)) == "b"
    assert refusal(verdict([view("a", kv_usage=0.9, kv_blocks_available=0)])) is Refusal.OVERLOADED


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
    burst = OwnLoad(200, 200, requests_unseen=200)
    assert chosen(verdict([view("a", own=burst, requests_waiting=0)])) == "a"
    assert refusal(verdict([view("a", own=burst, requests_waiting=1)])) is Refusal.OVERLOADED
    few = OwnLoad(200, 200, requests_unseen=98)
    assert chosen(verdict([view("a", own=few, requests_waiting=1)])) == "a", "requests count, not their answers"


def test_limits_come_from_the_policy() -> None:
    policy = RoutingPolicy(strategy="load-score", limits=Limits(kv_usage_max=0.5, requests_waiting_max=1))
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
        (10.0, NodeState.LOADING, False),  # nobody said that it came up
        (10.0, NodeState.DRAINING, False),
        (299.0, NodeState.LOADING, False),
    ],
)
def test_the_fallback_takes_nodes_whose_last_word_was_ready(age_s: float, state: NodeState, member: bool) -> None:
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
