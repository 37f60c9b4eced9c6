import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from extproc import cli, comparing, plotting
from extproc.sim.comparison import Compared, Comparison, Row

OPTIONS: dict[str, Any] = {
    "trace": "generated:mix",
    "nodes": "2",
    "strategies": "round-robin,reference",
    "loads": "0.6,1.2",
    "snapshot_interval": "500ms",
    "delay": "0",
    "policy": None,
    "profile": None,
    "requests": 100,
    "seeds": 3,
    "routers": 2,
    "first_tokens": False,
    "lost_share": 0.5,
}
SMALL = ("simulate", "--trace", "generated:conv", "--nodes", "2", "--requests", "40", "--jobs", "1")


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, (*SMALL, *arguments))


def faults_of(**changes: Any) -> list[str]:
    found = comparing.understood(**(OPTIONS | changes))
    return [str(one) for one in found] if isinstance(found, list) else []


def test_options_become_a_comparison() -> None:
    found = comparing.understood(**OPTIONS)
    assert isinstance(found, Comparison)
    assert [one.name for one in found.contenders] == ["round-robin", "reference"]
    assert (found.loads, found.snapshot_interval_s, found.delay_s) == ((0.6, 1.2), 0.5, 0.0)
    assert (found.requests, found.seeds, found.routers, found.first_tokens, found.lost_share) == (100, 3, 2, False, 0.5)
    assert len(found.fleet.nodes) == 2


def test_files_give_the_policy_the_engine_and_the_fleet(tmp_path: Path) -> None:
    policy, profile, nodes = (tmp_path / name for name in ("policy.yaml", "engine.yaml", "fleet.yaml"))
    policy.write_text("first_token_weight: 7\n")
    nodes.write_text("nodes: [{count: 3}]")
    profile.write_text("{step_s: 1, prefill_token_s: 0, decoding_sequence_s: 0, kv_token_s: 0, attention_pair_s: 0}")
    changes = {
        "policy": policy,
        "profile": profile,
        "nodes": str(nodes),
        "strategies": "lmetric:first_token_weight=1,lmetric",
    }
    found = comparing.understood(**(OPTIONS | changes))
    assert isinstance(found, Comparison)
    assert [one.policy and one.policy.first_token_weight for one in found.contenders] == [1, 7]
    assert (found.cost.step_s, len(found.fleet.nodes)) == (1, 3)


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"nodes": "0"}, ["nodes: wanted 1 to 1024 nodes, got '0'"]),
        ({"loads": "0.0099"}, ["load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 0.0099"]),
        ({"loads": "0"}, ["load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 0"]),
        ({"loads": "nan"}, ["load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got nan"]),
        ({"loads": "inf"}, ["load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got inf"]),
        ({"loads": "0.6,"}, ["load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 0.6,"]),
        ({"loads": "1,1.0"}, ["load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 1,1.0"]),
        ({"snapshot_interval": "0"}, ["snapshot-interval: wanted 0.01 to 60 s, got 0"]),
        ({"snapshot_interval": "61s"}, ["snapshot-interval: wanted 0.01 to 60 s, got 61s"]),
        (
            {"snapshot_interval": "1h"},
            ["snapshot-interval: wanted seconds as a number, or with ms, s or m as in 500ms, got 1h"],
        ),
        ({"delay": "11s"}, ["delay: wanted 0 to 10 s, got 11s"]),
        ({"strategies": "random,random"}, ["strategy: wanted at most 100 different ones, got random,random"]),
    ],
)
def test_what_an_option_should_be_is_told(changes: dict[str, Any], faults: list[str]) -> None:
    assert faults_of(**changes) == faults


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("[]")
    told = faults_of(
        trace="generated:what", nodes="none.yaml", loads="x", delay="x", policy=policy, profile=tmp_path / "none.yaml"
    )
    assert [one.split(":")[0] for one in told] == [
        "none.yaml",
        str(policy),
        "load",
        str(tmp_path / "none.yaml"),
        "delay",
        "trace",
    ]


@pytest.mark.parametrize(("text", "wanted"), [("limits: 3", "limits: wanted a mapping"), ("{", ":1:2: wanted YAML")])
def test_a_policy_file_with_a_fault_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    (told,) = faults_of(policy=policy)
    assert wanted in told


def test_the_command_prints_json() -> None:
    result = simulate("--json", "--strategy", "round-robin,least-added-delay", "--load", "0.5,0.9", "--routers", "2")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told.keys() == {"rows", "capacity_per_s", "cut", "settings"}
    assert [(row["load"], row["strategy"]) for row in told["rows"]] == [
        (load, strategy) for load in (0.5, 0.9) for strategy in ("round-robin", "least-added-delay")
    ]
    assert told["rows"][0].keys() == set(Row.__struct_fields__)
    assert told["rows"][0]["per_node"].keys() == {"node-1", "node-2"}
    assert told["settings"]["strategies"] == ["round-robin", "least-added-delay"]
    assert told["settings"]["routers"] == 2
    assert told["settings"]["cost"]["step_s"] == 0.0188


def test_the_same_command_prints_the_same() -> None:
    assert simulate("--seeds", "2", "--json").stdout == simulate("--seeds", "2", "--json").stdout


def test_the_command_prints_a_table_with_every_strategy() -> None:
    result = simulate("--strategy", "round-robin,least-added-delay:first_token_weight=4")
    assert result.exit_code == 0, result.output
    for word in ("load 0.6", "ngood", "TTFT p50", "slowdown", "round-robin", "least-added-delay:first_token_weight=4"):
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
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["nodes", "strategy"]


def row(strategy: str, load: float = 0.6, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "strategy": strategy,
        "load": load,
        "rate_per_s": 6.0,
        "ngood": 0.5,
        "ngood_spread": 0.1,
        "ttft_p50_s": 0.1,
        "ttft_p90_s": 1.0,
        "ttft_p99_s": 2.0,
        "tpot_p99_s": 0.05,
        "slowdown": 2.0,
        "preemptions": 1.0,
        "prefix_hits": 0.25,
        "refused": 0.0,
        "failed": 0.0,
        "per_node": {"a": 0.25, "b": 0.75},
        "ngood_vs_round_robin": 1.0,
        "ttft_p90_vs_round_robin": 1.0,
        "slowdown_vs_round_robin": 1.0,
    }
    return Row(**(values | changes))


def test_absent_figures_are_shown_as_absent_and_many_nodes_as_a_range() -> None:
    many = {f"node-{index}": index / 45 for index in range(10)}
    rows = (row("random", ttft_p50_s=None, slowdown_vs_round_robin=None, per_node=many), row("x" * 60))
    console = Console(width=200, record=True, file=sys.stderr)
    console.print(comparing.tables(Compared(rows, 10.0, 0)))
    shown = console.export_text()
    assert "–" in shown
    assert "0.0 to 20.0" in shown
    assert "25.0 75.0" in shown
    assert "x" * 60 in shown


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_comparison_is_drawn(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"picture{suffix}"
    rows = (
        row("random"),
        row("lmetric", ttft_p99_s=None),
        row("random", 0.9),
        row("lmetric", 0.9, slowdown=None, ttft_p90_s=None),
    )
    assert plotting.checked(file) is None
    plotting.draw(Compared(rows, 10.0, 0), "a title", file)
    if suffix == ".svg":
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    else:
        assert file.read_bytes().startswith(b"\x89PNG")
    again = tmp_path / f"again{suffix}"
    plotting.draw(Compared(rows, 10.0, 0), "a title", again)
    assert again.read_bytes() == file.read_bytes()


def test_the_command_draws(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    assert simulate("--plot", str(file), "--strategy", "random").exit_code == 0
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", ["picture.pdf", "picture", "none/picture.png"])
def test_where_nothing_can_be_drawn_is_said_before_the_work(tmp_path: Path, name: str) -> None:
    result = simulate("--plot", str(tmp_path / name))
    assert result.exit_code == 1
    assert result.stderr.startswith("plot: wanted a file")


def test_without_matplotlib_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    fault = plotting.checked(tmp_path / "picture.png")
    assert str(fault) == "plot: wanted matplotlib: pip install 'extproc[plot]', got no such module"
