import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from extproc import planning
from extproc.cli.common import Commands
from extproc.cli.planning import plan as command
from extproc.core.policy import RoutingPolicy
from extproc.sim.demand import Demand
from extproc.sim.fleetsize import Window
from extproc.sim.nodesneeded import Objective, Tried
from tests.planned import faults_of, understood

DURATION = "seconds, as 500ms, 2s, 0.1m or 0.5"
SMALL = ("plan", "--trace", "generated:conv", "--requests", "40", "--jobs", "1")


@click.group(cls=Commands)
def main() -> None:
    """The one command."""


main.add_command(command)


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, (*SMALL, *arguments))


def test_options_become_a_sizing() -> None:
    changes = {"ttft": "500ms", "tpot": "0.05", "share": 1.0, "window": "1m", "lead_in": "0", "delay": "0", "seeds": 3}
    asked = understood(rate_factor=2.0, for_="10s", nodes_max=9, snapshot_interval="2s", **changes)
    sizing = asked.sizing
    assert asked.strategy == "least-added-delay"
    assert sizing.objective == Objective(ttft_s=0.5, tpot_s=0.05, share=1.0)
    assert sizing.demand == Demand(trace="generated:conv", requests=100, for_s=10.0, rate_factor=2.0)
    assert (sizing.span.requests, sizing.span.trace_requests) == (100, None)
    assert (sizing.nodes_max, sizing.seeds, sizing.window_s, sizing.lead_in_s) == (9, 3, 60.0, 0.0)
    assert (sizing.setup.snapshot_interval_s, sizing.setup.delay_s) == (2.0, 0.0)
    assert sizing.setup.policy == RoutingPolicy()


def test_a_strategy_brings_settings_and_a_file_the_others(tmp_path: Path) -> None:
    policy, profile = tmp_path / "policy.yaml", tmp_path / "engine.yaml"
    policy.write_text("first_token_weight: 7\n")
    profile.write_text("{step_s: 1, prefill_token_s: 0, decoding_sequence_s: 0, kv_token_s: 0, attention_pair_s: 0}")
    asked = understood(strategy="lmetric:crowding_weight=1", policy=policy, profile=profile)
    found = asked.sizing.setup.policy
    assert found is not None
    assert (found.strategy, found.crowding_weight, found.first_token_weight) == ("lmetric", 1, 7)
    assert asked.sizing.setup.cost.step_s == 1
    assert understood(strategy="reference").sizing.setup.policy is None


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"ttft": "0"}, [f"--ttft: wanted 0.001 to 3600 {DURATION}, got 0"]),
        ({"ttft": "3601s"}, [f"--ttft: wanted 0.001 to 3600 {DURATION}, got 3601s"]),
        ({"tpot": "soon"}, [f"--tpot: wanted 0.001 to 3600 {DURATION}, got soon"]),
        ({"share": 0.0}, ["--share: wanted over 0, up to 1, as 0.95, got 0"]),
        ({"share": 1.01}, ["--share: wanted over 0, up to 1, as 0.95, got 1.01"]),
        ({"share": float("nan")}, ["--share: wanted over 0, up to 1, as 0.95, got nan"]),
        ({"rate_factor": 0.0}, ["--rate-factor: wanted 0.001 to 1000, got 0"]),
        ({"rate_factor": 1000.5}, ["--rate-factor: wanted 0.001 to 1000, got 1000.5"]),
        ({"rate_factor": float("nan")}, ["--rate-factor: wanted 0.001 to 1000, got nan"]),
        ({"for_": "0.9"}, [f"--for: wanted 1 to 86400 {DURATION}, got 0.9"]),
        ({"window": "999ms"}, [f"--window: wanted 1 to 86400 {DURATION}, got 999ms"]),
        ({"lead_in": "3601"}, [f"--lead-in: wanted 0 to 3600 {DURATION}, got 3601"]),
        ({"snapshot_interval": "61s"}, [f"--snapshot-interval: wanted 0.01 to 60 {DURATION}, got 61s"]),
        ({"delay": "11s"}, [f"--delay: wanted 0 to 10 {DURATION}, got 11s"]),
        ({"strategy": "lmetric,random"}, ["--strategy: wanted one strategy, got lmetric,random"]),
        ({"strategy": ""}, ["--strategy: wanted a name before, between and behind the commas, got ''"]),
        ({"shape": {"speed": 0.0}}, ["--speed: wanted greater than or equal to 0.01, got 0.0"]),
        ({"shape": {"speed": float("inf")}}, ["--speed: wanted a finite number, got inf"]),
        ({"shape": {"kv_blocks": 63}}, ["--kv-blocks: wanted greater than or equal to 64, got 63"]),
        ({"shape": {"step_tokens_max": 255}}, ["--step-tokens-max: wanted at least sequences_max, got 255"]),
        (
            {"shape": {"kv_blocks": 1_000_000}, "nodes_max": 33},
            ["--nodes-max: wanted at most 32000000 KV blocks of all nodes together, got 33 nodes of 1000000"],
        ),
    ],
)
def test_what_an_option_should_be_is_told(changes: dict[str, Any], faults: list[str]) -> None:
    assert faults_of(**changes) == faults


@pytest.mark.parametrize(
    "changes",
    [
        {"ttft": "1ms", "tpot": "1ms", "share": 1e-9, "rate_factor": 0.001, "window": "1s", "requests": 2},
        {"ttft": "3600s", "tpot": "60m", "share": 1.0, "rate_factor": 1000.0, "window": "86400s", "for_": "1"},
        {"shape": {"kv_blocks": 1_000_000}, "nodes_max": 32, "lead_in": "60m", "for_": "1440m"},
    ],
)
def test_the_edges_are_taken(changes: dict[str, Any]) -> None:
    assert faults_of(**changes) == []


def test_more_windows_than_the_most_are_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,1\n9999,1,1\n")
    assert faults_of(trace=str(trace), window="1s") == []
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,1\n10000,1,1\n")
    assert faults_of(trace=str(trace), window="1s") == [
        "--window: wanted at most 10000 windows in 10000 s, as 2s makes, got 1 s"
    ]
    assert faults_of(trace=str(trace), window="2s") == []


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    policy, none = tmp_path / "policy.yaml", tmp_path / "none.yaml"
    policy.write_text("[]")
    told = faults_of(
        trace="generated:what", node=none, policy=policy, profile=none, ttft="x", share=2.0, window="x", delay="x"
    )
    assert [one.split(":")[0] for one in told] == [
        "--trace",
        "--ttft",
        "--share",
        str(none),
        str(policy),
        str(none),
        "--delay",
        "--window",
    ]


@pytest.mark.parametrize("option", ["--trace", "--node", "--policy", "--profile"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = plan(option, str(tmp_path / "pipe"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Not a regular file" in result.stderr


def test_the_command_prints_json_with_every_figure() -> None:
    result = plan("--json", "--window", "1s", "--seeds", "2", "--rate-factor", "0.5", "--nodes-max", "8")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert list(told) == [
        "nodes",
        "tried",
        "enough_below",
        "slow_alone",
        "cut",
        "windows",
        "nodes_mean",
        "settings",
    ]
    assert told["tried"][0].keys() == set(Tried.__struct_fields__)
    assert told["windows"][0].keys() == set(Window.__struct_fields__)
    assert sum(one["requests"] for one in told["windows"]) == 40
    at = next(one for one in told["tried"] if one["nodes"] == told["nodes"])
    assert at["enough"] is True
    assert (at["requests"], at["share"] >= 0.95) == (80, True)
    settings = told["settings"]
    assert settings.keys() >= {"trace", "requests", "span_s", "rate_per_s", "trace_requests", "rate_factor", "for_s"}
    assert settings.keys() >= {"ttft_s", "tpot_s", "share", "node", "strategy", "nodes_max", "seeds", "window_s"}
    assert settings["node"] == {
        "speed": 1.0,
        "kv_blocks": 25_000,
        "sequences_max": 256,
        "step_tokens_max": 8192,
        "context_length_tokens": 131_072,
    }
    assert (settings["rate_factor"], settings["seeds"], settings["cost"]["step_s"]) == (0.5, 2, 0.0188)


def test_without_windows_the_json_has_none() -> None:
    told = json.loads(plan("--json").stdout)
    assert (told["windows"], told["nodes_mean"]) == (None, None)


def test_the_command_prints_a_table_and_the_answer() -> None:
    result = plan("--window", "1s")
    assert result.exit_code == 0, result.output
    assert "up to 64 nodes for 40 requests in" in result.stderr
    for word in ("TTFT", "refused", "would be enough: ", "95 % are wanted.", "from s", "█", "Window by window"):
        assert word in result.stdout


def test_not_enough_is_said_and_is_status_1() -> None:
    result = plan("--ttft", "1ms", "--nodes-max", "2")
    assert result.exit_code == 1
    assert (
        "Not even 2 nodes would be enough: 0.00 % of 40 requests had their first token within 0.001 s" in result.stdout
    )
    assert "40 requests of 40 would not have it in time on an idle node either" in result.stdout
    told = plan("--ttft", "1ms", "--nodes-max", "2", "--json")
    assert (told.exit_code, json.loads(told.stdout)["nodes"]) == (1, None)


def test_faults_end_the_command_before_anything_is_simulated() -> None:
    result = plan("--share", "0", "--strategy", "fastest")
    assert (result.exit_code, result.stdout) == (1, "")
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["--share", "--strategy"]


def test_what_was_cut_is_said() -> None:
    assert "were longer than a node's context, and were cut to it" in plan("--kv-blocks", "65").stderr


def test_how_much_of_a_trace_is_taken_is_announced(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{at_s},9,1\n" for at_s in range(100)))
    asked = understood(trace=str(trace), requests=61, seeds=2)
    assert planning.announced(asked, 4) == (
        "up to 64 nodes for the first 61 of 100 requests in 60 s, 1 per second, 2 runs of each number, 4 at a time"
    )
    one = understood(trace=str(trace), requests=1)
    assert planning.announced(one, 4) == "up to 64 nodes for the first 1 of 100 requests in 0 s, 4 at a time"
    assert planning.announced(understood(requests=1), 1) == "up to 64 nodes for 1 request in 0 s, 1 at a time"
