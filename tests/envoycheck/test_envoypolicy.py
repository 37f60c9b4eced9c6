"""What `extproc check --policy` says: what `serve` would say of a route's policy."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc import cli
from extproc.core.policy import RoutingPolicy
from extproc.gateway.routepolicy import RoutePolicies


def check(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["check", *arguments])


def test_a_policy_is_shown_by_what_it_has_beyond_the_defaults() -> None:
    result = check("--policy", '{"strategy": "round-robin", "canary": "10", "limits": {"kv_usage_max": 0.5}}')
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["name", '"inline"'],
        ["strategy", '"round-robin"'],
        ["canary", "10.0"],
        ["limits.kv_usage_max", "0.5"],
        ["OK"],
    ]
    assert check("--policy", "default").stdout == "OK\n"


def test_machines_get_all_of_it() -> None:
    asked = '{"name": "a", "aliases": {"fast": {"small": 1}}}'
    policies = RoutePolicies({}, RoutingPolicy())
    read, fault = policies.of(asked)
    assert fault is None
    shown = json.loads(check("--policy", asked, "--json").stdout)
    assert RoutingPolicy.model_validate(shown) == read
    assert shown["name"] == "a"


def test_names_and_classes_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("policies: {mine: {canary: 5}}\nclasses: [{name: only}]\ndefault_class: only\n")
    assert check(str(file), "--policy", " mine ").stdout.splitlines()[1:] == [
        "canary                      5.0  (default: 100.0)",
        "OK",
    ]
    result = check(str(file), "--policy", '{"priority": "batch"}')
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "priority: wanted one of only, got 'batch'\n")
    file.write_text("drain_s: -1\n")
    assert check(str(file), "--policy", "default").stderr.startswith("drain_s: wanted ")


KEY_FAULT = "a: wanted a known key, got 1"


@pytest.mark.parametrize(
    ("asked", "faults"),
    [
        ("absent", ["--policy: wanted a policy of the configuration, or one as a JSON object, got 'absent'"]),
        ("", ["--policy: wanted a policy of the configuration, or one as a JSON object, got ''"]),
        ("{", ["--policy: wanted valid JSON, got '{'"]),
        ("x" * 20_000, ["--policy: wanted at most 16384 bytes (limits.policy_bytes_max), got 20000"]),
        (
            '{"canary": 200, "a": 1}',
            ["canary: wanted less than or equal to 100, got 200", "a: wanted a known key, got 1"],
        ),
    ],
)
def test_each_fault_is_a_line_or_an_object(asked: str, faults: list[str]) -> None:
    result = check("--policy", asked)
    assert (result.exit_code, result.stdout, result.stderr.splitlines()) == (1, "", faults)
    result = check("--policy", asked, "--json")
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [f"{one['path'] or '--policy'}: wanted {one['wanted']}, got {one['got']}" for one in rows] == faults
    assert {(one["file"], one["severity"]) for one in rows} == {("--policy", "fault")}


@pytest.mark.parametrize("arguments", [[], ["--policy", "default", "--envoy", "x"]])
def test_one_thing_is_checked_at_a_time(arguments: list[str]) -> None:
    assert check(*arguments).exit_code == 2
