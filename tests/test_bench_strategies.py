"""The comparison of strategies in the simulator: its cases, their figures, its tables and sentences, and a tiny one."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from bench.strategies import checks, running, spread
from bench.strategies.__main__ import main
from bench.strategies.cases import (
    CONTENDERS,
    INTERVALS_S,
    LOADS,
    SETTINGS,
    SNAPSHOTS_OF,
    STRATEGY,
    WEIGHTED,
    Case,
    Scope,
    at_hand,
    source,
)
from bench.strategies.document import BEGIN, END, PARTS
from bench.strategies.running import FAILING_PLACE, Figures, failing
from bench.strategies.spread import NGOOD, SLOWDOWN, Spread
from extproc.core.settings import Fault
from extproc.sim import fleetplan
from extproc.sim.comparison import Comparison, Contender, compare, contender
from extproc.sim.fleetplan import FailureKind
from extproc.sim.measures import Measures

pytestmark = pytest.mark.usefixtures("capacities_kept")

TWO = tuple(SETTINGS[name] for name in ("conv", "heavy"))
SMALL = Scope(TWO, seeds=2, requests=50)


def measures(ngood: float, slowdown: float | None = 2.0) -> Measures:
    return Measures(
        requests=100,
        refused=0,
        failed=3,
        ngood=ngood,
        ttft_p50_s=0.1,
        ttft_p90_s=0.2,
        ttft_p99_s=0.3,
        tpot_p99_s=0.05,
        slowdown=slowdown,
        preemptions=0,
        prefix_hit_share=0.0,
        node_shares={},
    )


def made_up(cases: list[Case], ngoods: dict[str, float], default: float = 0.5) -> dict[Case, Figures]:
    """Figures in which a strategy's ngood is as given, and .01 more with each seed."""
    return {
        case: Figures(case, 10.0, measures(ngoods.get(case.strategy, default) + 0.01 * case.seed)) for case in cases
    }


def silent(_: dict[Case, Figures], __: int) -> None:
    pass


def test_every_strategy_is_known_and_every_weight_is_another_policy() -> None:
    policies = []
    for name in (*CONTENDERS, *WEIGHTED):
        found = contender(name, {})
        assert isinstance(found, Contender)
        policies.append(found.policy)
    assert len({policy for policy in policies[len(CONTENDERS) :] if policy is not None}) == len(WEIGHTED)
    assert STRATEGY in WEIGHTED, "the default is among those it was chosen from"


def test_settings_are_at_hand_where_their_traces_are(tmp_path: Path) -> None:
    names = ["conv", "code", "mix", "heavy", "agents", "chats", "heavy, unequal"]
    assert [one.name for one in at_hand(None)] == names
    assert at_hand(tmp_path) == at_hand(None)
    for name in ("AzureLLMInferenceTrace_conv.csv", "conversation_trace.jsonl"):
        (tmp_path / name).touch()
    assert at_hand(tmp_path) == tuple(SETTINGS.values())
    assert source(SETTINGS["mooncake"], tmp_path) == str(tmp_path / "conversation_trace.jsonl")


def test_the_figures_are_those_of_simulate() -> None:
    names = (STRATEGY, "reference")
    contenders = [contender(name, {}) for name in names]
    asked = Comparison(
        trace="generated:conv",
        requests=40,
        fleet=fleetplan.even(8),
        contenders=tuple(one for one in contenders if isinstance(one, Contender)),
        loads=(0.75,),
        seeds=1,
        routers=2,
        snapshot_interval_s=2.0,
        first_tokens=True,
    )
    compared = compare(asked, 1, lambda _what, _done, _of: None)
    scope = Scope(TWO[:1], seeds=1, requests=40)
    cases = scope.cases(None, (0.75,), names, routers=2, snapshot_interval_s=2.0, first_tokens=True)
    for row, one in zip(compared.rows, running.together(cases, None), strict=True):
        assert one.capacity_per_s == compared.capacity_per_s
        assert (one.measures.ngood, one.measures.slowdown, one.measures.ttft_p99_s) == (
            row.ngood,
            row.slowdown,
            row.ttft_p99_s,
        )


@pytest.mark.parametrize("kind", FailureKind)
def test_one_node_fails_once(kind: FailureKind) -> None:
    nodes = failing(fleetplan.even(8), kind).nodes
    assert [len(node.faults) for node in nodes] == [place == FAILING_PLACE for place in range(8)]
    (fault,) = nodes[FAILING_PLACE].faults
    assert fault.kind is kind


def test_clients_see_an_error_only_where_a_node_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "FAILS_AT_S", 0.0)
    scope = Scope(TWO[:1], seeds=1, requests=40)
    cases = [case for fault in (None, "error") for case in scope.cases(None, (0.75,), ("round-robin",), fault=fault)]
    healthy, faulty = running.together(cases, None)
    assert healthy.measures.failed == 0
    assert faulty.measures.failed > 0


def test_equal_is_not_ahead() -> None:
    ours, theirs = Spread((1.0, 2.0, 3.0)), Spread((1.0, 1.0, 4.0))
    assert spread.seeds_ahead(ours, theirs, NGOOD) == spread.seeds_ahead(ours, theirs, SLOWDOWN) == 1


def test_what_is_known_is_not_run_again() -> None:
    cases = SMALL.cases(None, LOADS, (STRATEGY,))
    known = made_up(cases, {})
    assert running.run(cases, None, 1, known, silent) == known


def test_figures_are_kept_and_read_again(tmp_path: Path) -> None:
    figures = made_up(SMALL.cases(None, LOADS, (STRATEGY, "reference")), {})
    running.write(tmp_path / "figures.json", figures.values())
    assert running.read(tmp_path / "figures.json") == figures


@pytest.mark.parametrize("content", ["", "[]", '{"figures": [{"case": 1}]}', "\xff", None])
def test_a_file_that_holds_no_figures_is_a_fault(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "figures.json").write_bytes(content.encode("latin-1"))
    assert isinstance(running.read(tmp_path / "figures.json"), Fault)


def test_a_mean_is_over_the_settings_of_each_seed_and_its_width_over_seeds() -> None:
    cases = SMALL.cases(None, LOADS[:1], (STRATEGY,))
    found = made_up(cases, {})
    low, high = (case for case in cases if case.seed == 0)
    found[low] = Figures(low, 10.0, measures(0.2))
    found[high] = Figures(high, 10.0, measures(0.6))
    mean = spread.mean_over(found, cases, NGOOD, seeds=2)
    assert mean is not None
    assert mean.values == pytest.approx((0.4, 0.51))
    assert mean.shown(3) == "0.455 (.110)"


def test_a_mean_of_what_is_not_all_known_is_unknown() -> None:
    cases = SMALL.cases(None, LOADS[:1], (STRATEGY,))
    found = made_up(cases, {})
    found[cases[-1]] = Figures(cases[-1], 10.0, measures(0.5, slowdown=None))
    assert spread.mean_over(found, cases, SLOWDOWN, seeds=2) is None
    assert spread.mean_over(found, cases, NGOOD, seeds=3) is None
    assert spread.mean_over(found, [], NGOOD, seeds=2) is None


def test_the_order_is_told_with_who_is_ahead_and_where() -> None:
    cases = PARTS["workloads"].cases(SMALL)
    found = made_up(cases, {STRATEGY: 0.9, "lmetric": 0.8, "random": 0.1, "reference": 0.95})
    first, *_ = checks.of_workloads(SMALL, found)
    assert first.startswith(f"Mean ngood at 60 % load: {STRATEGY} 0.905, lmetric 0.805, ")
    assert f"random 0.105. {STRATEGY} is number 1 of 7; better than lmetric with 2 of 2 seeds. In no workload" in first
    assert first.endswith("With first tokens as they come it has 0.905.")
    for case in cases:
        if case.setting == "heavy" and case.strategy == "lmetric":
            found[case] = Figures(case, 10.0, measures(0.97))
    first, *_ = checks.of_workloads(SMALL, found)
    assert "better than lmetric with 2 of 2 seeds" in first
    assert "in heavy (lmetric 0.970 against 0.905, ahead with 2 of 2 seeds)." in first


def test_a_strategy_that_falls_behind_is_told_so() -> None:
    found = made_up(PARTS["workloads"].cases(SMALL), {STRATEGY: 0.7, "lmetric": 0.8, "reference": 0.95})
    told = checks.of_workloads(SMALL, found)
    assert f"{STRATEGY} is number 2 of 7; better than lmetric with 0 of 2 seeds." in told[0]
    low, high = told[-2:]
    assert "reaches 0.738 of the reference's mean ngood, 0.737 with the least" in low
    assert low.endswith("missed.")
    assert "wanted" not in high, "of this load nothing is wanted"


def test_what_was_refused_is_told() -> None:
    found = made_up(PARTS["workloads"].cases(SMALL), {})
    assert not any("Refused" in told for told in checks.of_workloads(SMALL, found))
    for case, one in found.items():
        if (case.setting, case.load, case.first_tokens) == ("heavy", 0.75, False):
            refused = {"random": 30, "round-robin": 40}.get(case.strategy, 0)
            found[case] = Figures(case, 10.0, msgspec.structs.replace(one.measures, refused=refused))
    (told,) = (told for told in checks.of_workloads(SMALL, found) if "Refused" in told)
    assert told.endswith("was a share of .30 to .40 by 2 strategies (heavy, 75 %).")


@pytest.mark.parametrize(("worst", "answer"), [(0.485, "met"), (0.475, "missed")])
def test_what_snapshots_do_is_held_to_its_bound(worst: float, answer: str) -> None:
    scope = Scope(tuple(SETTINGS[name] for name in SNAPSHOTS_OF), seeds=1)
    found = made_up(PARTS["snapshots"].cases(scope), {})
    for case in found:
        if case.snapshot_interval_s == INTERVALS_S[-1] and case.first_tokens:
            found[case] = Figures(case, 10.0, measures(worst))
    without, with_first = checks.of_snapshots(scope, found)
    assert f": {answer}." in with_first
    assert "varies by 0 between" in without
    assert ": met." in without


@pytest.mark.parametrize("name", PARTS)
def test_every_cell_of_every_table_is_filled(name: str) -> None:
    scope = Scope(tuple(SETTINGS.values()), seeds=1, requests=50)
    part = PARTS[name]
    grids = part.grids(scope, made_up(part.cases(scope), {}))
    assert grids
    for grid in grids:
        assert grid.rows
        assert all(len(row) == len(grid.columns) and "–" not in row for row in grid.rows)


def test_tables_and_sentences_go_without_what_is_not_known() -> None:
    scope = Scope((SETTINGS["chats"],), seeds=1)
    for part in PARTS.values():
        assert part.checks(scope, {}) == []
        part.grids(scope, {})


def test_a_tiny_comparison_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.strategies.__main__.at_hand", lambda _: TWO)
    results, kept = tmp_path / "results.md", tmp_path / "figures.json"
    results.write_text(f"# Results\n{BEGIN}\n{END}\nThe end.\n")
    arguments = ["--requests", "50", "--seeds", "1", "--jobs", "1", "--part", "workloads", "--part", "failing"]
    first = CliRunner().invoke(main, [*arguments, "--json", str(kept), "--markdown", str(results)])
    assert first.exit_code == 0, first.output
    written = results.read_text()
    assert written.startswith(f"# Results\n{BEGIN}\nEight nodes, one seed; requests in each run: 50.")
    assert written.endswith(f"{END}\nThe end.\n")
    assert "| reference | 1.000 (0) |" in written
    assert len(msgspec.json.decode(kept.read_bytes())["figures"]) == 2 * 2 * 10
    again = CliRunner().invoke(main, [*arguments, "--from", str(kept), "--markdown", str(results)])
    assert "0 runs, 40 known" in again.output
    assert results.read_text() == written


def test_unsound_files_are_told_before_anything_runs(tmp_path: Path) -> None:
    document_without, trace = tmp_path / "results.md", tmp_path / "AzureLLMInferenceTrace_conv.csv"
    document_without.write_text("no marks")
    trace.write_text("nonsense")
    for arguments, wanted in (
        (["--markdown", str(document_without)], "wanted <!-- simulated -->"),
        (["--traces", str(tmp_path)], "TIMESTAMP"),
        (["--from", str(document_without)], "figures as --json writes them"),
    ):
        told = CliRunner().invoke(main, arguments)
        assert told.exit_code == 1
        assert wanted in told.output.replace("\n", " ")
