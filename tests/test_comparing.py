from pathlib import Path
from typing import Any

import pytest

from extproc import comparing
from extproc.core.settings import BalancerSettings
from extproc.sim.compared import Compared
from extproc.sim.comparison import Comparison
from extproc.sim.exchange import Exchanging
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
    "kv_events": True,
    "lost_share": 0.5,
}
NAME = "a name of 1 to 64 letters, digits, dots, dashes and underscores that begins with a letter or digit"
DURATION = "seconds, as 500ms, 2s, 0.1m or 0.5"


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


def test_faults_of_several_files_say_in_which_they_stand(tmp_path: Path) -> None:
    fleet, profile = tmp_path / "fleet.yaml", tmp_path / "engine.yaml"
    fleet.write_text("nodes: [{name: a b}]")
    profile.write_text("[]")
    assert faults_of(nodes=str(fleet), profile=profile, strategies="lmetric:first_token_weight=-1") == [
        f"{fleet}: nodes.0.name: wanted {NAME}, got 'a b'",
        "--strategy lmetric: first_token_weight: wanted greater than or equal to 0, got '-1'",
        f"{profile}: (top): wanted a mapping, got []",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", None),
        ("2s", Exchanging(interval_s=2.0)),
        ("50ms", Exchanging(interval_s=0.05)),
        ("10", Exchanging(interval_s=10.0)),
        ("prefixes", Exchanging(interval_s=0.5, placements=True)),
    ],
)
def test_routers_tell_each_other_what_the_option_says(text: str, expected: Exchanging | None) -> None:
    found = comparing.understood(**OPTIONS, exchange=text)
    assert isinstance(found, Comparison)
    assert found.exchange == expected
    settings = comparing.as_json(found, Compared(rows=(), seeds=1, capacity_per_s=1.0, cut=0))["settings"]
    told = expected and {"interval_s": expected.interval_s, "placements": expected.placements}
    assert settings["exchange"] == told


@pytest.mark.parametrize("text", ["", "0.049s", "10.1s", "prefix", "nan", "0.5s,2s"])
def test_what_exchange_should_be_is_told(text: str) -> None:
    wanted = "none, prefixes, or 0.05 to 10 seconds, as 500ms, 2s or 0.5"
    assert faults_of(exchange=text) == [f"--exchange: wanted {wanted}, got {text!r}"]
