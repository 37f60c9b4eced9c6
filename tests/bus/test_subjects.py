"""Subjects: any node id is one token of one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from extproc.bus.subjects import TOKEN_BYTES_MAX, subject_of, text_of, token_of


@given(st.text(min_size=1, max_size=64))
def test_any_short_text_comes_back_from_its_token(text: str) -> None:
    token = token_of(text)
    assert token is not None
    assert re.fullmatch(r"[A-Za-z0-9_%-]+", token)
    assert text_of(token) == text


@given(st.text(min_size=1, max_size=64), st.text(min_size=1, max_size=64))
def test_two_texts_never_share_a_token(one: str, other: str) -> None:
    assert (token_of(one) == token_of(other)) == (one == other)


@given(st.one_of(st.text(max_size=40), st.from_regex(r"([A-Za-z0-9_-]|%[0-9A-Fa-f]{2}){1,20}", fullmatch=True)))
def test_what_is_read_of_a_token_has_that_token_alone(token: str) -> None:
    text = text_of(token)
    assert text is None or token_of(text) == token


def test_other_spellings_of_a_text_are_refused() -> None:
    assert text_of("%61") is None  # a
    assert text_of("%c3%a9") is None  # in small letters
    assert text_of("%FF") is None  # no UTF-8
    assert text_of("") is None
    assert text_of("a.b") is None
    assert text_of("a\n") is None


def test_tokens_are_bounded_and_some_texts_have_none() -> None:
    assert token_of("a" * TOKEN_BYTES_MAX) == "a" * TOKEN_BYTES_MAX
    assert token_of("a" * (TOKEN_BYTES_MAX + 1)) is None
    assert text_of("a" * (TOKEN_BYTES_MAX + 1)) is None
    assert token_of("é" * (TOKEN_BYTES_MAX // 6 + 1)) is None
    assert token_of("") is None
    assert token_of("\ud800") is None


def test_a_subject_names_fleet_channel_and_what_is_below() -> None:
    assert subject_of("f", "loads") == "extproc.f.loads"
    assert subject_of("f", "nodes", "gpu-1.b *") == "extproc.f.nodes.gpu-1%2Eb%20%2A"
    assert subject_of("f", "nodes", "\ud800") is None
