"""Envoy may tell of one answer twice: by its head and by its end."""

from extproc.core.ejection import Ejections
from extproc.core.outcome import Ending
from extproc.core.settings import EjectionSettings

NOW_S = 100.0


def test_one_answer_that_is_told_twice_counts_once() -> None:
    ejections = Ejections(EjectionSettings(errors_max=3))
    for number in (1, 1, 2, 2):
        ejections.answered("a", f"r{number}", Ending.ERROR, NOW_S, members=4)
    assert not ejections.out_until_s
    ejections.answered("a", "r3", Ending.ERROR, NOW_S, members=4)
    assert set(ejections.out_until_s) == {"a"}


def test_the_end_of_what_put_a_node_out_says_nothing_of_its_trial() -> None:
    ejections = Ejections(EjectionSettings())
    ejections.answered("a", "r1", Ending.UNREACHABLE, NOW_S, members=4)
    until_s = ejections.out_until_s["a"]
    ejections.answered("a", "r1", Ending.UNREACHABLE, NOW_S + 0.1, members=4)
    assert ejections.out_until_s["a"] == until_s
