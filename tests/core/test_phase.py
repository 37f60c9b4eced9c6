import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.capacity import blocks_needed
from extproc.core.learned import LearnedRates
from extproc.core.phase import classify
from extproc.core.request import Endpoint, Phase
from extproc.core.settings import ExpectedRates
from tests.core.fleet import request, snapshot

RATES = ExpectedRates(prefill_tokens_per_s=1000, decode_s_per_token=0.01, output_tokens=100)


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
    assert classify(request(tokens=tokens, output_tokens_max=output, endpoint=endpoint), RATES) is phase


@given(tokens=st.integers(0, 10**6), more=st.integers(0, 10**6), output=st.integers(0, 10**4))
def test_a_longer_prompt_never_turns_prefill_heavy_into_decode(tokens: int, more: int, output: int) -> None:
    if classify(request(tokens=tokens, output_tokens_max=output), RATES) is Phase.PREFILL_HEAVY:
        assert classify(request(tokens=tokens + more, output_tokens_max=output), RATES) is Phase.PREFILL_HEAVY


def test_the_decode_time_is_learned_from_what_nodes_report() -> None:
    learned = LearnedRates(RATES)
    assert learned.rates.decode_s_per_token == 0.01
    learned.observe(snapshot("a", decode_ms_per_token=20.0))
    learned.observe(snapshot("b", decode_ms_per_token=40.0))
    learned.observe(snapshot("b", decode_ms_per_token=None))
    assert learned.rates.decode_s_per_token == pytest.approx(0.03)
    learned.forget("b")
    assert learned.rates.decode_s_per_token == pytest.approx(0.02)
    learned.forget("a")
    assert learned.rates == RATES


@given(tokens=st.integers(0, 10**7), size=st.integers(1, 1024))
def test_blocks_hold_the_tokens_and_none_is_empty(tokens: int, size: int) -> None:
    blocks = blocks_needed(tokens, size)
    assert blocks is not None
    assert blocks * size >= tokens > (blocks - 1) * size


def test_blocks_of_an_unknown_size_are_unknown() -> None:
    assert blocks_needed(10, None) is None
