"""Tokens, blocks and bytes; work and nodes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.capacity import (
    DECODE_TOKENS,
    KV_USABLE,
    SEQUENCES_MAX,
    SPANS_S,
    Bursts,
    NodePower,
    RequestSize,
    answer_seconds,
    blocks_needed,
    bytes_per_token,
    grown,
    nodes_for,
    sequence_bytes,
    tokens_held,
    wait_allowed_s,
)
from extproc.core.modelshapes import MODEL_SHAPES, ModelShape, shape_of

KIB, GIB = 1024, 2**30


def shape(name: str) -> ModelShape:
    found = shape_of(name)
    assert found is not None, name
    return found


@pytest.mark.parametrize(
    ("tokens", "size", "blocks"), [(0, 16, 0), (1, 16, 1), (16, 16, 1), (17, 16, 2), (5, 1, 5), (5, None, None)]
)
def test_a_last_block_may_be_part_full(tokens: int, size: int | None, blocks: int | None) -> None:
    assert blocks_needed(tokens, size) == blocks


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("meta-llama/Meta-Llama-3-70B-Instruct", 320),
        ("meta-llama/Llama-3.3-70B-Instruct", 320),
        ("meta-llama/Llama-3.1-8B-Instruct", 128),
        ("Qwen/Qwen2-7B-Instruct", 56),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", 256),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 96),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 128),
        ("microsoft/phi-4", 200),
        ("deepseek-ai/DeepSeek-R1-0528", 68.625),  # 61 layers of 576 numbers
        ("openai/gpt-oss-120b", 36),  # 18 layers of 36 grow
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 320),
    ],
)
def test_bytes_per_token_follow_from_a_model_s_shape(name: str, kib: float) -> None:
    assert bytes_per_token(shape(name)) == kib * KIB


def test_an_8_bit_cache_takes_half() -> None:
    eight = ModelShape(layers=80, kv_heads=8, number_bytes=1.0)
    assert bytes_per_token(eight) == 160 * KIB


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-Next-80B-A3B", "meta-llama/Llama-3", "DeepSeek-R1-Distill-Qwen-1.5B", "phi-4-mini-instruct", "", "/"],
)
def test_a_model_that_is_like_a_known_one_in_name_only_is_not_known(name: str) -> None:
    assert shape_of(name) is None


@pytest.mark.parametrize("name", ["GPT_OSS_20B", "org/sub/gpt-oss-20b", "gpt-oss-20b-mxfp4"])
def test_how_a_name_is_spelt_does_not_matter(name: str) -> None:
    assert shape_of(name) == MODEL_SHAPES["gpt-oss-20b"]


def test_windowed_layers_grow_no_more_beyond_their_window() -> None:
    gemma = shape("google/gemma-3-27b-it")
    layer = 2 * 16 * 128 * 2
    assert sequence_bytes(gemma, 1024) == 62 * layer * 1024
    assert sequence_bytes(gemma, 1025) - sequence_bytes(gemma, 1024) == 10 * layer == bytes_per_token(gemma)


def test_memory_holds_more_tokens_of_long_sequences_where_layers_are_windowed() -> None:
    assert tokens_held(64 * GIB, shape("llama-3.3-70b"), 1000) == 64 * GIB // (320 * KIB)
    gemma = shape("gemma-3-27b")
    assert tokens_held(64 * GIB, gemma, 100_000) > 5 * tokens_held(64 * GIB, gemma, 1000)


@pytest.mark.parametrize("name", [name for name, one in MODEL_SHAPES.items() if one is not None])
def test_every_known_model_keeps_something_of_each_token(name: str) -> None:
    one = shape(name)
    assert 0 <= one.window_layers < one.layers
    assert bool(one.window_layers) == bool(one.window_tokens)
    assert 16 * KIB <= sequence_bytes(one, 1) <= 1024 * KIB


POWER = NodePower(10_000.0, 0.02, 100_000.0)


def test_an_answer_costs_its_tokens_and_its_share_of_the_steps() -> None:
    size = RequestSize(500, 900, 200)  # holds 1000 tokens on the average: 90 at once
    together = KV_USABLE * 100_000 / 1000
    assert answer_seconds(size, POWER) == pytest.approx(200 * (DECODE_TOKENS / 10_000 + 0.02 / together))


def test_where_memory_is_plenty_or_not_known_the_batch_s_bound_binds() -> None:
    size = RequestSize(10, 10, 10)
    bound = 10 * (DECODE_TOKENS / 10_000 + 0.02 / SEQUENCES_MAX)
    assert answer_seconds(size, POWER) == pytest.approx(bound)
    assert answer_seconds(size, NodePower(10_000.0, 0.02)) == pytest.approx(bound)


def test_a_cache_that_holds_not_even_one_sequence_decodes_one_at_a_time() -> None:
    assert answer_seconds(RequestSize(1, 1e6, 10), POWER) == pytest.approx(10 * (DECODE_TOKENS / 10_000 + 0.02))


def test_a_smaller_cache_needs_more_nodes_for_the_same_answers() -> None:
    size = RequestSize(4000, 4000, 500)
    costs = [answer_seconds(size, NodePower(10_000.0, 0.02, kv)) for kv in (10_000.0, 50_000.0, 400_000.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 2 * costs[-1]


def test_what_is_left_to_wait_is_the_objective_without_the_prompt_itself() -> None:
    assert wait_allowed_s(2.0, RequestSize(5000, 5000, 1), POWER) == pytest.approx(2.0 - 0.5 - 0.03)
    assert wait_allowed_s(2.0, RequestSize(90_000, 90_000, 1), POWER) == 0.5, "it cannot be in time anyway"


def test_a_steady_load_needs_itself_and_the_headroom() -> None:
    assert nodes_for(4.5, Bursts(), 1.9, 2.3, 0.1) == pytest.approx(5.0)
    assert nodes_for(4.5, Bursts([0.0] * 7, [4.5] * 7), 1.9, 2.3, 0.0) == pytest.approx(4.5)
    assert nodes_for(0.0, Bursts(), 1.9, 2.3, 0.1) == 0


def test_a_burst_counts_at_the_span_where_it_is_worst() -> None:
    bursts = Bursts([1.0, 2.0, 10.0, 10.0, 10.0, 10.0, 10.0], [100.0] * 7)
    assert nodes_for(1.0, bursts, 2.0, 2.0, 0.1) == pytest.approx((1.0 * 4 + 2.0 * 10) / (4 + 2.0))


def test_no_burst_is_expected_that_is_larger_than_what_ever_came() -> None:
    assert nodes_for(1.0, Bursts([10.0], [12.0]), 2.0, 2.0, 0.1) == pytest.approx(12 / 3)
    assert nodes_for(9.0, Bursts([10.0], [1.0]), 0.1, 2.0, 0.0) == 9, "but the mean is"


amounts = st.floats(0, 1000)
loads = st.tuples(amounts, st.lists(st.tuples(amounts, amounts), max_size=len(SPANS_S)))


def bursts_of(pairs: list[tuple[float, float]]) -> Bursts:
    return Bursts([one for one, _ in pairs], [other for _, other in pairs])


@given(loads, st.floats(1, 10), st.floats(0.01, 60), st.floats(0, 4), st.floats(0, 0.9))
def test_more_of_the_same_load_never_needs_fewer_nodes(
    load: tuple[float, list[tuple[float, float]]], factor: float, wait_s: float, fitting: float, headroom: float
) -> None:
    mean, bursts = load[0], bursts_of(load[1])
    needed = nodes_for(mean, bursts, wait_s, fitting, headroom)
    assert 0 <= needed < math.inf
    more = nodes_for(mean * factor, grown(bursts, factor), wait_s, fitting, headroom)
    assert more >= needed * (1 - 1e-12)


@given(loads, st.floats(0.01, 60), st.floats(1, 10))
def test_an_objective_that_is_easier_never_needs_more_nodes(
    load: tuple[float, list[tuple[float, float]]], wait_s: float, factor: float
) -> None:
    mean, bursts = load[0], bursts_of(load[1])
    assert nodes_for(mean, bursts, wait_s * factor, 2.0, 0.1) <= nodes_for(mean, bursts, wait_s, 2.0, 0.1)
