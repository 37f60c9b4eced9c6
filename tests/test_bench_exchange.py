"""Several routers in the simulator: the cases, the tables and sentences, and a tiny run."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.exchange import tables
from bench.exchange.__main__ import BEGIN, END, main
from bench.exchange.cases import LOADS, ONE, PARTS, THREE, WORKLOADS, Variant
from bench.strategies.cases import SETTINGS, STRATEGY, Case, Scope
from bench.strategies.running import Figures, together
from bench.strategies.spread import percent
from extproc.sim import fleetplan
from extproc.sim.comparison import Comparison, Contender, compare, contender
from tests.test_bench_strategies import measures

pytestmark = pytest.mark.usefixtures("capacities_kept")
ALL = Scope(tuple(SETTINGS[name] for name in WORKLOADS), seeds=2, requests=50)


def made_up(name: str, three: float) -> dict[Case, Figures]:
    """Figures in which three routers that tell all have this ngood, and others 0.9; 0.01 more with each seed."""
    three_of = PARTS["told"].variants[THREE]
    return {
        case: Figures(case, 10.0, measures((three if _is(case, three_of) else 0.9) + 0.01 * case.seed))
        for case in PARTS[name].cases(ALL)
    }


def _is(case: Case, variant: Variant) -> bool:
    told = (variant.routers, variant.exchange, variant.first_tokens)
    return (case.routers, case.exchange, case.first_tokens) == told


@pytest.mark.parametrize("name", PARTS)
def test_every_cell_of_every_table_is_filled(name: str) -> None:
    found = made_up(name, 0.8)
    text = tables.written([name], ALL, found)
    assert "–" not in text
    part = PARTS[name]
    assert len({case for case in part.cases(ALL) if case.seed == 0}) == len(part.workloads) * len(part.loads) * len(
        part.variants
    )
    assert all(text.count(f"\n| {row} |") == 3 * len(part.loads) for row in part.variants)


@pytest.mark.parametrize(("three", "answer"), [(0.871, "met"), (0.869, "missed")])
def test_what_three_routers_lose_is_held_to_its_bound(three: float, answer: str) -> None:
    told = tables.lost(ALL, made_up("told", three) | made_up("first tokens", 0.9))
    assert len(told) == len(LOADS) + 1
    assert told[0].startswith("At 60 % load, three routers with prefixes have so much less ngood than one: conv +0.0")
    assert all(one.endswith(f"wanted is 0.03 at most: {answer}.") for one in told[:-1])
    assert told[-1].startswith("At 70 % load, first tokens, three")
    assert told[-1].endswith("met."), "with first tokens nothing was lost"


def test_sentences_and_tables_go_without_what_is_not_known() -> None:
    assert tables.lost(ALL, {}) == []
    assert "|" not in tables.written(list(PARTS), ALL, {})
    known = {case: one for case, one in made_up("told", 0.8).items() if case.load == LOADS[1]}
    text = tables.written(list(PARTS), ALL, known)
    assert f"ngood at {percent(LOADS[1])} load" in text
    assert f"ngood at {percent(LOADS[0])} load" not in text


def test_the_figures_are_those_of_simulate() -> None:
    entrant = contender(STRATEGY, {})
    assert isinstance(entrant, Contender)
    one_router, variant = (PARTS["told"].variants[name] for name in (ONE, THREE))
    asked = Comparison(
        trace="generated:heavy",
        requests=60,
        fleet=fleetplan.even(8),
        contenders=(entrant,),
        loads=(0.9,),
        seeds=1,
        routers=variant.routers,
        exchange=variant.exchange,
    )
    (row,) = compare(asked, 1, lambda _what, _done, _of: None).rows
    heavy = Scope((SETTINGS["heavy"],), seeds=1, requests=60)
    cases = [case for one in (variant, one_router) for case in one.cases(heavy, 0.9, WORKLOADS)]
    three, alone = (one.measures for one in together(cases, None))
    assert (three.ngood, three.slowdown) == (row.ngood, row.slowdown)
    assert alone != three


def test_a_tiny_run_for_real(tmp_path: Path) -> None:
    results, kept = tmp_path / "results.md", tmp_path / "figures.json"
    results.write_text(f"# Results\n{BEGIN}\n{END}\nThe end.\n")
    arguments = ["--requests", "20", "--seeds", "1", "--jobs", "1", "--part", "faults"]
    first = CliRunner().invoke(main, [*arguments, "--json", str(kept), "--markdown", str(results)])
    assert first.exit_code == 0, first.output
    written = results.read_text()
    assert written.startswith(f"# Results\n{BEGIN}\nEight nodes, one seed; requests in each run: 20.")
    assert "Without mooncake, whose traces were not at hand." in written
    assert "| 3 routers, prefixes | " in written
    assert written.endswith(f"{END}\nThe end.\n")
    again = CliRunner().invoke(main, [*arguments, "--from", str(kept), "--markdown", str(results)])
    assert "; 0 runs, 10 known" in again.output
    assert results.read_text() == written


def test_unsound_files_are_told_before_anything_runs(tmp_path: Path) -> None:
    document = tmp_path / "results.md"
    document.write_text("no marks")
    for arguments, wanted in (
        (["--markdown", str(document)], f"wanted {BEGIN}"),
        (["--from", str(document)], "figures as --json writes them"),
    ):
        told = CliRunner().invoke(main, arguments)
        assert told.exit_code == 1
        assert wanted in told.output.replace("\n", " ")
