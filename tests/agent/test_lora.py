"""LoRA adapters: how many more fit, which are loaded, and which may be."""

import json

import pytest

from extproc.agent.engines import models, vllm
from extproc.agent.engines.exposition import samples_of
from extproc.agent.engines.lora import LORA, slots_free_of, with_loadable
from extproc.agent.engines.reading import NOT_TOLD
from extproc.core.snapshot import ADAPTERS_MAX, MODELS_MAX, ServedModel
from tests.agent.pages import vllm_adapters, vllm_lines


def free(lines: str) -> int | str:
    return slots_free_of(samples_of(lines, {LORA}))


@pytest.mark.parametrize(("slots", "running", "wanted"), [
    (4, "", 4), (4, "a", 3), (4, "a,b,c", 1), (4, "a, b", 2), (4, "a,a,", 3), (2, "a,b", 0), (1, "a,b,c", 0),
    (0, "", 0), (ADAPTERS_MAX, "", ADAPTERS_MAX),
])  # fmt: skip
def test_what_runs_takes_a_slot_each(slots: int, running: str, wanted: int) -> None:
    assert free(vllm_adapters(slots, running, waiting="x,y")) == wanted


def test_the_latest_of_all_combinations_counts() -> None:
    page = vllm_adapters(4, "a", at_s=1.80000001e9) + vllm_adapters(4, "a,b,c", at_s=1.80000002e9)
    assert free(page + vllm_adapters(4, "", at_s=1.8e9) + vllm_adapters(9, "", at_s="NaN")) == 1


@pytest.mark.parametrize("line", [
    vllm_adapters("", ""), vllm_adapters("None", ""), vllm_adapters(-1, ""), vllm_adapters("²", ""),
    vllm_adapters(ADAPTERS_MAX + 1, ""), vllm_adapters("9" * 5000, ""), vllm_adapters(4, "", at_s="NaN"),
    vllm_adapters(4, "", at_s="+Inf"), vllm_adapters(4, "").replace("running_", "gone_"),
])  # fmt: skip
def test_what_is_senseless_is_a_reason(line: str) -> None:
    reason = free(line)
    assert isinstance(reason, str)
    assert LORA in reason


def test_an_engine_without_adapters_has_nothing_to_tell() -> None:
    assert free("") == NOT_TOLD


def test_the_slots_are_part_of_a_look() -> None:
    reading, _ = vllm.read(vllm_lines() + vllm_adapters(4, "a"), None)
    assert reading.adapter_slots_free == 3


def listed(*entries: dict[str, object]) -> tuple[ServedModel, ...] | str:
    return models.models_of(json.dumps({"object": "list", "data": entries}))


@pytest.mark.parametrize(
    ("adapter", "tokens"),
    [
        ({"parent": "base", "max_model_len": None}, 8192),
        ({"parent": "base"}, 8192),
        ({"parent": "base", "max_model_len": 4096}, 4096),
        ({"parent": "unknown"}, None),
        ({"parent": "lora"}, None),
        ({"parent": None}, None),
        ({"parent": {"id": "base"}}, None),
        ({}, None),
    ],
)
def test_an_adapter_has_its_parents_context_length_unless_it_has_its_own(
    adapter: dict[str, object], tokens: int | None
) -> None:
    models = listed({"id": "lora"} | adapter, {"id": "base", "max_model_len": 8192, "parent": None})
    assert models == (
        ServedModel("lora", context_length_tokens=tokens),
        ServedModel("base", context_length_tokens=8192),
    )


def model(name: str, tokens: int | None = None, *, loaded: bool = True) -> ServedModel:
    return ServedModel(name, context_length_tokens=tokens, loaded=loaded)


@pytest.mark.parametrize(
    ("lists", "loadable", "wanted"),
    [
        ([], ["a"], []),
        ([model("base", 8)], [], [model("base", 8)]),
        ([model("base", 8)], ["a", "b"], [model("base", 8), model("a", 8, loaded=False), model("b", 8, loaded=False)]),
        ([model("base", 8), model("a", 8)], ["a"], [model("base", 8), model("a", 8)]),
        ([model("base", 8), model("c")], ["a"], [model("base", 8), model("c"), model("a", 8, loaded=False)]),
        ([model("x", 8), model("y", 9)], ["a"], [model("x", 8), model("y", 9), model("a", loaded=False)]),
        ([model("base")], ["a"], [model("base"), model("a", loaded=False)]),
    ],
)
def test_what_may_be_loaded_comes_after_what_is_listed(
    lists: list[ServedModel], loadable: list[str], wanted: list[ServedModel]
) -> None:
    assert with_loadable(tuple(lists), loadable) == (tuple(wanted), None)


def test_adapters_beyond_what_a_snapshot_holds_are_left_out_with_a_reason() -> None:
    base = tuple(model(f"base-{number}") for number in range(MODELS_MAX - 1))
    models, fault = with_loadable(base, ["a", "b"])
    assert (len(models), models[-1]) == (MODELS_MAX, model("a", loaded=False))
    assert fault is not None
    assert str(MODELS_MAX) in fault
