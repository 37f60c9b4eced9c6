"""The measurement of several routers: its requests, its tables, what it costs, and a tiny one for real."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bench.engines.model import served
from bench.routers import fed, requests, runs, tables, traffic
from bench.routers.__main__ import BEGIN, END, main
from bench.routers.fed import Spent
from bench.routers.runs import Run
from bench.routers.system import ARMS, Arm
from bench.routers.truth import Beliefs
from extproc.sim import workloads
from extproc.sim.measures import measure
from tests.natsserver import nats_server

AGENTS = workloads.generated("agents", 40, 3)
SERVED = served(requests.written(AGENTS[:1])[0], "node-1", 1.0, 2.0)


def some_run(arm: Arm, turn: int, ngood: float) -> Run:
    figures = replace(measure([SERVED], 0, ["node-1"]), ngood=ngood, ttft_p90_s=1.0)
    cores = dict.fromkeys(("client", "envoy", "serve", "agents", "nats", "engines", "machine"), 0.1)
    return Run(
        workload="agents",
        arm=arm.name,
        round=turn,
        rate_per_s=9.0,
        speed=1.0,
        measures=figures,
        cached_share=0.5,
        failures={},
        late_p99_s=0.001,
        cores=cores,
        mean_held=4.0,
        mean_error=0.5,
        mean_bias=-0.25,
        rest_s=0.5,
        left=[],
    )


def test_requests_are_as_long_as_the_arrivals_and_share_what_these_share() -> None:
    found = requests.written(AGENTS)
    assert [one.at_s for one in found] == [one.at_s for one in AGENTS]
    for one, arrival in zip(found, AGENTS, strict=True):
        assert one.output_tokens == arrival.output_tokens
        assert arrival.prompt_tokens <= one.prompt_tokens <= arrival.prompt_tokens + 20 * len(json.loads(one.body))
    alike = next(
        (one, other)
        for place, one in enumerate(AGENTS)
        for other in AGENTS[place + 1 :]
        if one.session != other.session and one.prompt_blocks[0] == other.prompt_blocks[0]
    )
    shared = sum(a == b for a, b in zip(*(one.prompt_blocks for one in alike), strict=False))
    keys = [found[AGENTS.index(one)].computed.block_keys for one in alike]
    engine_blocks = sum(a == b for a, b in zip(*keys, strict=False))
    assert shared * 4 - 4 <= engine_blocks <= shared * 4 + 4, "a block of 64 tokens is four of an engine's"


def test_a_later_turn_begins_with_the_turn_before_and_its_answer() -> None:
    arrivals = workloads.generated("agents", 600, 3)
    turns: dict[str, list[int]] = {}
    for number, one in enumerate(arrivals):
        turns.setdefault(one.session, []).append(number)
    first, second = next(numbers for numbers in turns.values() if len(numbers) > 1)[:2]
    before, after = (
        one for number, one in enumerate(requests.written(arrivals[: second + 1])) if number in (first, second)
    )
    messages = json.loads(after.body)["messages"]
    assert messages[:-2] == json.loads(before.body)["messages"]
    assert list(after.computed.block_keys[: len(before.computed.block_keys)]) == list(before.computed.block_keys)


def test_points_are_lost_against_one_router_with_the_same_requests() -> None:
    one, _, three, *_ = ARMS
    found = [some_run(one, 0, 0.9), some_run(one, 1, 0.8), some_run(three, 0, 0.88), some_run(three, 1, 0.79)]
    grid = tables.of_clients("agents", found)
    assert [row[:3] for row in grid.rows] == [
        (one.name, "0.850 (0.800–0.900)", ""),
        (three.name, "0.835 (0.790–0.880)", "1.5 (1.0–2.0)"),
    ]
    assert "lose at most 3 points of ngood: met, 1.5" in grid.notes[0]
    worse = [some_run(one, 0, 0.9), some_run(three, 0, 0.86)]
    assert "missed, 4.0" in tables.of_clients("agents", worse).notes[0]
    for table in (tables.of_truth, tables.of_machine):
        grid = table("agents", found)
        assert {len(row) for row in grid.rows} == {len(grid.columns)}


def test_beliefs_are_held_against_the_truth_of_each_node_by_each_router() -> None:
    beliefs = Beliefs()
    beliefs.add({"a": 4, "b": 0}, [{"a": 6, "b": 0}, {"a": 3}])
    assert (sorted(beliefs.differences), beliefs.mean_error, beliefs.mean_held) == ([-1, 0, 2], 1.0, 2.0)


def test_figures_that_were_kept_become_tables_beside_what_the_simulator_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "capacity_per_s", lambda *_: 60.0)
    figures, results = tmp_path / "figures.json", tmp_path / "results.md"
    figures.write_bytes(msgspec.json.encode([some_run(ARMS[0], 0, 0.5)]))
    results.write_text(f"# Results\n{BEGIN}\nold\n{END}\nThe end.\n")
    arguments = ["--workload", "agents", "--rounds", "0", "--keep", str(figures), "--markdown", str(results)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    written = results.read_text()
    assert written.startswith(f"# Results\n{BEGIN}\nOn ")
    assert written.endswith(f"{END}\nThe end.\n")
    assert written.count("| 1 router |") == 3
    row = next(line for line in written.splitlines() if line.startswith("| 1 router | 0.500 |"))
    assert 0 <= float(row.split("|")[4]) <= 1


def test_a_document_without_marks_is_told_before_anything_runs(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    results.write_text("old")
    for command in (main, traffic.main):
        assert CliRunner().invoke(command, ["--markdown", str(results)]).exit_code == 1
    assert results.read_text() == "old"


async def test_a_tiny_run_for_real_loses_nothing_and_leaves_no_count(tmp_path: Path) -> None:
    asked = requests.written(workloads.generated("agents", 12, 3)[:12])
    told: list[int] = []
    found = await runs.run("agents", Arm(2, exchange=True), 0, asked, tmp_path, 1.0, told.append, nodes=2)
    assert found.failures == {}
    assert found.left == []
    assert (found.measures.requests, found.measures.failed, found.measures.refused) == (12, 0, 0)
    assert set(found.measures.node_shares) == {"node-1", "node-2"}
    assert max(told) == 12
    assert found.arm == "2 routers, with exchange"
    assert found.cores["serve"] > 0 <= found.cores["nats"]


async def test_what_a_router_tells_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fed, "WARM_UP_S", 0.5)
    async with nats_server() as nats:
        found = await fed.run(nats.url, fed.Arm.ALL, place=0, routers=1, rate=40, nodes=5, seconds=1.5)
    assert found.requests_per_s == pytest.approx(40, rel=0.5)
    assert all(found.sent_per_s[channel] > 0 for channel in fed.CHANNELS)
    assert all(found.sent_bytes_per_s[channel] > 0 for channel in fed.CHANNELS)
    assert found.sent_per_s["placements"] <= 3
    assert 0 < found.cores < 2


def test_what_the_exchange_costs_is_a_difference_to_routers_that_ran_at_the_same_time() -> None:
    def spent(cores: float) -> Spent:
        zero = dict.fromkeys(fed.CHANNELS, 1000.0)
        return Spent(cores, 333.0, zero, zero, zero, zero)

    found = {
        fed.Arm.LOADS: [(spent(0.22), spent(0.2)), (spent(0.31), spent(0.3))],
        fed.Arm.ALL: [(spent(0.23), spent(0.2)), (spent(0.36), spent(0.3))],
    }
    grid = traffic.of_cores(found)
    assert [row[3] for row in grid.rows] == ["0.015 (0.010–0.020)", "0.045 (0.030–0.060)"]
    assert grid.notes == ["aim: the exchange takes at most 5% of a core: met, 0.045 (0.030–0.060)"]
    assert traffic.of_traffic(found).rows[-1][:3] == ("all", "3000.0", "3.0"), "the three kinds together"
