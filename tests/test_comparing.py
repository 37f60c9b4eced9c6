import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from extproc import cli, comparing
from extproc.core.settings import BalancerSettings
from extproc.sim.compared import Row
from extproc.sim.comparison import Comparison
from extproc.strategytext import SETTINGS

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
NAME = "a name of 1 to 64 letters, digits, dots, dashes and underscores that begins with a letter or digit"
DURATION = "seconds, as 500ms, 2s, 0.1m or 0.5"
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
        ({"nodes": "0"}, ["--nodes: wanted 1 to 1024 nodes, got '0'"]),
        (
            {"loads": "0.0099"},
            ["--load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 0.0099"],
        ),
        ({"loads": "0"}, ["--load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 0"]),
        ({"loads": "nan"}, ["--load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got nan"]),
        ({"loads": "inf"}, ["--load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got inf"]),
        ({"loads": "0.6,"}, ["--load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 0.6,"]),
        ({"loads": "1,1.0"}, ["--load: wanted different shares of the capacity, 0.01 to 100, as 0.6,0.75, got 1,1.0"]),
        ({"snapshot_interval": "0"}, [f"--snapshot-interval: wanted 0.01 to 60 {DURATION}, got 0"]),
        ({"snapshot_interval": "61s"}, [f"--snapshot-interval: wanted 0.01 to 60 {DURATION}, got 61s"]),
        ({"snapshot_interval": "1h"}, [f"--snapshot-interval: wanted 0.01 to 60 {DURATION}, got 1h"]),
        ({"delay": "11s"}, [f"--delay: wanted 0 to 10 {DURATION}, got 11s"]),
        ({"delay": "1h"}, [f"--delay: wanted 0 to 10 {DURATION}, got 1h"]),
        ({"delay": ""}, [f"--delay: wanted 0 to 10 {DURATION}, got "]),
        ({"strategies": "lmetric,random,random"}, ["--strategy: wanted each of them once, got random twice"]),
        ({"strategies": ","}, ["--strategy: wanted a name before, between and behind the commas, got ','"]),
        ({"strategies": ""}, ["--strategy: wanted a name before, between and behind the commas, got ''"]),
        ({"strategies": ",".join(map(str, range(101)))}, ["--strategy: wanted at most 100, got 101"]),
        (
            {"strategies": "least-added-delay:foo=1"},
            [
                f"--strategy least-added-delay: wanted a setting of {', '.join(SETTINGS)}, got 'foo'",
            ],
        ),
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
        "--load",
        str(tmp_path / "none.yaml"),
        "--delay",
        "--trace",
    ]


def test_kinds_of_requests_get_classes_of_the_configuration(tmp_path: Path) -> None:
    found = comparing.understood(**OPTIONS, priorities="code=batch,chat=interactive")
    assert isinstance(found, Comparison)
    assert found.priorities == {"code": "batch", "chat": "interactive"}
    assert found.settings == BalancerSettings()
    config = tmp_path / "extproc.yaml"
    config.write_text(
        "{classes: [{name: fast}, {name: slow, queue_ms_max: 7}], default_class: fast, rates: {output_tokens: 9}}"
    )
    found = comparing.understood(**OPTIONS, priorities="code=slow", config=config)
    assert isinstance(found, Comparison)
    assert type(found.settings) is BalancerSettings
    assert found.settings.classes["slow"].queue_ms_max == 7
    assert (found.settings.default_class, found.settings.rates.output_tokens) == ("fast", 9)
    without = comparing.understood(**OPTIONS)
    assert isinstance(without, Comparison)
    assert without.priorities == {}


@pytest.mark.parametrize(
    "priorities",
    ["", "code", "code=", "=batch", "code=unheard-of", "document=batch", "code=batch,code=batch", "code=batch,"],
)
def test_priorities_name_kinds_of_the_trace_and_known_classes(priorities: str) -> None:
    wanted = "kind=class, each kind once, of kinds chat, code and classes interactive, standard, batch"
    assert faults_of(priorities=priorities) == [f"--priorities: wanted {wanted}, got {priorities!r}"]


@pytest.mark.parametrize(
    ("trace", "kind"),
    [("generated:agents", "agent"), ("generated:heavy", "document"), ("azure.csv", "azure"), ("mooncake", "mooncake")],
)
def test_a_trace_has_kinds_of_its_own(tmp_path: Path, trace: str, kind: str) -> None:
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,5\n")
    (tmp_path / "mooncake").write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n')
    file = trace if ":" in trace else str(tmp_path / trace)
    assert faults_of(trace=file, priorities=f"{kind}=batch") == []
    (told,) = faults_of(trace=file, priorities="code=batch")
    assert f"of kinds {'chat, ' if kind == 'document' else ''}{kind} and classes" in told


def test_faults_of_a_configuration_are_told_with_its_file_and_no_class_is_looked_up_in_it(tmp_path: Path) -> None:
    config = tmp_path / "extproc.yaml"
    config.write_text("classes: {a b: {}}")
    told = faults_of(config=config, priorities="code=batch")
    assert told
    assert all(one.startswith(f"{config}: ") for one in told)


def test_the_command_prints_figures_of_classes() -> None:
    options = ("--strategy", "random:ttft_s=2", "--load", "1.1", "--priorities", "chat=batch")
    result = simulate(*options)
    assert result.exit_code == 0, result.output
    assert "batch" in result.stdout
    told = json.loads(simulate(*options, "--json").stdout)
    assert told["rows"][0]["classes"]["batch"]["requests"] == 40
    assert told["settings"]["priorities"] == {"chat": "batch"}
    assert told["settings"]["classes"]["batch"]["queue_ms_max"] == 30_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("limits: 3", "policy.yaml: limits: wanted a mapping"),
        ("{", ":1:2: wanted YAML"),
        (
            "strategy: lmetric",
            "policy.yaml: strategy: wanted none here, since --strategy says which are compared, got ",
        ),
    ],
)
def test_a_policy_file_with_a_fault_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    (told,) = faults_of(policy=policy)
    assert wanted in told


def test_the_command_prints_json() -> None:
    result = simulate("--json", "--strategy", "round-robin,least-added-delay", "--load", "0.5,0.9", "--routers", "2")
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


def test_faults_of_several_files_say_in_which_they_stand(tmp_path: Path) -> None:
    fleet, profile = tmp_path / "fleet.yaml", tmp_path / "engine.yaml"
    fleet.write_text("nodes: [{name: a b}]")
    profile.write_text("[]")
    assert faults_of(nodes=str(fleet), profile=profile, strategies="lmetric:first_token_weight=-1") == [
        f"{fleet}: nodes.0.name: wanted {NAME}, got 'a b'",
        "--strategy lmetric: first_token_weight: wanted greater than or equal to 0, got '-1'",
        f"{profile}: (top): wanted a mapping, got []",
    ]


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
