"""The comparison of strategies without and with KV events: its runs and its table."""

import pytest

from bench.strategies import running, tables
from bench.strategies.cases import SETTINGS, TOLD, Scope, of_kv_events, told_or_not
from bench.strategies.running import NODES, Figures
from bench.strategies.spread import Spread, change
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.measures import Measures
from extproc.sim.simulation import Run, Setup, simulate
from extproc.sim.traces import Arrival

AGENTS = Scope((SETTINGS["agents"],), seeds=1, requests=60)


def test_each_run_has_the_kv_events_and_the_caches_of_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    setups: list[Setup] = []
    measured: list[FleetPlan] = []

    def simulated(arrivals: list[Arrival], setup: Setup) -> Run:
        setups.append(setup)
        return simulate(arrivals, setup)

    def capacity(_: list[Arrival], fleet: FleetPlan, __: object) -> float:
        measured.append(fleet)
        return 90.0

    monkeypatch.setattr(running, "simulate", simulated)
    monkeypatch.setattr(running, "capacity_per_s", capacity)
    where = (3, 4001, 0.9, 0.5)
    cases = [case for kv_events in (False, True) for case in told_or_not(AGENTS, where, kv_events=kv_events)]
    estimated, exact = running.together(cases, None)
    assert [(one.routers, one.snapshot_interval_s, one.kv_events) for one in setups] == [
        (3, 0.5, False),
        (3, 0.5, True),
    ]
    for fleet in (*measured, *(one.fleet for one in setups)):
        assert [node.engine.kv_blocks for node in fleet.nodes] == [4001] * NODES
    assert len(measured) == 1
    assert estimated.measures != exact.measures


def test_a_change_is_of_the_same_seeds() -> None:
    before, after = Spread((0.1, 0.5, 0.3)), Spread((0.2, 0.6, 0.5))
    assert change(before, after, 2) == "0.30 → 0.43 (.10)"


def test_a_row_has_what_was_without_and_with_them() -> None:
    found = {
        case: Figures(
            case,
            10.0,
            Measures(
                requests=100,
                refused=0,
                failed=0,
                ngood=0.9 if case.kv_events else 0.6,
                ttft_p50_s=0.1,
                ttft_p90_s=case.load,
                ttft_p99_s=0.3,
                tpot_p99_s=0.05,
                slowdown=1.0,
                preemptions=0,
                prefix_hit_share=0.0,
                node_shares={},
            ),
        )
        for case in of_kv_events(AGENTS)
    }
    (grid,) = tables.of_kv_events(AGENTS, found)
    assert len(grid.rows) == len(TOLD)
    assert grid.rows[2] == ["3 routers, 60 % load", "0.600 → 0.900 (0)", "0.60 → 0.60 (0)"]
    assert grid.rows[-1][0] == "3 routers, 75 % load, each 0.2 s"
