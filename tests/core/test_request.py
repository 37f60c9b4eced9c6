import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.fleet import request


@pytest.mark.parametrize(
    ("tokens", "blocks", "matched", "cached"),
    [
        (1050, 10, 0, 0),
        (1050, 10, 1, 100),
        (1050, 10, 10, 1000),  # half a block is left behind the last
        (640, 10, 10, 609),
        (0, 10, 10, 0),
        (100_000, 10, 10, 1280),  # a block of 256 bytes has 128 tokens at most: the rest stands behind the last block
        (100_000, 10, 3, 384),
    ],
)
def test_tokens_are_spread_evenly_over_the_blocks(tokens: int, blocks: int, matched: int, cached: int) -> None:
    assert request(tokens=tokens, prompt_blocks=tuple(range(blocks))).cached_tokens(matched) == cached


@given(tokens=st.integers(0, 10**7), blocks=st.integers(0, 3000), share=st.floats(0, 1))
def test_no_more_is_cached_than_there_is(tokens: int, blocks: int, share: float) -> None:
    one = request(tokens=tokens, prompt_blocks=tuple(range(blocks)))
    matched = int(share * blocks)
    assert 0 <= one.cached_tokens(matched) <= one.cached_tokens(blocks) <= tokens
