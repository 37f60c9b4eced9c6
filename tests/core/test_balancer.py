from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.core.balancer import FALLBACK, Balancer
from extproc.core.decision import Chosen, Decision, Refusal, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.request import TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NO_LOAD, Freshness, NodeLeft, NodeReported, NodeState, ServedModel
from extproc.core.table import MODELS_LEFT_MAX, SnapshotTable
from tests.core.fleet import MODEL, NOW_S, SETTINGS, balancer, request, snapshot

POLICY = RoutingPolicy()


def node_of(decision: Decision) -> str:
    assert isinstance(decision.outcome, Chosen), decision.outcome
    return decision.outcome.node_id


def test_requests_between_two_snapshots_do_not_all_go_to_the_same_node() -> None:
    """The ledger counts a request in the moment of choosing, so the next choice sees it."""
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    served = Counter(node_of(fleet.route(request(f"r{number}"), POLICY, NOW_S)) for number in range(30))
    assert set(served.values()) == {10}


def test_finishing_gives_the_place_back() -> None:
    fleet = balancer(snapshot("a"), snapshot("b", kv_usage=0.01))
    first = fleet.route(request("r1"), POLICY, NOW_S)
    assert node_of(first) == "a"
    assert node_of(fleet.route(request("r2"), POLICY, NOW_S)) == "b"
    fleet.finish("r1")
    fleet.finish("r1")
    fleet.finish("nobody")
    assert fleet.requests_open == 1
    assert node_of(fleet.route(request("r3"), POLICY, NOW_S)) == "a"


def test_a_snapshot_takes_over_what_it_shows() -> None:
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1", tokens=160), POLICY, NOW_S)
    (view,) = fleet.views()
    assert (view.own.sequences_open, view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, 1, 10)
    fleet.observe(NodeReported(snapshot("a", sequence=2, sample_age_s=0.5)), NOW_S + 1)
    (view,) = fleet.views()
    assert (view.own.sequences_open, view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, 0, 0)


@pytest.mark.parametrize(("tokens", "blocks"), [(8192, 512), (8193, 0), (16_001, 0)])
def test_what_the_engine_will_refuse_takes_no_blocks(tokens: int, blocks: int) -> None:
    """Else a few prompts that no node can hold would make the fleet look full. The context has 8192 tokens."""
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1", tokens, exact=False), POLICY, NOW_S)
    (view,) = fleet.views()
    assert (view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, blocks)


def test_what_exceeds_the_whole_cache_takes_no_blocks() -> None:
    fleet = balancer(snapshot("a", models=(ServedModel(MODEL),)))
    for number, (tokens, blocks) in enumerate([(16_001, 0), (16_000, 1000)]):
        fleet.route(request(f"r{number}", tokens, exact=False), POLICY, NOW_S)
        (view,) = fleet.views()
        assert view.own.kv_blocks_unseen == blocks


def test_a_count_that_comes_late_puts_the_ledger_right() -> None:
    fleet = balancer(snapshot("a"))
    estimated = request("r1", 1600, exact=False)
    fleet.route(estimated, POLICY, NOW_S)
    fleet.recount(replace(estimated, prompt=TokenCount(160, exact=True)))
    (view,) = fleet.views()
    assert (view.own.sequences_open, view.own.sequences_unseen, view.own.kv_blocks_unseen) == (1, 1, 10)
    fleet.recount(replace(estimated, prompt=TokenCount(9000, exact=True)))
    (view,) = fleet.views()
    assert view.own.kv_blocks_unseen == 0, "the engine will refuse it"


def test_a_count_that_comes_too_late_changes_nothing() -> None:
    fleet = balancer(snapshot("a"))
    estimated = request("r1", 1600, exact=False)
    fleet.recount(estimated)
    assert fleet.requests_open == 0
    fleet.route(estimated, POLICY, NOW_S)
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    fleet.recount(estimated)
    fleet.finish("r1")
    fleet.recount(estimated)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S)
    (view,) = fleet.views()
    assert view.own == NO_LOAD


def test_a_refused_snapshot_changes_nothing() -> None:
    fleet = balancer(snapshot("a", sequence=3))
    fleet.route(request("r1"), POLICY, NOW_S)
    fleet.observe(NodeReported(snapshot("a", sequence=2)), NOW_S + 1)
    (view,) = fleet.views()
    assert view.own.sequences_unseen == 1
    assert view.sampled_at_s == NOW_S


@pytest.mark.parametrize("passed_s", [0.0, 1.999])
def test_within_two_report_intervals_of_the_start_everything_continues_without_a_destination(passed_s: float) -> None:
    fleet = Balancer(SETTINGS, NOW_S)
    fleet.observe(NodeReported(snapshot("a", kv_usage=1.0)), NOW_S)
    for decision in (
        fleet.route(request("r1"), POLICY, NOW_S + passed_s),
        fleet.route(request("r2", model="nobody's"), POLICY, NOW_S + passed_s),
        fleet.route_uninspected("r3", "", NOW_S + passed_s),
    ):
        assert isinstance(decision.outcome, Unknown)
    assert isinstance(fleet.route(request("r4"), POLICY, NOW_S + 2).outcome, Refused)


@pytest.mark.parametrize(
    ("changes", "asked", "later"),
    [
        ({}, {"model": "its agent is late"}, Refusal.MODEL_NOT_FOUND),
        ({}, {"tokens": 9000}, Refusal.CONTEXT_LENGTH_EXCEEDED),
        ({"state": NodeState.LOADING}, {}, Refusal.NO_READY_NODE),
    ],
)
def test_until_it_has_settled_only_full_nodes_are_a_reason_to_refuse(
    changes: dict[str, Any], asked: dict[str, Any], later: Refusal
) -> None:
    """After a restart some agents are still on their way: what the first ones know proves nothing."""
    fleet = Balancer(SETTINGS, NOW_S)
    for sequence, passed_s in enumerate((2.0, SETTINGS.nodes.settle_s - 0.01, SETTINGS.nodes.settle_s), start=1):
        fleet.observe(NodeReported(snapshot("a", sequence=sequence, **changes)), NOW_S + passed_s)
        outcome = fleet.route(request(f"r{sequence}", **asked), POLICY, NOW_S + passed_s).outcome
        if passed_s < SETTINGS.nodes.settle_s:
            assert isinstance(outcome, Unknown)
        else:
            assert isinstance(outcome, Refused)
            assert outcome.refusal is later


def test_an_empty_table_continues_without_a_destination_for_ever() -> None:
    fleet = balancer()
    assert isinstance(fleet.route(request(), POLICY, NOW_S + 9999).outcome, Unknown)
    assert isinstance(fleet.route_uninspected("r", "", NOW_S + 9999).outcome, Unknown)


def test_stale_snapshots_fall_back_by_weight_and_are_counted() -> None:
    fleet = balancer(snapshot("a", weight=3.0), snapshot("b", weight=1.0))
    later_s = NOW_S + SETTINGS.nodes.fresh_s
    decisions = [fleet.route(request(f"r{number}"), POLICY, later_s) for number in range(8)]
    assert Counter(node_of(decision) for decision in decisions) == {"a": 6, "b": 2}
    assert {decision.strategy for decision in decisions} == {FALLBACK}
    assert fleet.requests_open == 8


def test_membership_outlives_freshness_so_the_fallback_has_somebody_left() -> None:
    fleet = balancer(snapshot("a"))
    almost_s = NOW_S + SETTINGS.nodes.member_s - 1
    assert fleet.tick(almost_s) == []
    assert node_of(fleet.route(request("r1"), POLICY, almost_s)) == "a"
    assert fleet.tick(almost_s + 1) == ["a"]
    assert isinstance(fleet.route(request("r2"), POLICY, almost_s + 1).outcome, Unknown)


def test_a_goodbye_ends_membership_at_once() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    assert {node_of(fleet.route(request(f"r{number}"), POLICY, NOW_S)) for number in range(9)} == {"b"}


def test_a_model_whose_last_node_said_goodbye_is_not_ready_rather_than_unknown() -> None:
    """It may be an agent's restart: 404 would tell clients to give up."""
    fleet = balancer(snapshot("a", models=(ServedModel("rare"),)), snapshot("b"))
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)

    def refusal(model: str, now_s: float) -> Refusal | None:
        fleet.observe(NodeReported(snapshot("b", sequence=int(now_s))), now_s)
        outcome = fleet.route(request(f"{model}{now_s}", model=model), POLICY, now_s).outcome
        return outcome.refusal if isinstance(outcome, Refused) else None

    assert refusal("rare", NOW_S + 1) is Refusal.NO_READY_NODE
    assert refusal("never there", NOW_S + 2) is Refusal.MODEL_NOT_FOUND
    fleet.tick(NOW_S + SETTINGS.nodes.member_s)
    assert refusal("rare", NOW_S + SETTINGS.nodes.member_s) is Refusal.MODEL_NOT_FOUND


def test_a_model_whose_last_node_fell_silent_is_not_ready_for_a_while_either() -> None:
    member_s = SETTINGS.nodes.member_s
    fleet = balancer(snapshot("a", models=(ServedModel("rare"),)), snapshot("b"))
    fleet.observe(NodeReported(snapshot("b", sequence=2)), NOW_S + member_s)
    assert fleet.tick(NOW_S + member_s) == ["a"]
    outcome = fleet.route(request(model="rare"), POLICY, NOW_S + member_s).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.NO_READY_NODE


def test_the_models_of_departed_nodes_are_bounded() -> None:
    table = SnapshotTable(SETTINGS.nodes)
    for number in range(MODELS_LEFT_MAX + 10):
        table.apply(NodeReported(snapshot("a", models=(ServedModel(f"m{number}"),), sequence=1)), NOW_S)
        table.apply(NodeLeft("a", "boot-1"), NOW_S)
    assert len(table.models_left) == MODELS_LEFT_MAX
    assert "m0" not in table.models_left
    assert f"m{MODELS_LEFT_MAX + 9}" in table.models_left


def test_the_stream_of_a_forgotten_node_still_closes_its_reservation() -> None:
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1"), POLICY, NOW_S)
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    assert fleet.requests_open == 1
    fleet.finish("r1")
    assert fleet.requests_open == 0


def test_a_node_that_comes_back_finds_its_open_requests_counted() -> None:
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1"), POLICY, NOW_S)
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S + 1)
    (view,) = fleet.views()
    assert view.own.sequences_open == 1


def test_what_is_not_inference_goes_round_ready_nodes_uncounted() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("c", state=NodeState.LOADING))
    served = Counter(node_of(fleet.route_uninspected(f"r{number}", "", NOW_S)) for number in range(10))
    assert served == {"a": 5, "b": 5}
    assert fleet.requests_open == 0
    assert fleet.decisions(10) == []


def test_polls_between_requests_do_not_take_their_turns() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    later_s = NOW_S + SETTINGS.nodes.fresh_s
    served = Counter[str]()
    for number in range(20):
        served[node_of(fleet.route(request(f"r{number}"), POLICY, later_s))] += 1
        fleet.route_uninspected(f"poll{number}", "", later_s)
    assert served == {"a": 10, "b": 10}


def test_what_is_not_inference_finds_no_ready_node_either() -> None:
    fleet = balancer(snapshot("c", state=NodeState.DRAINING))
    outcome = fleet.route_uninspected("r", "", NOW_S).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.NO_READY_NODE


def test_decisions_are_kept_newest_first_and_bounded() -> None:
    fleet = balancer(snapshot("a"), settings=BalancerSettings(decisions_kept_max=3))
    for number in range(5):
        fleet.route(request(f"r{number}"), POLICY, NOW_S)
    assert [decision.request_id for decision in fleet.decisions(10)] == ["r4", "r3", "r2"]
    assert [decision.request_id for decision in fleet.decisions(1)] == ["r4"]
    assert fleet.decisions(0) == fleet.decisions(-1) == []


def test_freshness_is_told_by_age() -> None:
    fleet = balancer(snapshot("a"))
    (view,) = fleet.views()
    ages = [0.0, 4.999, 5.0, 9.999, 10.0]
    F = Freshness  # noqa: N806
    expected = [F.FRESH, F.FRESH, F.STALE, F.STALE, F.UNKNOWN]
    assert [fleet.freshness(view, NOW_S + age_s) for age_s in ages] == expected


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.sampled_from("abc"), st.floats(0, 1)),
        st.tuples(st.just("route"), st.integers(0, 5000), st.floats(0, 1)),
        st.tuples(st.just("finish"), st.integers(0, 30), st.floats(0, 1)),
        st.tuples(st.just("recount"), st.integers(0, 30), st.floats(0, 1)),
        st.tuples(st.just("leave"), st.sampled_from("abc"), st.floats(0, 1)),
        st.tuples(st.just("wait"), st.floats(0, 200), st.floats(0, 1)),
    ),
    max_size=50,
)


@given(steps=STEPS)
def test_any_history_keeps_the_books_and_repeats_exactly(steps: list[tuple[str, object, float]]) -> None:
    first, again = history(steps), history(steps)
    assert first == again


def history(steps: list[tuple[str, object, float]]) -> list[object]:
    fleet = balancer()
    now_s, sequence, routed, open_ids = NOW_S, 0, 0, set[str]()
    seen: list[object] = []
    for kind, what, share in steps:
        match kind, what:
            case "report", str(node):
                sequence += 1
                seen.append(fleet.observe(NodeReported(snapshot(node, sequence=sequence, kv_usage=share)), now_s))
            case "route", int(tokens):
                routed += 1
                decision = fleet.route(request(f"r{routed}", tokens), POLICY, now_s)
                if isinstance(decision.outcome, Chosen):
                    open_ids.add(f"r{routed}")
                seen.append(decision)
            case "finish", int(number):
                fleet.finish(f"r{number}")
                open_ids.discard(f"r{number}")
            case "recount", int(number):
                fleet.recount(request(f"r{number}", int(share * 5000)))
            case "leave", str(node):
                seen.append(fleet.observe(NodeLeft(node, "boot-1"), now_s))
            case "wait", float(passed_s):
                now_s += passed_s
                fleet.tick(now_s)
        assert fleet.requests_open == len(open_ids)
        assert all(view.own.sequences_unseen <= view.own.sequences_open for view in fleet.views())
        assert all(view.own.kv_blocks_unseen >= 0 for view in fleet.views())
    return seen
