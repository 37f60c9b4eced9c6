"""The measurement of the forecast: what is needed, what was told, their figures, and a tiny one."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.forecast import following, hindsight, tables
from bench.forecast.__main__ import BEGIN, END, main
from bench.forecast.cases import APART_S, Case, demanded
from bench.forecast.following import FIRST, KNOWN, NAMES, Played, Way, by_requests, nodes_of, play, ways
from bench.forecast.hindsight import LEAD_IN_S, SHARE, WINDOW_S, in_time, needed, on, windows_of
from extproc.core.forecastsettings import ForecastSettings
from extproc.sim import workloads
from extproc.sim.demand import Demand, Span, arrivals, span
from extproc.sim.fleetplan import even
from extproc.sim.fleetsize import Sizing, size
from extproc.sim.nodesneeded import Objective
from extproc.sim.simulation import simulate
from extproc.sim.traces import Arrival

SLOW = Case("slow", "conv", 12, rate_factor=0.05)


@pytest.fixture(autouse=True)
def little_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "REQUESTS_MAX", 1500)


def made(case: Case = SLOW) -> list[Arrival]:
    found = demanded(case, None)
    assert isinstance(found, list)
    return found


def test_the_need_of_a_window_is_that_which_plan_tells() -> None:
    demand = Demand(trace="generated:conv", requests=1500, rate_factor=0.4)
    asked, arriving = span(demand), arrivals(demand, 0)
    assert isinstance(asked, Span)
    assert isinstance(arriving, list)
    objective = Objective(ttft_s=ForecastSettings().ttft_s, share=SHARE)
    sizing = Sizing(
        demand=demand,
        span=asked,
        setup=hindsight.SETUP,
        objective=objective,
        nodes_max=hindsight.NODES_MAX,
        window_s=WINDOW_S,
        lead_in_s=LEAD_IN_S,
    )
    planned = [one.nodes for one in size(sizing, 1, lambda *_: None).windows]
    found = [needed(arriving, place) for place in range(windows_of(arriving))]
    assert found == planned[: len(found)]
    assert max(found) > 1


def test_a_window_without_requests_needs_one_node() -> None:
    arriving = [Arrival(0.0, 10, 1), Arrival(200.0, 10, 1)]
    assert [needed(arriving, place) for place in range(windows_of(arriving))] == [1, 1, 1]


def at_once(at_s: float, requests: int = 8) -> list[Arrival]:
    """Each is computed for about a second."""
    return [Arrival(at_s + place / 1000, 10_000, 1) for place in range(requests)]


def test_what_comes_before_a_window_is_served_and_not_judged() -> None:
    alone = [Arrival(61.0, 100, 1), Arrival(121.0, 100, 1)]
    assert [needed([*at_once(40.0), *alone], place) for place in range(2)] == [4, 1]
    assert needed([*at_once(59.9), *alone], 1) > 1
    assert needed([*at_once(60.0 - LEAD_IN_S - 1), *alone], 1) == 1


def test_only_prompts_that_can_be_in_time_are_judged_and_all_are_served() -> None:
    late = [Arrival(place / 1000, 40_000, 1) for place in range(3)]
    arriving = [Arrival(100.0 + place, 100, 1) for place in range(5)]
    assert in_time(simulate(late + arriving, on(even(1))).served) == (5, 5)
    assert hindsight.least(late + arriving) == 1
    assert hindsight.least(late) == 1
    behind = [Arrival(place / 1000, 40_000, 1) for place in range(3)] + [Arrival(0.01, 100, 1)]
    assert hindsight.least(behind) > 1


def test_copies_come_one_after_the_other_and_share_nothing() -> None:
    once, thrice = made(), made(Case("slow", "conv", 12, copies=3, rate_factor=0.05))
    assert len(thrice) == 3 * len(once)
    assert thrice == sorted(thrice, key=lambda one: one.at_s)
    assert sorted(one.at_s for one in thrice) == sorted(
        one.at_s + APART_S * place for one in once for place in range(3)
    )
    blocks = [block for one in thrice for block in one.prompt_blocks]
    assert len(set(blocks)) == len(blocks)


@pytest.mark.parametrize(
    ("came", "nodes", "told"),
    [
        ((10, 20, 40), 7, (1, 2, 4)),
        ((10, 20, 40), 6, (1, 2, 3)),  # 7 is too many: the next fewer
        ((10, 20, 40), 3, (1, 1, 1)),
        ((10, 20, 40), 1, (1, 1, 1)),
        ((0, 0), 9, (1, 1)),
    ],
)
def test_a_number_of_requests_for_each_node_is_chosen_for_as_many_nodes(
    came: Sequence[int], nodes: int, told: Sequence[int]
) -> None:
    assert by_requests(came, nodes) == told


def test_each_node_is_there_in_the_windows_that_want_so_many() -> None:
    planned = [(one.name, one.joins_at_s, one.leaves_at_s) for one in nodes_of((1, 3, 2, 1, 2))]
    assert planned == [
        ("node-1-0", 0.0, None),
        ("node-2-1", 60.0, 180.0),
        ("node-2-4", 240.0, None),
        ("node-3-1", 60.0, 120.0),
    ]


def test_every_way_tells_by_what_is_known_one_cold_start_before_the_window() -> None:
    needs = (11, 12, 13, 14, 15)
    asked: list[tuple[int, ...]] = []

    def played(told: tuple[int, ...]) -> Played:
        asked.append(told)
        first = 100 if len(asked) == 1 else 200
        return Played(0.5, tuple(range(first, first + FIRST + len(told))))

    arriving = [Arrival(place * WINDOW_S, 10, 1) for place in range(KNOWN, FIRST + 3) for _ in range(place)]
    found = dict(zip(NAMES, ways(arriving, needs, played), strict=True))
    assert {name: one.told for name, one in found.items()} == {
        "forecast": (109, 110, 111),  # said as window 9 begins, which is 60 s before window 10 does
        "forecast, where the fleet follows it": (209, 210, 211),
        "forecast, the most of 5 minutes": (109, 110, 111),
        "need of the minute before": (11, 12, 13),  # of windows 8, 9 and 10
        "requests of the minute before": by_requests((8, 9, 10), 109 + 110 + 111),
        "always the mean need": (13, 13, 13),
        "always the most of any minute": (15, 15, 15),
        "hindsight": (13, 14, 15),
    }
    assert asked[0] == (15, 15, 15), "the forecast is read where there are always enough nodes"
    assert asked[1] == (109, 110, 111)


def test_a_fleet_that_does_as_told_is_read_as_each_window_begins() -> None:
    arriving = made()
    windows = windows_of(arriving)
    enough = play(arriving, 3, (1,) * (windows - FIRST))
    assert len(enough.said) >= windows
    assert enough.said[0] == 3, "a router that has just begun gives nothing back"
    assert set(enough.said[1:]) == {1}
    assert enough.in_time == 1.0


def test_requests_of_the_windows_that_are_told_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST", 1)
    bursts = [*at_once(0.0, 6), *at_once(70.0, 6), *at_once(130.0, 6)]
    few, before, many = (play(bursts, *told).in_time for told in ((1, (1, 6)), (6, (1, 6)), (1, (6, 6))))
    assert few == before < many
    assert many == 1.0
    behind = [*at_once(59.9, 6), Arrival(60.1, 100, 1), Arrival(190.0, 100, 1)]
    assert play(behind, 1, (1, 1)).in_time < play(behind, 6, (1, 1)).in_time


def test_the_figures_of_a_way() -> None:
    way = Way((2, 3, 1, 5), 0.98765)
    assert tables.row("so", way, (2, 2, 3, 2)) == (
        "so", "2.75", "+0.50", "1.50", "50 %", "25 %", "2", "1.22", "0.988"
    )  # fmt: skip
    assert tables.row("so", Way((3,), 1.0), (1,))[6] == "0", "too many is not too few"


def test_bars_are_a_step_for_each_node_as_far_as_there_are_steps() -> None:
    assert tables.picture((1, 8), (2, 0)).splitlines() == ["needed   ▂▁  0 to 2", "forecast ▁█  1 to 8"]
    assert tables.picture((1, 16), (8, 4)).splitlines() == ["needed   ▄▂  4 to 8", "forecast ▁█  1 to 16"]


def azure(folder: Path, rows: Sequence[tuple[float, int]]) -> None:
    """A trace of prompts that come at some time and have so many tokens."""
    lines = "".join(f"{at_s},{tokens},1\n" for at_s, tokens in rows)
    (folder / "AzureLLMInferenceTrace_conv.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{lines}")


def test_a_tiny_measurement_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    befores: list[int] = []

    def watched(arriving: list[Arrival], before: int, told: Sequence[int]) -> Played:
        befores.append(before)
        return play(arriving, before, told)

    monkeypatch.setattr("bench.forecast.__main__.play", watched)
    bursts = [(at_s, 10_000) for at_s in (630, 750) for _ in range(8)]
    azure(tmp_path, [*((at_s, 100) for at_s in range(0, 1000, 5)), *bursts])
    results = tmp_path / "results.md"
    results.write_text(f"# Results\n{BEGIN}\nold\n{END}\nThe end.\n")
    named = ["--traces", str(tmp_path), "--case", "azure"]
    done = CliRunner().invoke(main, [*named, "--minutes", "14", "--markdown", str(results)])
    assert done.exit_code == 0, done.output
    written = results.read_text()
    assert written.startswith(f"# Results\n{BEGIN}\n**azure: 3 minutes, 0.2 requests/s**\n")
    assert written.endswith(f"{END}\nThe end.\n")
    assert "old" not in written
    assert all(f"\n| {name} |" in written for name in NAMES)
    assert "\nneeded   ▄▁▄  1 to 4\nforecast " in written
    assert "\n| need of the minute before | 2.00 | -1.00 | 1.00 |" in written
    assert "\n| hindsight | 3.00 | +0.00 | 0.00 | 100 % | 0 % | 0 | 1.00 |" in written
    assert set(befores) == {4}


def test_what_is_too_short_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    azure(tmp_path, [(0, 10), (FIRST * WINDOW_S + 1, 10)])
    results = tmp_path / "results.md"
    done = CliRunner().invoke(main, ["--traces", str(tmp_path), "--case", "azure", "--markdown", str(results)])
    assert done.exit_code == 0, done.output
    assert results.read_text() == f"{BEGIN}\n**azure: too short**\n{END}\n"


def test_a_trace_that_cannot_be_read_and_a_document_without_marks_are_told(tmp_path: Path) -> None:
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text("what\n")
    told = CliRunner().invoke(main, ["--traces", str(tmp_path), "--case", "azure"])
    assert told.exit_code == 1
    assert "✗" in told.output
    results = tmp_path / "results.md"
    results.write_text("<!-- simulated --><!-- /simulated -->")
    told = CliRunner().invoke(main, ["--markdown", str(results)])
    assert told.exit_code == 1
    assert "wanted <!-- forecast --> and then" in " ".join(told.output.split())
    assert results.read_text() == "<!-- simulated --><!-- /simulated -->"
