"""Nodes that fail requests: when they are left out, for how long, and how they come back.

Times are seconds; where a test names none, the first time out is one.
"""

import pytest

from extproc.core.ejection import FAILED_KEPT, PROBE_S, SILENT_PROBES_MAX, VERDICT_S, Ejections
from extproc.core.outcome import Ending
from extproc.core.settings import EjectionSettings

SETTINGS = EjectionSettings(first_s=1)


class Fleet(Ejections):
    """Ten nodes, of which most tests look at one."""

    def __init__(self, settings: EjectionSettings = SETTINGS, members: int = 10) -> None:
        super().__init__(settings)
        self.members = members
        self.sent = self.answers = 0

    def says(self, ending: Ending, at_s: float, request_id: str = "", node_id: str = "a") -> None:
        """Of another request each time, unless one is named."""
        self.answers += 1
        self.answered(node_id, request_id or f"answer{self.answers}", ending, at_s, self.members)

    def out_s(self, at_s: float, node_id: str = "a") -> float | None:
        """For how long no request goes there; `None`: it is neither out nor on trial."""
        until_s = self.out_until_s.get(node_id)
        return None if until_s is None else round(until_s - at_s, 6)

    def trial(self, at_s: float) -> str:
        """Send a request to the node, as a decision does once its time is over."""
        out_s = self.out_s(at_s)
        assert out_s is not None
        assert out_s <= 0, "no request goes there"
        self.sent += 1
        self.chosen("a", f"trial{self.sent}", at_s)
        return f"trial{self.sent}"


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_one_unreachable_answer_puts_a_node_out_and_a_client_that_left_proves_nothing(fleet: Fleet) -> None:
    fleet.says(Ending.UNTOLD, 0)
    fleet.says(Ending.SERVED, 0)
    assert fleet.out_s(0) is None
    fleet.says(Ending.UNREACHABLE, 0)
    assert fleet.out_s(0) == SETTINGS.first_s


def test_one_request_whose_failure_is_told_twice_failed_once() -> None:
    """By its head and by its end. However many others fail between, as long as the latest few are remembered."""
    patient = Fleet(EjectionSettings(unreachable_max=2, errors_max=FAILED_KEPT + 1, first_s=1))
    for _ in range(2):
        patient.says(Ending.UNREACHABLE, 0, "r1")
        patient.says(Ending.ERROR, 0, "r2")
        for number in range(FAILED_KEPT - 2):
            patient.says(Ending.ERROR, 0, f"s{number}")
    assert patient.out_s(0) is None
    assert len(patient._states["a"].failed) == FAILED_KEPT
    patient.says(Ending.UNREACHABLE, 0, "r3")
    assert patient.out_s(0) == 1


def test_what_is_remembered_of_failures_is_bounded() -> None:
    patient = Fleet(EjectionSettings(unreachable_max=1000))
    for _ in range(10 * FAILED_KEPT):
        patient.says(Ending.UNREACHABLE, 0)
    assert len(patient._states["a"].failed) == FAILED_KEPT


def test_errors_of_its_own_must_come_in_a_row(fleet: Fleet) -> None:
    """A poison request that gets 500 wherever it is sent must not put out one node after the other."""
    for _ in range(3):
        for _ in range(SETTINGS.errors_max - 1):
            fleet.says(Ending.ERROR, 0)
        fleet.says(Ending.SERVED, 0)
    assert fleet.out_s(0) is None
    for _ in range(SETTINGS.errors_max):
        fleet.says(Ending.ERROR, 0)
    assert fleet.out_s(0) is not None


def test_poison_requests_among_good_ones_put_nobody_out(fleet: Fleet) -> None:
    for number in range(1000):
        fleet.says(Ending.ERROR if number % 3 == 0 else Ending.SERVED, number, node_id=f"n{number % 10}")
    assert not fleet.out_until_s


def test_how_many_failures_it_takes_is_set() -> None:
    patient = Fleet(EjectionSettings(unreachable_max=3, errors_max=2))
    for _ in range(2):
        patient.says(Ending.UNREACHABLE, 0)
    patient.says(Ending.ERROR, 0)
    assert patient.out_s(0) is None, "each kind counts for itself"
    patient.says(Ending.ERROR, 0)
    assert patient.out_s(0) is not None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [(SETTINGS, [1, 2, 4, 8, 16, 32, 60, 60, 60]), (EjectionSettings(), [5, 10, 20, 40, 60, 60, 60, 60, 60])],
)
def test_each_failed_trial_doubles_the_time_out_up_to_the_longest(
    settings: EjectionSettings, expected: list[float]
) -> None:
    fleet = Fleet(settings)
    fleet.says(Ending.UNREACHABLE, 0)
    now_s, outs = 0.0, [fleet.out_s(0)]
    for _ in range(8):
        now_s += outs[-1] or 0
        fleet.says(Ending.UNREACHABLE, now_s, fleet.trial(now_s))
        outs.append(fleet.out_s(now_s))
    assert outs == expected


def test_a_node_may_fail_its_trials_for_days() -> None:
    """Doubling overflows a float after a thousand times."""
    fleet = Fleet(EjectionSettings(first_s=1e-3, longest_s=2e-3))
    fleet.says(Ending.UNREACHABLE, 0)
    for number in range(1, 3000):
        fleet.says(Ending.UNREACHABLE, number, fleet.trial(number))
    assert fleet.out_s(2999) == 2e-3


def test_an_answer_to_a_trial_brings_a_node_back(fleet: Fleet) -> None:
    fleet.says(Ending.UNREACHABLE, 0)
    fleet.says(Ending.SERVED, 1.5, fleet.trial(1))
    assert fleet.out_s(1.5) is None


def test_only_a_trial_says_anything_of_a_node_that_is_out(fleet: Fleet) -> None:
    """A request that was sent before it failed may still end well, and more of them fail."""
    fleet.says(Ending.UNREACHABLE, 0, "r1")
    for ending in Ending:
        fleet.says(ending, 0.5, "sent before")
    assert fleet.out_s(1) == 0, "on trial"
    trial = fleet.trial(1)
    for ending in Ending:
        fleet.says(ending, 1.1, "sent before")
    assert fleet.out_s(1.1) == PROBE_S - 0.1
    fleet.says(Ending.UNTOLD, 1.2, trial)
    assert fleet.out_s(1.2) == PROBE_S - 0.2
    fleet.says(Ending.UNREACHABLE, 2, trial)
    assert fleet.out_s(2) == 2


def test_an_error_of_a_trial_may_be_its_own_fault_so_another_is_sent(fleet: Fleet) -> None:
    """As many errors as put a node out keep it out: else one poisonous request would double its time."""
    fleet.says(Ending.UNREACHABLE, 0, "r1")
    for at_s in range(1, SETTINGS.errors_max):
        fleet.says(Ending.ERROR, at_s + 0.5, fleet.trial(at_s))
        assert fleet.out_s(at_s + 0.5) == 0, "on trial again"
    fleet.says(Ending.ERROR, 10, fleet.trial(9.5))
    assert fleet.out_s(10) == 2


def test_trials_are_sent_one_at_a_time(fleet: Fleet) -> None:
    fleet.says(Ending.UNREACHABLE, 0)
    slow = fleet.trial(1)
    assert fleet.out_s(1) == PROBE_S
    next_one = fleet.trial(1 + PROBE_S)
    assert fleet.out_s(32) == 2 * PROBE_S + 1 - 32
    fleet.says(Ending.SERVED, 32, slow)
    assert fleet.out_s(32) is None, "an answer may take longer than that"
    fleet.says(Ending.UNREACHABLE, 33, next_one)
    assert fleet.out_s(33) is not None


def test_the_word_about_a_trial_may_come_after_its_end(fleet: Fleet) -> None:
    """Access logs come in batches."""
    fleet.says(Ending.UNREACHABLE, 0)
    trial = fleet.trial(1)
    fleet.finished("a", trial, 3)
    assert fleet.out_s(3) == VERDICT_S
    fleet.says(Ending.SERVED, 4, trial)
    assert fleet.out_s(4) is None


def test_trials_of_which_nothing_is_heard_end_the_ejection_after_a_few(fleet: Fleet) -> None:
    """Where no access log is there to tell, no node must be out for ever."""
    fleet.says(Ending.UNREACHABLE, 0)
    now_s = 1.0
    for number in range(SILENT_PROBES_MAX):
        trial = fleet.trial(now_s)
        fleet.finished("a", "another", now_s)
        assert fleet.out_s(now_s) == PROBE_S
        fleet.finished("a", trial, now_s + 1)
        now_s += 1 + VERDICT_S
        assert (fleet.out_s(now_s) is None) == (number + 1 == SILENT_PROBES_MAX)


def test_silent_trials_are_counted_from_the_last_failure(fleet: Fleet) -> None:
    fleet.says(Ending.UNREACHABLE, 0)
    fleet.finished("a", fleet.trial(1), 1)
    fleet.says(Ending.UNREACHABLE, 3, fleet.trial(3))
    for at_s in (5, 7):
        fleet.finished("a", fleet.trial(at_s), at_s)
    assert fleet.out_s(7) == VERDICT_S


def test_a_node_that_was_well_for_long_begins_anew_and_one_that_was_not_goes_on(fleet: Fleet) -> None:
    fleet.says(Ending.UNREACHABLE, 0)
    fleet.says(Ending.UNREACHABLE, 1, fleet.trial(1))
    fleet.says(Ending.SERVED, 4, fleet.trial(3))
    fleet.says(Ending.UNREACHABLE, 4 + SETTINGS.longest_s)
    assert fleet.out_s(4 + SETTINGS.longest_s) == 4
    well_s = 100.0
    fleet.says(Ending.SERVED, well_s, fleet.trial(well_s))
    fleet.says(Ending.UNREACHABLE, well_s + SETTINGS.longest_s + 0.1)
    assert fleet.out_s(well_s + SETTINGS.longest_s + 0.1) == SETTINGS.first_s


@pytest.mark.parametrize(
    ("members", "share", "out"), [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (10, 0.5, 5), (10, 0.0, 0), (10, 1.0, 10)]
)
def test_no_more_than_a_share_of_the_nodes_is_out_at_once(members: int, share: float, out: int) -> None:
    fleet = Fleet(EjectionSettings(share_max=share), members)
    for number in range(members):
        fleet.says(Ending.UNREACHABLE, 0, node_id=f"n{number}")
    assert len(fleet.out_until_s) == out


def test_a_node_that_the_share_kept_in_is_put_out_by_its_next_failure_once_there_is_room() -> None:
    fleet = Fleet(members=2)
    fleet.says(Ending.UNREACHABLE, 0, node_id="b")
    fleet.says(Ending.UNREACHABLE, 0)
    assert fleet.out_s(0) is None
    fleet.forget("b")
    fleet.says(Ending.UNREACHABLE, 1)
    assert fleet.out_s(1) == SETTINGS.first_s


def test_a_forgotten_node_leaves_nothing(fleet: Fleet) -> None:
    fleet.says(Ending.UNREACHABLE, 0)
    fleet.forget("a")
    fleet.forget("never seen")
    assert not fleet.out_until_s
    assert not fleet._states
    fleet.chosen("a", "r1", 1)
    fleet.finished("a", "r1", 1)
    assert not fleet._states
