"""`extproc simulate` as it is run: what it prints, and what it ends with."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc import cli
from extproc.sim.compared import Row

pytestmark = pytest.mark.usefixtures("capacities_kept")

SMALL = ("simulate", "--trace", "generated:conv", "--nodes", "2", "--requests", "40", "--jobs", "1")


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, (*SMALL, *arguments))


def test_the_command_prints_figures_of_classes() -> None:
    options = ("--strategy", "random:ttft_s=2", "--load", "1.1", "--priorities", "chat=batch")
    result = simulate(*options)
    assert result.exit_code == 0, result.output
    assert "batch" in result.stdout
    told = json.loads(simulate(*options, "--json").stdout)
    assert told["rows"][0]["classes"]["batch"]["requests"] == 40
    assert told["settings"]["priorities"] == {"chat": "batch"}
    assert told["settings"]["classes"]["batch"]["queue_ms_max"] == 30_000


def test_the_command_prints_json() -> None:
    loads = ("--load", "0.5,0.9", "--routers", "2", "--kv-events")
    result = simulate("--json", "--strategy", "round-robin,least-added-delay", *loads)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told.keys() == {"rows", "capacity_per_s", "cut", "missed", "settings"}
    assert [(row["load"], row["strategy"]) for row in told["rows"]] == [
        (load, strategy) for load in (0.5, 0.9) for strategy in ("round-robin", "least-added-delay")
    ]
    assert told["rows"][0].keys() == set(Row.__struct_fields__)
    assert told["rows"][0]["per_node"].keys() == {"node-1", "node-2"}
    assert told["settings"]["strategies"] == ["round-robin", "least-added-delay"]
    assert told["settings"]["routers"] == 2
    assert told["settings"]["kv_events"] is True
    assert told["settings"]["cost"]["step_s"] == 0.0188


def test_the_same_command_prints_the_same() -> None:
    assert simulate("--seeds", "2", "--json").stdout == simulate("--seeds", "2", "--json").stdout


@pytest.mark.parametrize("option", ["--trace", "--nodes", "--policy", "--profile", "--config"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, option: str, kind: str) -> None:
    file = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file = Path("/dev/zero")
    result = simulate(option, str(file))
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    said = {"pipe": "Not a regular file", "device": "Not a regular file", "folder": "irectory"}[kind]
    assert str(file) in result.stderr
    assert said in result.stderr


def test_what_the_run_ended_before_is_said_and_in_the_json(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("nodes: [{}, {faults: [{kind: hang, at_s: 5000, for_s: 20}]}, {name: late, joins_at_s: 6000}]")
    shown = simulate("--nodes", str(fleet), "--strategy", "random").stdout
    assert "node-2: hang at 5000 s, in 1 of 1 runs (the last answer was over by" in shown
    assert "late: join at 6000 s, in 1 of 1 runs (the last request came by" in shown
    told = json.loads(simulate("--nodes", str(fleet), "--strategy", "random", "--json").stdout)
    assert [(one["node"], one["event"], one["at_s"], one["runs"]) for one in told["missed"]] == [
        ("node-2", "hang", 5000, 1),
        ("late", "join", 6000, 1),
    ]


@pytest.mark.parametrize(("requests", "said"), [(1, "1 request"), (3, "3 requests"), (39, "39 requests"), (40, None)])
def test_a_trace_that_is_repeated_is_said_before_and_below_and_in_the_json(
    tmp_path: Path, requests: int, said: str | None
) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{place},100,5\n" for place in range(requests))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    options = ("--trace", str(trace), "--strategy", "random")
    result = simulate(*options)
    assert result.exit_code == 0, result.output
    line = f"the trace has {said}; repeated to make 40"
    assert (result.stderr.splitlines()[0] == line) is (said is not None)
    assert (result.stdout.splitlines()[-1] == line) is (said is not None)
    settings = json.loads(simulate(*options, "--json").stdout)["settings"]
    assert (settings["trace_requests"], settings["trace_repeated"]) == (requests, said is not None)


def test_what_is_generated_is_never_repeated() -> None:
    result = simulate("--strategy", "random", "--json")
    assert "repeated" not in result.stderr
    settings = json.loads(result.stdout)["settings"]
    assert (settings["trace_requests"], settings["trace_repeated"]) == (None, False)


def test_the_command_prints_a_table_with_every_strategy() -> None:
    result = simulate("--strategy", "round-robin,least-added-delay:first_token_weight=4")
    assert result.exit_code == 0, result.output
    for word in ("load 0.6", "ngood", "TTFT", "slowdown", "round-robin", "least-added-delay:first_token_weight=4"):
        assert word in result.stdout


def test_what_was_cut_is_said(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("nodes: [{kv_blocks: 65}]")
    result = simulate("--nodes", str(fleet), "--strategy", "random")
    assert "requests were longer than a node's context, and were cut to it" in result.stderr


def test_faults_end_the_command_before_anything_is_simulated() -> None:
    result = simulate("--nodes", "0", "--strategy", "fastest")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["--nodes", "--strategy"]


def test_what_routers_tell_each_other_changes_the_figures_and_stands_in_the_json() -> None:
    options = ("--strategy", "least-added-delay", "--routers", "3", "--load", "0.9", "--json")
    none, told = (json.loads(simulate(*options, "--exchange", text).stdout) for text in ("none", "prefixes"))
    assert (none["settings"]["exchange"], none["settings"]["routers"]) == (None, 3)
    assert told["settings"]["exchange"] == {"interval_s": 0.5, "placements": True}
    assert none["rows"] != told["rows"]
    refused = simulate(*options, "--exchange", "often")
    assert refused.exit_code == 1
    assert "--exchange: wanted none, prefixes, or " in refused.output
