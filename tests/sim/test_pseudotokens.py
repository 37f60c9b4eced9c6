from hypothesis import given
from hypothesis import strategies as st

from extproc.sim import pseudotokens


def test_four_bytes_are_a_token_and_a_piece_is_whole_tokens() -> None:
    lengths = [len(pseudotokens.piece(text)) for text in ("", "a", "abcd", "abcde", "é", "日本")]
    assert lengths == [0, 4, 4, 8, 4, 8]
    assert pseudotokens.count(b"") == 1
    assert pseudotokens.count(b"abcdefgh") == 2


def test_a_token_id_is_a_token() -> None:
    assert pseudotokens.count(pseudotokens.token_ids([0, 7, 2**40, -1])) == 4
    assert pseudotokens.token_ids([1]) != pseudotokens.token_ids([2])


def test_media_count_as_sixteen_tokens_however_large() -> None:
    assert pseudotokens.count(pseudotokens.media(b"x" * 1_000_000)) == 16
    assert pseudotokens.media(b"x") != pseudotokens.media(b"y")


def test_a_key_stands_for_its_block_and_all_before() -> None:
    a, b, c = (letter * 64 for letter in (b"a", b"b", b"c"))
    assert pseudotokens.block_keys(a + b)[0] == pseudotokens.block_keys(a + c)[0]
    assert pseudotokens.block_keys(a + b)[1] != pseudotokens.block_keys(c + b)[1]
    assert pseudotokens.block_keys(a + a)[0] != pseudotokens.block_keys(a + a)[1]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_prompts_share_exactly_the_full_blocks_they_have_in_common(one: bytes, other: bytes) -> None:
    keys = pseudotokens.block_keys(one)
    assert len(keys) == len(one) // 64
    longer = pseudotokens.block_keys(one + other)
    assert longer[: len(keys)] == keys
    same = sum(mine == theirs for mine, theirs in zip(keys, pseudotokens.block_keys(other), strict=False))
    common = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    assert same == common // 64


@given(st.integers(0, 2**64 - 1), st.integers(0, 50))
def test_an_answer_is_one_piece_per_token_and_a_function_of_its_seed(seed: int, tokens: int) -> None:
    pieces = pseudotokens.answer(seed, tokens)
    assert len(pieces) == tokens
    assert all(len(piece) == pseudotokens.TOKEN_BYTES for piece in pieces)
    assert pseudotokens.answer(seed, tokens + 5)[:tokens] == pieces


def test_answers_differ_by_prompt_and_by_index() -> None:
    seeds = {pseudotokens.seed(prompt, index) for prompt in (b"a", b"b") for index in (0, 1)}
    assert len(seeds) == 4
    assert pseudotokens.seed(b"a", 0) == pseudotokens.seed(b"a", 0)
