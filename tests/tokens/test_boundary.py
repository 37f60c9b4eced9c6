import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from extproc.tokens.boundary import added_tokens, find
from extproc.tokens.encoders import Reference, choose
from extproc.tokens.pieces import cut
from extproc.tokens.template import ChatTemplate, Renderer
from tests.tokens.bpe import train

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
FUEL = 100_000


@functools.cache
def trained() -> str:
    return train(Path("/dev/null")).to_str()


def tokenizer_with(*tokens: AddedToken) -> Tokenizer:
    tokenizer = Tokenizer.from_str(trained())
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def plain(text: str, *, special: bool = True, normalized: bool = False, lstrip: bool = False) -> AddedToken:
    return AddedToken(text, special=special, normalized=normalized, lstrip=lstrip)


def found(source: str, *tokens: AddedToken) -> str | None:
    tokenizer = tokenizer_with(*tokens)
    return find(added_tokens(tokenizer), ChatTemplate(source, {}, Renderer.TEMPLATE, FUEL), choose(tokenizer))


START, END = plain("<|im_start|>"), plain("<|im_end|>")


def test_chats_are_cut_at_the_token_that_their_template_writes_most_often() -> None:
    assert found(CHATML, START, END) == "<|im_start|>"
    assert found(CHATML.replace("<|im_start|>assistant\n", "<|im_end|>"), START, END) == "<|im_end|>"


def test_of_tokens_written_as_often_the_first_in_the_text_is_taken() -> None:
    assert found("{% for m in messages %}<a>{{ m.content }}<b>{% endfor %}", plain("<b>"), plain("<a>")) == "<a>"


def test_a_token_written_once_is_nothing_to_cut_at() -> None:
    assert found("<|im_start|>{% for m in messages %}{{ m.content }}{% endfor %}", START) is None


def test_tokens_that_are_not_special_are_cut_at_too() -> None:
    assert found(CHATML, plain("<|im_start|>", special=False)) == "<|im_start|>"


def test_a_token_that_takes_blanks_along_is_passed_over() -> None:
    assert found(CHATML, plain("<|im_start|>", lstrip=True), END) == "<|im_end|>"


def test_a_template_that_refuses_the_probes_chat_leaves_chats_whole() -> None:
    assert found("{{ raise_exception('no') }}" + CHATML, START, END) is None


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("<|im_start|>", "<|im_start|>user"),
        ("<|im_start|>", "x<|im_start|>"),
        ("<|im_start|>", "im_start"),
        ("<|im_start|>", "a<|"),
        ("<|im_start|>", "|>b"),
    ],
)
def test_a_token_that_shares_a_part_with_another_one_is_not_cut_at(text: str, other: str) -> None:
    assert not added_tokens(tokenizer_with(plain(text), plain(other))).may_cut_at(text)


def test_a_token_that_overlaps_itself_is_not_cut_at() -> None:
    assert not added_tokens(tokenizer_with(plain("|>|"))).may_cut_at("|>|")


class Constant:
    """An encoder whose counts do not add up."""

    engine = "fastokens"
    reason = "told to"

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [1] * len(texts)

    def ids(self, texts: Sequence[str]) -> list[bytes]:
        return [bytes(4)] * len(texts)


def test_where_counts_do_not_add_up_after_all_chats_are_left_whole() -> None:
    tokens = added_tokens(tokenizer_with(START, END))
    assert find(tokens, ChatTemplate(CHATML, {}, Renderer.TEMPLATE, FUEL), Constant()) is None


@pytest.mark.parametrize("text", ["user:", " <user>", "\n<user>", "_<user>"])
def test_a_token_that_begins_with_no_sign_is_not_cut_at(text: str) -> None:
    assert not added_tokens(tokenizer_with(plain(text))).may_cut_at(text)


def test_normalised_tokens_are_cut_at_only_where_nothing_is_normalised() -> None:
    tokenizer = tokenizer_with(plain("<|user|>", normalized=True))
    assert added_tokens(tokenizer).may_cut_at("<|user|>")
    tokenizer.normalizer = normalizers.Sequence([])
    assert added_tokens(tokenizer).may_cut_at("<|user|>")
    tokenizer.normalizer = normalizers.NFC()
    assert not added_tokens(tokenizer).may_cut_at("<|user|>")


added = st.builds(
    AddedToken,
    st.text("<|>a_ ", min_size=1, max_size=4),
    single_word=st.booleans(),
    lstrip=st.booleans(),
    rstrip=st.booleans(),
    normalized=st.booleans(),
    special=st.booleans(),
)
likely = st.builds(
    AddedToken,
    st.sampled_from(["<u>", "<|u|>", "|x>", "<", ">_a", "<a", "| b", "a>", " >"]),
    rstrip=st.booleans(),
    normalized=st.sampled_from([False, False, True]),
    special=st.booleans(),
)
normalisers = st.sampled_from(
    [
        None,
        normalizers.Sequence([]),
        normalizers.Lowercase(),
        normalizers.Prepend("_"),
        normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")]),
        normalizers.Strip(),
        normalizers.NFC(),
    ]
)
splits = st.sampled_from(
    [
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Metaspace(prepend_scheme="always"),
    ]
)


@settings(max_examples=300)
@given(one=likely, others=st.lists(added, max_size=3), normaliser=normalisers, split=splits, data=st.data())
def test_wherever_a_text_may_be_cut_the_counts_of_its_pieces_add_up(
    one: AddedToken,
    others: list[AddedToken],
    normaliser: normalizers.Normalizer | None,
    split: pre_tokenizers.PreTokenizer,
    data: st.DataObject,
) -> None:
    tokenizer = tokenizer_with(one, *others)
    tokenizer.pre_tokenizer = split
    if normaliser is not None:
        tokenizer.normalizer = normaliser
    boundaries = [one.content for one in (one, *others) if added_tokens(tokenizer).may_cut_at(one.content)]
    assume(boundaries)
    part = st.sampled_from([one.content for one in (one, *others)]) | st.text("<|>aA_ b\u0338\u0301", max_size=6)
    text = "".join(data.draw(st.lists(part, max_size=8)))
    encoder = Reference(tokenizer, "")
    whole = encoder.counts([text], add_special_tokens=False)
    assume(whole is not None)  # tokens that look at what stands around them make the library panic at some texts
    for boundary in boundaries:
        pieces = encoder.counts(cut(text, boundary), add_special_tokens=False)
        assert pieces is not None
        assert [sum(pieces)] == whole, boundary
