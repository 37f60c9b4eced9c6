from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.settings import Fault
from extproc.sim.enginesettings import EngineSettings
from extproc.sim.fleetplan import (
    KV_BLOCKS_TOTAL_MAX,
    NODES_MAX,
    PLANS,
    TIME_S_MAX,
    FailureKind,
    FleetFile,
    FleetPlan,
    NodeFailure,
    NodeGroup,
    PlannedNode,
    even,
    parse,
    plan,
    read,
    unequal,
)


def whole(outcome: FleetPlan | list[Fault]) -> FleetPlan:
    assert isinstance(outcome, FleetPlan), [str(fault) for fault in outcome]
    return outcome


def faults(outcome: FleetPlan | list[Fault]) -> list[str]:
    assert isinstance(outcome, list)
    return [str(fault) for fault in outcome]


def node(**fields: Any) -> PlannedNode:
    [planned] = whole(parse({"nodes": [fields]})).nodes
    return planned


def refused(**fields: Any) -> str:
    [told] = faults(parse({"nodes": [fields]}))
    return told


def test_a_fleet_file_becomes_its_nodes_in_order(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        """
        nodes:
          - {name: old, count: 2, speed: 0.5, kv_blocks: 12500}
          - sequences_max: 16
            step_tokens_max: 2048
            faults: [{kind: slow, at_s: 60, for_s: 20, factor: 5}, {kind: hang, at_s: 10, for_s: 1.5}]
          - {joins_at_s: 300, leaves_at_s: 400, ready_after_s: 40}
        """
    )
    old = EngineSettings(speed=0.5, kv_blocks=12_500)
    hang = NodeFailure(kind=FailureKind.HANG, at_s=10, for_s=1.5)
    slow = NodeFailure(kind=FailureKind.SLOW, at_s=60, for_s=20, factor=5)
    assert whole(read(path)).nodes == (
        PlannedNode(name="old-1", engine=old),
        PlannedNode(name="old-2", engine=old),
        PlannedNode(name="node-3", engine=EngineSettings(sequences_max=16, step_tokens_max=2048), faults=(hang, slow)),
        PlannedNode(name="node-4", engine=EngineSettings(), joins_at_s=300, leaves_at_s=400, ready_after_s=40),
    )


def test_the_example_in_the_modules_docstring_is_sound(tmp_path: Path) -> None:
    from extproc.sim import fleetplan

    assert fleetplan.__doc__ is not None
    path = tmp_path / "fleet.yaml"
    path.write_text(fleetplan.__doc__.split("\n\n")[2])
    assert len(whole(read(path)).nodes) == 9


def test_what_is_left_out_is_a_default_node() -> None:
    assert node() == PlannedNode(name="node-1", engine=EngineSettings())


def test_a_node_alone_keeps_its_name() -> None:
    assert node(name="a").name == "a"
    assert [one.name for one in whole(parse({"nodes": [{"name": "a", "count": 2}]})).nodes] == ["a-1", "a-2"]


@pytest.mark.parametrize(
    ("fleet", "nodes"), [("1", 1), ("8", 8), (str(NODES_MAX), NODES_MAX), ("even", 8), ("even:3", 3)]
)
def test_a_number_is_so_many_default_nodes(fleet: str, nodes: int) -> None:
    planned = whole(plan(fleet))
    assert [one.name for one in planned.nodes] == [f"node-{place}" for place in range(1, nodes + 1)]
    assert {one.engine for one in planned.nodes} == {EngineSettings()}
    assert planned == even(nodes)


@pytest.mark.parametrize(("fleet", "nodes"), [("unequal", 8), ("unequal:4", 4), ("unequal:1024", 1024)])
def test_one_in_four_is_slow_and_one_in_four_small(fleet: str, nodes: int) -> None:
    planned = whole(plan(fleet))
    assert len(planned.nodes) == nodes
    assert planned == unequal(nodes)
    assert sum(one.engine.speed == 1 / 3 for one in planned.nodes) == nodes / 4
    assert sum(one.engine.kv_blocks == 12_500 for one in planned.nodes) == nodes / 4
    assert sum(one.engine == EngineSettings() for one in planned.nodes) == nodes / 2


@pytest.mark.parametrize(
    ("fleet", "told"),
    [
        ("0", "--nodes: wanted 1 to 1024 nodes, got '0'"),
        ("1025", "--nodes: wanted 1 to 1024 nodes, got '1025'"),
        ("9" * 5000, "--nodes: wanted 1 to 1024 nodes, got '999"),
        ("even:0", "--nodes: wanted 1 to 1024 nodes, got 'even:0'"),
        ("even:x", "--nodes: wanted 1 to 1024 nodes, got 'even:x'"),
        ("unequal:3", "--nodes: wanted 4 to 1024 nodes, got 'unequal:3'"),
        ("unequal:-8", "--nodes: wanted 4 to 1024 nodes, got 'unequal:-8'"),
        ("unequal:1025", "--nodes: wanted 4 to 1024 nodes, got 'unequal:1025'"),
        ("-8", "-8: wanted a readable file, got No such file or directory"),
        ("٨", "٨: wanted a readable file"),
        ("8.0", "8.0: wanted a readable file"),
        ("", ".: wanted a readable file, got Is a directory"),
    ],
)
def test_a_number_or_name_that_is_no_fleet_is_a_fault(fleet: str, told: str) -> None:
    [line] = faults(plan(fleet))
    assert line.startswith(told)
    assert len(line) < 150


def test_a_path_is_a_fleet_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text('{"nodes": [{"count": 3}]}')
    assert whole(plan(str(path))) == even(3)
    path.write_text("nodes: [{count: 3}")
    assert ": wanted YAML, got expected" in faults(plan(str(path)))[0]


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        (None, "(top): wanted a mapping, got None"),
        ([], "(top): wanted a mapping, got []"),
        ({}, "nodes: wanted a value, got nothing"),
        ({"nodes": []}, "nodes: wanted 1 to 1024 nodes, counts included, got []"),
        ({"nodes": {}}, "nodes: wanted a list of nodes, got {}"),
        ({"nodes": [{"faults": 3}]}, "nodes.0.faults: wanted a list of faults, got 3"),
        ({"nodes": [{}], "node": 1}, "node: wanted a known key, got 1"),
        ({"nodes": [3]}, "nodes.0: wanted a mapping, got 3"),
        ({"nodes": [{"sped": 2}]}, "nodes.0.sped: wanted a known key, got 2"),
        ({"nodes": [{"speed": "2"}]}, "nodes.0.speed: wanted a valid number, got '2'"),
        ({"nodes": [{"speed": True}]}, "nodes.0.speed: wanted a valid number, got True"),
        ({"nodes": [{"speed": float("nan")}]}, "nodes.0.speed: wanted a finite number, got nan"),
        ({"nodes": [{"speed": float("inf")}]}, "nodes.0.speed: wanted a finite number, got inf"),
        ({"nodes": [{"count": 1.5}]}, "nodes.0.count: wanted a valid integer, got 1.5"),
        ({"nodes": [{"name": ""}]}, "nodes.0.name: wanted a name of 1 to 64 letters, digits, dots"),
        ({"nodes": [{"name": "a\n"}]}, "nodes.0.name: wanted a name of 1 to 64 letters, digits, dots"),
        ({"nodes": [{"name": 3}]}, "nodes.0.name: wanted a name of 1 to 64 letters, digits, dots"),
        ({"nodes": [{"name": "a b"}]}, "nodes.0.name: wanted a name of 1 to 64 letters, digits, dots"),
        ({"nodes": [{"name": "a" * 65}]}, "nodes.0.name: wanted a name of 1 to 64 letters, digits, dots"),
        ({"nodes": [{"name": "a"}, {}, {"name": "a"}]}, "nodes: wanted a name of its own for each node, not 'a' twice"),
        ({"nodes": [{"name": "node-2"}, {}]}, "nodes: wanted a name of its own for each node, not 'node-2' twice"),
        ({"nodes": [{"count": 1024}, {}]}, "nodes: wanted 1 to 1024 nodes, counts included, got"),
        ({"nodes": [{}] * 1025}, "nodes: wanted at most 1024 nodes, got"),
        ({"nodes": [{"count": 33, "kv_blocks": 1_000_000}]}, "nodes: wanted at most 32000000 kv_blocks of all nodes"),
        ({"nodes": [{"step_tokens_max": 255}]}, "nodes.0.step_tokens_max: wanted at least sequences_max, got 255"),
        ({"nodes": [{"leaves_at_s": 0}]}, "nodes.0.leaves_at_s: wanted later than joins_at_s, got 0"),
        ({"nodes": [{"joins_at_s": 5, "leaves_at_s": 5}]}, "nodes.0.leaves_at_s: wanted later than joins_at_s, got 5"),
        ({"nodes": [{"faults": [{}]}]}, "nodes.0.faults.0.kind: wanted a value, got nothing"),
    ],
)
def test_a_fault_names_its_path_what_was_wanted_and_what_it_got(mapping: object, told: str) -> None:
    assert any(line.startswith(told) for line in faults(parse(mapping))), faults(parse(mapping))


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ({"kind": "crash"}, ".kind: wanted 'error', 'hang' or 'slow', got 'crash'"),
        ({"kind": "slow"}, ": wanted a factor with slow, and none with error and hang, got {'kind': 'slow'"),
        ({"factor": 2}, ": wanted a factor with slow, and none with error and hang, got {'kind': 'error'"),
        ({"for_s": 0}, ".for_s: wanted greater than 0, got 0"),
        ({"at_s": -1}, ".at_s: wanted greater than or equal to 0, got -1"),
        ({"until_s": 3}, ".until_s: wanted a known key, got 3"),
    ],
)
def test_a_failure_is_whole_or_refused(failure: dict[str, Any], told: str) -> None:
    sound = {"kind": "error", "at_s": 1, "for_s": 2}
    assert node(faults=[sound]).faults[0].kind is FailureKind.ERROR
    assert refused(faults=[sound | failure]).startswith(f"nodes.0.faults.0{told}")


def test_failures_of_a_node_follow_each_other() -> None:
    first, second = {"kind": "error", "at_s": 10, "for_s": 5}, {"kind": "hang", "at_s": 15, "for_s": 1}
    assert [failure.at_s for failure in node(faults=[second, first]).faults] == [10, 15]
    overlapping = [second, first | {"for_s": 5.001}]
    assert refused(faults=overlapping).startswith("nodes.0.faults: wanted faults that do not overlap, got ")


@pytest.mark.parametrize(
    ("name", "least", "most", "step"),
    [
        ("count", 1, NODES_MAX, 1),
        ("speed", 0.01, 100, 0.001),
        ("kv_blocks", 64, 1_000_000, 1),
        ("sequences_max", 1, 8192, 1),
        ("step_tokens_max", 256, 1_000_000, 1),
        ("joins_at_s", 0, TIME_S_MAX, 0.001),
        ("leaves_at_s", 0.001, TIME_S_MAX, 0.001),
        ("ready_after_s", 0, TIME_S_MAX, 0.001),
    ],
)
def test_nodes_hold_at_their_edges(name: str, least: float, most: float, step: float) -> None:
    whole(parse({"nodes": [{name: least}]}))
    whole(parse({"nodes": [{name: most}]}))
    assert refused(**{name: least - step})
    assert refused(**{name: most + step})


def test_the_most_sequences_need_as_many_tokens_in_a_step() -> None:
    most = {"sequences_max": 65_536, "step_tokens_max": 65_536}
    assert node(**most).engine.sequences_max == 65_536
    assert refused(**most | {"sequences_max": 65_537}).startswith("nodes.0.sequences_max")


@pytest.mark.parametrize(
    ("name", "most", "step"), [("at_s", TIME_S_MAX, 1), ("for_s", TIME_S_MAX, 1), ("factor", 1000, 1)]
)
def test_failures_hold_at_their_edges(name: str, most: float, step: float) -> None:
    sound = {"kind": "slow", "at_s": 0, "for_s": 0.001, "factor": 1.001}
    node(faults=[sound])
    node(faults=[sound | {name: most}])
    assert refused(faults=[sound | {name: most + step}])
    assert refused(faults=[sound | {"factor": 1}])


def test_there_are_at_most_100_failures_of_a_node() -> None:
    some = [{"kind": "error", "at_s": second, "for_s": 1} for second in range(101)]
    assert len(node(faults=some[:100]).faults) == 100
    assert refused(faults=some).startswith("nodes.0.faults: wanted at most 100 faults, got")


def test_the_kv_blocks_of_a_fleet_hold_at_their_edge() -> None:
    exact = {"count": KV_BLOCKS_TOTAL_MAX // 1_000_000, "kv_blocks": 1_000_000}
    whole(parse({"nodes": [exact]}))
    assert faults(parse({"nodes": [exact, {"kv_blocks": 64}]}))
    assert len(even(NODES_MAX).nodes) == NODES_MAX


def test_a_node_with_few_blocks_has_a_context_that_they_hold() -> None:
    assert node(kv_blocks=64).engine.context_length_tokens == 63 * 16
    assert node(kv_blocks=8192).engine.context_length_tokens == 8191 * 16
    assert node(kv_blocks=8193).engine.context_length_tokens == node().engine.context_length_tokens == 131_072


def test_every_ready_plan_can_be_made_of_its_least_and_most_nodes() -> None:
    for name, (nodes_min, planned) in PLANS.items():
        for nodes in (nodes_min, NODES_MAX):
            assert len(planned(nodes).nodes) == len(whole(plan(f"{name}:{nodes}")).nodes) == nodes


keys = st.sampled_from(sorted(FleetFile.model_fields | NodeGroup.model_fields | NodeFailure.model_fields))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.sampled_from(["slow"])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5), max_leaves=20
)


@given(anything | st.fixed_dictionaries({"nodes": st.lists(st.dictionaries(keys, anything, max_size=5), max_size=4)}))
def test_no_mapping_makes_parse_raise(mapping: object) -> None:
    outcome = parse(mapping)
    assert isinstance(outcome, FleetPlan) or (outcome and all(isinstance(fault, Fault) for fault in outcome))
