"""The measurement of overload: its runs, its tables, and a tiny one."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.overload import running
from bench.overload.__main__ import BEGIN, END, main
from bench.overload.cases import BATCH, INTERACTIVE, LOADS, PARTS, Task
from bench.overload.running import grids, ran, tasks_of
from bench.strategies.cases import SETTINGS
from extproc.sim.simulation import Run, Setup, simulate
from extproc.sim.traces import Arrival

EVERY = list(PARTS.values())


def test_what_two_parts_ask_is_run_once_and_all_that_is_asked_is_run() -> None:
    tasks = tasks_of(EVERY, list(SETTINGS), 50, seeds=2)
    assert len(set(tasks)) == len(tasks)
    asked = {(setting, variant) for part in EVERY for setting in part.settings for variant in part.variants.values()}
    assert len(tasks) == len(asked) * len(LOADS) * 2
    assert {(task.setting, task.variant) for task in tasks} == asked


def test_every_cell_of_every_table_is_filled_and_one_of_a_run_that_failed_is_not() -> None:
    part = PARTS["classes"]
    tasks = tasks_of([part], ["mix"], 30, seeds=1)
    found = {task: ran(None, task) for task in tasks}
    quantities = part.quantities + part.folded
    for grid in grids(part, quantities, ["mix"], 1, found):
        assert [row[0] for row in grid.rows] == list(part.variants)
        assert all(len(row) == len(grid.columns) == 3 and "–" not in row for row in grid.rows)
        assert all(row[1] == row[2] for row in grid.rows)
    assert all(set(row[1:]) == {"–"} for grid in grids(part, quantities, ["mix"], 2, found) for row in grid.rows)


def test_so_many_requests_are_batch_and_the_same_ones_in_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[list[str]] = []

    def simulated(arrivals: list[Arrival], setup: Setup) -> Run:
        kinds.append([one.kind for one in arrivals])
        return simulate(arrivals, setup)

    monkeypatch.setattr(running, "simulate", simulated)
    for variant in PARTS["classes"].variants.values():
        ran(None, Task("conv", 200, 0, 0.5, variant))
    assert all(one == kinds[0] for one in kinds)
    assert set(kinds[0]) == {INTERACTIVE, BATCH}
    assert 60 <= kinds[0].count(BATCH) <= 100


def test_a_tiny_measurement_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.overload.__main__.at_hand", lambda _: (SETTINGS["mix"],))
    results = tmp_path / "results.md"
    results.write_text(f"# Results\n{BEGIN}\nold\n{END}\nThe end.\n")
    arguments = ["--requests", "30", "--seeds", "1", "--part", "waiting", "--markdown", str(results)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    written = results.read_text()
    assert written.startswith(f"# Results\n{BEGIN}\nEight nodes")
    assert written.endswith(f"{END}\nThe end.\n")
    assert "old" not in written
    assert "| refused at once | 1.000 (0) |" in written
    assert written.count("<details>") == len(LOADS)


def test_a_document_without_marks_is_told_before_anything_runs(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    results.write_text("<!-- simulated --><!-- /simulated -->")
    told = CliRunner().invoke(main, ["--markdown", str(results)])
    assert told.exit_code == 1
    assert "wanted <!-- overload --> and then" in " ".join(told.output.split())
    assert results.read_text() == "<!-- simulated --><!-- /simulated -->"
