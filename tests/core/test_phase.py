import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.capacity import blocks_needed
from extproc.core.phase import classify, expected_output_tokens
from extproc.core.request import Endpoint, Phase
from tests.core.fleet import request

PREFILL_TOKENS_PER_S = 1000.0
DECODE_S_PER_TOKEN = 0.01
MEAN_TOKENS = 100.0
"""Of answers: so 1000 prompt tokens take as long as one answer."""


def phase_of(tokens: int, output: int | None, endpoint: Endpoint = Endpoint.CHAT) -> Phase:
    asked = request(tokens=tokens, output_tokens_max=output, endpoint=endpoint)
    output_tokens = expected_output_tokens(asked, MEAN_TOKENS)
    return classify(tokens, output_tokens, PREFILL_TOKENS_PER_S, DECODE_S_PER_TOKEN)


@pytest.mark.parametrize(
    ("tokens", "output", "endpoint", "phase"),
    [
        (1000, None, Endpoint.CHAT, Phase.DECODE),
        (1001, None, Endpoint.CHAT, Phase.PREFILL_HEAVY),
        (101, 10, Endpoint.CHAT, Phase.PREFILL_HEAVY),
        (100, 10, Endpoint.COMPLETION, Phase.DECODE),
        (1001, 5000, Endpoint.CHAT, Phase.PREFILL_HEAVY),
        (1, None, Endpoint.EMBEDDING, Phase.PREFILL_HEAVY),
        (0, None, Endpoint.EMBEDDING, Phase.DECODE),
    ],
)
def test_the_longer_part_names_the_phase(tokens: int, output: int | None, endpoint: Endpoint, phase: Phase) -> None:
    assert phase_of(tokens, output, endpoint) is phase


@given(tokens=st.integers(0, 10**6), more=st.integers(0, 10**6), output=st.integers(0, 10**4))
def test_a_longer_prompt_never_turns_prefill_heavy_into_decode(tokens: int, more: int, output: int) -> None:
    if phase_of(tokens, output) is Phase.PREFILL_HEAVY:
        assert phase_of(tokens + more, output) is Phase.PREFILL_HEAVY


@pytest.mark.parametrize(
    ("mean", "allowed", "endpoint", "expected"),
    [
        (100.0, None, Endpoint.CHAT, 100),
        (100.6, None, Endpoint.COMPLETION, 101),
        (100.0, 10, Endpoint.CHAT, 10),
        (100.0, 5000, Endpoint.RESPONSE, 100),
        (100.0, 0, Endpoint.CHAT, 0),
        (100.0, None, Endpoint.EMBEDDING, 0),
    ],
)
def test_an_answer_is_as_long_as_its_models_mean_and_as_the_request_allows(
    mean: float, allowed: int | None, endpoint: Endpoint, expected: int
) -> None:
    assert expected_output_tokens(request(output_tokens_max=allowed, endpoint=endpoint), mean) == expected


def test_sequences_of_one_request_decode_side_by_side() -> None:
    assert expected_output_tokens(request(sequences=8), MEAN_TOKENS) == MEAN_TOKENS


@given(tokens=st.integers(0, 10**7), size=st.integers(1, 1024))
def test_blocks_hold_the_tokens_and_none_is_empty(tokens: int, size: int) -> None:
    blocks = blocks_needed(tokens, size)
    assert blocks is not None
    assert blocks * size >= tokens > (blocks - 1) * size


def test_blocks_of_an_unknown_size_are_unknown() -> None:
    assert blocks_needed(10, None) is None
