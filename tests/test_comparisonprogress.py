import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from extproc import comparisonprogress, runprogress
from extproc.sim import comparison as comparisons
from extproc.sim.compared import Compared
from extproc.sim.comparison import Comparison, Contender
from extproc.sim.fleetplan import even
from tests.comparisonrows import compared


def told(monkeypatch: pytest.MonkeyPatch, *, run_s: float, jobs: int, terminal: bool = False) -> list[str]:
    """Of 2 × 3 × 4 runs of which each takes so long."""
    now_s = 0.0

    def compare(_: Comparison, __: int, progress: comparisons.Progress) -> Compared:
        nonlocal now_s
        for what, count in (("capacity", 4), ("runs", 24)):
            progress(what, 0, count)
            for done in range(1, count + 1):
                now_s += run_s if done % jobs == 1 or jobs == 1 else 0.0
                progress(what, done, count)
        return compared()

    monkeypatch.setattr(comparisons, "compare", compare)
    changes: dict[str, Any] = {"requests": 60, "fleet": even(1024), "loads": (0.3, 0.6, 0.9), "seeds": 4}
    contenders = (Contender("a", None), Contender("b", None))
    asked = Comparison(trace="generated:conv", contenders=contenders, **changes)
    out = StringIO()
    comparisonprogress.run(
        asked, jobs, Console(file=out, width=60, force_terminal=terminal, color_system=None), lambda: now_s
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    return [line.strip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


MEASURING = comparisonprogress.MEASURING
ANNOUNCED = "24 runs (strategies 2 × loads 3 × seeds 4) of 60 requests on 1,024 nodes, {} at a time"


def test_how_many_runs_there_are_is_said_before_and_how_long_they_take_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = told(monkeypatch, run_s=600, jobs=1, terminal=True)
    assert [line for line in lines if " done, about" in line] == [
        "capacity: 1 of 4 done, about 30 min to go",
        "runs: 1 of 24 done, about 3.8 h to go",
    ]
    assert lines[0] == ANNOUNCED.format(1)
    assert MEASURING in lines


def test_without_a_terminal_a_line_comes_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(monkeypatch, run_s=25, jobs=1)
    assert [line.partition(" done")[0] for line in lines[2:]] == [
        "capacity: 1 of 4",
        *(f"runs: {done} of 24" for done in (1, 4, 7, 10, 13, 16, 19, 22)),
    ]


def test_the_first_of_several_processes_stands_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(monkeypatch, run_s=60, jobs=4, terminal=True)
    assert [line for line in lines if " done, " in line] == ["runs: 1 of 24 done, about 6 min to go"]


def test_short_work_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, run_s=1, jobs=1) == [ANNOUNCED.format(1), MEASURING]


def test_one_is_not_spoken_of_as_several() -> None:
    assert runprogress.counted(1, "run") == "1 run"
    assert runprogress.counted(2000, "run") == "2,000 runs"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (99.4, "99 s"), (100, "2 min"), (5999, "100 min"), (6000, "1.7 h")]
)
def test_durations_are_rough(seconds: float, said: str) -> None:
    assert runprogress.duration(seconds) == said
