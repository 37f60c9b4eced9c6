"""The numbers by which routers and agents speak of prefix caches; whoever changes them changes the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from extproc.kvchain import BLOCK_TOKENS, TOKEN_BLOCKS_MAX, numbers_of, root_of, token_blocks_of

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=100)


@given(IDS, st.text(max_size=5))
def test_a_number_stands_for_all_tokens_up_to_its_end(ids: list[int], adapter: str) -> None:
    number = xxh3_64_intdigest(adapter.encode())
    expected = []
    for end in range(16, len(ids) + 1, 16):
        own = b"".join(one.to_bytes(4, "little") for one in ids[end - 16 : end])
        number = xxh3_64_intdigest(own, seed=number)
        expected.append(number)
    assert token_blocks_of(ids, adapter) == tuple(expected)


def test_the_chain_is_the_same_everywhere_and_always() -> None:
    assert (BLOCK_TOKENS, root_of(), root_of("sql")) == (16, 0x2D06800538D394C2, xxh3_64_intdigest(b"sql"))
    assert token_blocks_of(range(40)) == (1216237950307000921, 15748635035956623099)


def test_it_goes_on_behind_any_block() -> None:
    whole = token_blocks_of(range(64))
    data = b"".join(one.to_bytes(4, "little") for one in range(32, 70))
    assert numbers_of(data, whole[1]) == whole[2:]
    assert numbers_of(b"", 7) == numbers_of(data[:63], 7) == ()


def test_it_ends_at_a_bound() -> None:
    assert len(token_blocks_of([1] * (TOKEN_BLOCKS_MAX + 2) * 16)) == TOKEN_BLOCKS_MAX


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_is_no_token_id_is_an_error(token: int) -> None:
    with pytest.raises(OverflowError):
        token_blocks_of([token] * 16)
