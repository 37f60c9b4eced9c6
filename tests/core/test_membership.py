from collections import Counter
from typing import Any

import pytest

from extproc.core.balancer import Balancer
from extproc.core.decided import FALLBACK
from extproc.core.decision import Refusal, Refused, Unknown
from extproc.core.fleetstate import BOOT_S_MIN
from extproc.core.outcome import Answered, Ending
from extproc.core.snapshot import Freshness, NodeLeft, NodeReported, NodeState, ServedModel
from extproc.core.table import MODELS_LEFT_MAX, SnapshotTable
from tests.core.fleet import NOW_S, POLICY, SETTINGS, balancer, node_of, request, snapshot


@pytest.mark.parametrize("passed_s", [0.0, 1.999])
def test_within_two_report_intervals_of_the_start_everything_continues_without_a_destination(passed_s: float) -> None:
    fleet = Balancer(SETTINGS, NOW_S)
    fleet.observe(NodeReported(snapshot("a", requests_waiting=100)), NOW_S)
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


def test_asking_whose_turn_it_would_be_takes_no_turn() -> None:
    fleet = balancer(snapshot("a", weight=2.0), snapshot("b"))
    later_s = NOW_S + SETTINGS.nodes.fresh_s
    served = []
    for number in range(6):
        would = [node_of(fleet.would_route(request(f"r{number}"), POLICY, later_s)) for _ in range(5)]
        served.append(node_of(fleet.route(request(f"r{number}"), POLICY, later_s)))
        assert set(would) == {served[-1]}
    assert "".join(served) == "abaaba"


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
    fleet.finish("r1", NOW_S)
    assert fleet.requests_open == 0


@pytest.mark.parametrize("goodbye", [True, False])
def test_another_boot_has_nothing_of_the_one_before_with_a_goodbye_between_or_without(goodbye: bool) -> None:
    fleet = balancer(snapshot("a", requests_running=None))
    fleet.route(request("r1"), POLICY, NOW_S)
    if goodbye:
        fleet.observe(NodeLeft("a", "boot-1"), NOW_S)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2", requests_running=None)), NOW_S + BOOT_S_MIN)
    (view,) = fleet.views()
    assert (view.own.sequences_open, view.in_flight, fleet.requests_open) == (0, 0, 1)
    fleet.finish("r1", NOW_S + BOOT_S_MIN)
    assert fleet.requests_open == 0


def test_a_node_that_begins_anew_at_every_look_sheds_nothing_by_it() -> None:
    """A lie, or one URL behind which several engines stand: what was sent there counts until its stream ends."""
    fleet = balancer(snapshot("a"), snapshot("b"), snapshot("c"))
    node_id = node_of(fleet.route(request("r1"), POLICY, NOW_S))
    fleet.answered(Answered("x", Ending.UNREACHABLE, snapshot(node_id).host), NOW_S)
    for boot in range(1, 20):
        fleet.observe(NodeReported(snapshot(node_id, boot_id=f"boot-{boot}")), NOW_S + boot)
        view = fleet.view_of(node_id)
        assert view is not None
        assert (view.own.sequences_open, view.in_flight) == (1, 1)
        assert node_id in fleet.out_until_s
    fleet.finish("r1", NOW_S + 20)
    view = fleet.view_of(node_id)
    assert view is not None
    assert (view.own.sequences_open, fleet.requests_open) == (0, 0)


@pytest.mark.parametrize(("after_s", "kept"), [(BOOT_S_MIN - 0.01, 1), (BOOT_S_MIN, 0)])
def test_a_boot_that_was_ready_for_long_enough_ends_with_all_it_had(after_s: float, kept: int) -> None:
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1"), POLICY, NOW_S)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S + after_s)
    (view,) = fleet.views()
    assert view.own.sequences_open == kept


def test_a_node_that_was_silent_for_long_finds_its_open_requests_counted() -> None:
    fleet = balancer(snapshot("a"))
    fleet.route(request("r1"), POLICY, NOW_S)
    later_s = NOW_S + SETTINGS.nodes.member_s + 1
    assert fleet.tick(later_s) == ["a"]
    fleet.observe(NodeReported(snapshot("a", sequence=2)), later_s)
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


def test_freshness_is_told_by_age() -> None:
    fleet = balancer(snapshot("a"))
    (view,) = fleet.views()
    ages = [0.0, 4.999, 5.0, 9.999, 10.0]
    F = Freshness  # noqa: N806
    expected = [F.FRESH, F.FRESH, F.STALE, F.STALE, F.UNKNOWN]
    assert [fleet.freshness(view, NOW_S + age_s) for age_s in ages] == expected
