"""How requests end, through the balancer: streams that end, streams that were left, and words about answers."""

import pytest

from extproc.core.balancer import Balancer
from extproc.core.fleetstate import BOOT_S_MIN
from extproc.core.outcome import Answered, Ending
from extproc.core.request import Phase
from extproc.core.room import TOO_FEW_BLOCKS
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import NO_LOAD, NodeReported, NodeView, ServedModel
from tests.core.fleet import MODEL, NOW_S, POLICY, SETTINGS, balancer, counts_of, request, snapshot


@pytest.fixture
def fleet() -> Balancer:
    made = balancer(snapshot("a"))
    made.route(request("r1", tokens=160), POLICY, NOW_S)
    return made


def only(fleet: Balancer) -> NodeView:
    (view,) = fleet.views()
    return view


def test_the_head_of_an_answer_ends_nothing_and_its_end_does(fleet: Balancer) -> None:
    fleet.answered(Answered("r1", Ending.SERVED, over=False), NOW_S + 1)
    assert (fleet.requests_open, only(fleet).prefill_tokens_pending) == (1, 160)
    fleet.answered(Answered("r1", Ending.SERVED), NOW_S + 2)
    assert (fleet.requests_open, counts_of(only(fleet).own)) == (0, NO_LOAD)
    fleet.answered(Answered("r1", Ending.SERVED), NOW_S + 3)
    fleet.finish("r1", NOW_S + 3)
    assert counts_of(only(fleet).own) == NO_LOAD


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_is_an_end(fleet: Balancer, ending: Ending) -> None:
    """A client's abort and an upstream reset as well."""
    fleet.answered(Answered("r1", ending), NOW_S + 1)
    assert (fleet.requests_open, counts_of(only(fleet).own)) == (0, NO_LOAD)


def test_words_about_requests_that_are_not_ours_change_nothing(fleet: Balancer) -> None:
    before = only(fleet)
    fleet.answered(Answered("unknown", Ending.SERVED, "10.9.9.9:1", "m", 5), NOW_S)
    fleet.first_token("unknown", NOW_S)
    fleet.leave("unknown", NOW_S)
    fleet.finish("unknown", NOW_S)
    fleet.recount(request("unknown"))
    assert only(fleet) == before
    assert fleet.requests_open == 1


def test_a_first_token_ends_the_prefill_and_only_once(fleet: Balancer) -> None:
    for _ in range(2):
        fleet.first_token("r1", NOW_S + 1)
        assert (only(fleet).prefill_tokens_pending, only(fleet).in_flight) == (0, 1)


def test_a_stream_that_was_left_counts_until_its_end_is_told(fleet: Balancer) -> None:
    fleet.first_token("r1", NOW_S + 1)
    fleet.leave("r1", NOW_S + 1)
    assert (fleet.requests_open, only(fleet).in_flight) == (1, 1)
    fleet.answered(Answered("r1", Ending.SERVED), NOW_S + 60)
    assert (fleet.requests_open, only(fleet).in_flight) == (0, 0)


def test_a_stream_that_was_left_and_whose_end_is_never_told_counts_no_longer_than_is_set(fleet: Balancer) -> None:
    """An open one counts for ever: only its end tells that it is over."""
    fleet.route(request("open", tokens=160), POLICY, NOW_S)
    fleet.leave("r1", NOW_S + 1)
    fleet.tick(NOW_S + 1 + SETTINGS.left_max_s - 0.1)
    assert fleet.requests_open == 2
    fleet = balancer(snapshot("a"), settings=BalancerSettings(left_max_s=5))
    for name in ("left", "open"):
        fleet.route(request(name), POLICY, NOW_S)
    fleet.leave("left", NOW_S + 1)
    for at_s, count in ((5.9, 2), (6.0, 1), (290.0, 1)):
        fleet.tick(NOW_S + at_s)
        assert (fleet.requests_open, only(fleet).own.sequences_open, only(fleet).in_flight) == (count,) * 3


def test_a_stream_that_was_left_is_over_with_the_second_idle_snapshot(fleet: Balancer) -> None:
    fleet.first_token("r1", NOW_S + 0.1)
    fleet.leave("r1", NOW_S + 0.1)
    for sequence, count in ((2, 1), (3, 0)):
        told = snapshot("a", sequence=sequence, first_tokens_total=1)
        fleet.observe(NodeReported(told), NOW_S + sequence)
        assert fleet.requests_open == count


def test_a_stream_that_was_left_ends_with_its_engine(fleet: Balancer) -> None:
    fleet.route(request("open"), POLICY, NOW_S)
    fleet.leave("r1", NOW_S)
    fleet.observe(NodeReported(snapshot("a", boot_id="boot-2")), NOW_S + BOOT_S_MIN)
    assert (fleet.requests_open, counts_of(only(fleet).own)) == (1, NO_LOAD), "the open stream ends by itself"


AT_ONCE = BalancerSettings(nodes=NodeLimits(slow_start_s=0))


def answers(fleet: Balancer, output_tokens: int) -> None:
    for number in range(500):
        fleet.answered(Answered(f"x{number}", Ending.SERVED, None, MODEL, output_tokens), NOW_S)


def test_the_length_of_answers_is_learned_for_the_phase_and_the_costs() -> None:
    fleet = balancer(snapshot("a"), settings=AT_ONCE)
    asked = request(tokens=1600)
    before = fleet.would_route(asked, POLICY, NOW_S)
    assert before.phase is Phase.DECODE, "0.2 s of prefill, 256 tokens of 25 ms"
    assert before.candidates[0].cost == (1600 + 2 * 256) / 8000
    answers(fleet, 1)
    after = fleet.would_route(asked, POLICY, NOW_S)
    assert after.phase is Phase.PREFILL_HEAVY
    assert after.candidates[0].cost == (1600 + 2 * 5) / 8000, "the assumed length weighs as much as eight answers"


@pytest.mark.parametrize(("output_tokens", "allowed", "fits"), [(1, None, True), (9000, None, False), (9000, 40, True)])
def test_an_answer_needs_room_for_what_is_expected_of_it_and_takes_no_blocks_until_samples_show_it(
    output_tokens: int, allowed: int | None, fits: bool
) -> None:
    fleet = balancer(snapshot("a", models=(ServedModel(MODEL),), kv_blocks_available=500))
    answers(fleet, output_tokens)
    asked = request("r1", tokens=1600, output_tokens_max=allowed)
    (found,) = fleet.route(asked, POLICY, NOW_S).candidates
    assert found.excluded == (None if fits else TOO_FEW_BLOCKS)
    assert only(fleet).own.kv_blocks_unseen == 100
    fleet.recount(request("r1", tokens=160, output_tokens_max=allowed))
    assert only(fleet).own.kv_blocks_unseen == 10
