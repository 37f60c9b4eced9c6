import pytest

from extproc.sim.fleetevents import Lasted, events
from tests.sim.fleets import arrivals, fleet, run


def test_every_change_of_a_plan_is_an_event_and_what_holds_from_the_start_is_none() -> None:
    error, slow = {"kind": "error", "at_s": 3, "for_s": 1}, {"kind": "slow", "at_s": 5, "for_s": 1, "factor": 2}
    plan = fleet(
        {"name": "plain"},
        {"name": "a", "joins_at_s": 10, "ready_after_s": 5, "leaves_at_s": 100, "faults": [slow, error]},
        {"name": "b", "ready_after_s": 7},
    )
    assert [(one.node, one.event, one.at_s, one.felt_by_answers) for one in events(plan)] == [
        ("a", "join", 10, False),
        ("a", "ready", 15, False),
        ("a", "error", 3, False),
        ("a", "slow", 5, True),
        ("a", "leave", 100, False),
        ("b", "ready", 7, False),
    ]


def test_what_new_requests_alone_feel_is_over_with_the_last_of_them() -> None:
    hang, error = events(fleet({"faults": [{"kind": kind, "at_s": at, "for_s": 1} for at, kind in enumerate(KINDS)]}))
    lasted = Lasted(requests_s=10.0, answers_s=20.0)
    assert (lasted.felt_until_s(hang), lasted.felt_until_s(error)) == (20.0, 10.0)


KINDS = ("hang", "error")


@pytest.mark.parametrize("strategy", ["round-robin", None])
def test_a_run_ends_with_its_last_answer(strategy: str | None) -> None:
    result = run(arrivals(40), strategy)
    last_s = max(one.finished_s or 0.0 for one in result.served)
    assert last_s <= result.ended_s <= last_s + 0.01


def test_a_run_with_what_never_ends_ends_when_that_has_failed() -> None:
    hang = {"kind": "hang", "at_s": 1, "for_s": 100_000}
    arriving = arrivals(40)
    assert run(arriving, fleet=fleet({"faults": [hang]})).ended_s == arriving[-1].at_s + 3600
