from pathlib import Path
from typing import Any

import pytest

from extproc.sim.enginesettings import EngineSettings
from extproc.sim.fleetplan import even
from tests.planned import faults_of, understood

THERE = "a node that is there all the time, without joins_at_s, leaves_at_s, ready_after_s, faults"
KNOWN = "a model whose shape is known, as Llama-3.3-70B; for others there is --kv-blocks"


def test_nodes_are_those_of_serves_default_engine_unless_options_or_a_file_say_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{name: old, count: 3, speed: 0.5, kv_blocks: 5000}, {faults: [], joins_at_s: 7}]")

    def engine(**changes: Any) -> EngineSettings:
        return understood(**changes).sizing.setup.fleet.nodes[0].engine

    assert engine() == even(1).nodes[0].engine
    assert (engine(node=file).speed, engine(node=file).kv_blocks) == (0.5, 5000)
    changed = engine(node=file, shape={"speed": None, "kv_blocks": 1001, "sequences_max": 8, "step_tokens_max": 512})
    assert (changed.speed, changed.kv_blocks, changed.sequences_max, changed.step_tokens_max) == (0.5, 1001, 8, 512)
    assert changed.context_length_tokens == 16_000


@pytest.mark.parametrize(
    ("memory", "model", "fp8", "blocks"),
    [
        ("40GiB", "Llama-3.1-8B", False, 40 * 2**30 // (2 * 32 * 8 * 128 * 2 * 16)),
        ("40GiB", "meta-llama/Llama-3.3-70B-Instruct", False, 8192),
        ("40GiB", "meta-llama/Llama-3.3-70B-Instruct", True, 16_384),
    ],
)
def test_kv_blocks_follow_from_memory_and_the_models_shape(memory: str, model: str, fp8: bool, blocks: int) -> None:
    asked = understood(kv_memory=memory, model=model, kv_fp8=fp8)
    assert asked.sizing.setup.fleet.nodes[0].engine.kv_blocks == blocks


def test_with_windowed_layers_blocks_follow_from_the_traces_mean_request(tmp_path: Path) -> None:
    def blocks(prompt_tokens: int) -> int:
        trace = tmp_path / "trace.csv"
        trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n0,{prompt_tokens - 1},1\n")
        asked = understood(trace=str(trace), kv_memory="10GiB", model="gpt-oss-20b")
        return asked.sizing.setup.fleet.nodes[0].engine.kv_blocks

    # Half of the layers keep 128 tokens only, so of long sequences next to twice as many tokens fit.
    assert blocks(128) == 10 * 2**30 // (2 * 24 * 8 * 64 * 2 * 16)
    assert blocks(128_000) == pytest.approx(2 * blocks(128), rel=0.01)


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"kv_memory": "40GiB"}, ["--kv-memory: wanted --model beside it, got none"]),
        ({"model": "Llama-3.3-70B"}, ["--model: wanted --kv-memory beside it, got none"]),
        ({"kv_fp8": True}, ["--kv-fp8: wanted --kv-memory beside it, got none"]),
        (
            {"kv_memory": "40GiB", "model": "Llama-3.3-70B", "shape": {"kv_blocks": 100}},
            ["--kv-blocks: wanted either it or --kv-memory, got both"],
        ),
        (
            {"kv_memory": "40GB", "model": "nobody/knows"},
            [
                "--kv-memory: wanted bytes as a number, or with KiB, MiB or GiB as in 32MiB, got '40GB'",
                f"--model: wanted {KNOWN}, got 'nobody/knows'",
            ],
        ),
        (
            {"kv_memory": "100MiB", "model": "Llama-3.3-70B"},
            ["--kv-memory, in blocks of 16 tokens: wanted greater than or equal to 64, got 20"],
        ),
        (
            {"kv_memory": "999999999GiB", "model": "Llama-3.3-70B"},
            ["--kv-memory, in blocks of 16 tokens: wanted less than or equal to 1000000, got 204799999795"],
        ),
    ],
)
def test_memory_that_says_no_kv_cache_is_refused(changes: dict[str, Any], faults: list[str]) -> None:
    assert faults_of(**changes) == faults


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nodes: [{speed: -1}]", "fleet.yaml: nodes.0.speed: wanted greater than or equal to 0.01, got -1"),
        ("nodes: [{}, {speed: -1}]", "fleet.yaml: nodes.1.speed: wanted greater than or equal to 0.01, got -1"),
        ("nodes: []", "fleet.yaml: nodes: wanted 1 to 1024 nodes, counts included, got "),
        ("[]", "fleet.yaml: (top): wanted a mapping, got []"),
        ("nodes: [{joins_at_s: 3}]", f"fleet.yaml: nodes.0: wanted {THERE}, got joins_at_s"),
        (
            "nodes: [{leaves_at_s: 3, ready_after_s: 1, faults: [{kind: hang, at_s: 1, for_s: 1}]}]",
            f"fleet.yaml: nodes.0: wanted {THERE}, got leaves_at_s, ready_after_s, faults",
        ),
    ],
)
def test_a_fleet_file_that_says_no_node_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    (told,) = faults_of(node=file)
    assert told.removeprefix(f"{tmp_path}/").startswith(fault)
