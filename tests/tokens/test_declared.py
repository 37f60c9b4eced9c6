import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from extproc.tokens import declared
from tests.tokens.bpe import train

TRAINED = train(Path("/dev/null")).to_str()


def applied(config: dict[str, Any]) -> dict[str, AddedToken]:
    """The added tokens of the tiny tokenizer with a configuration."""
    tokenizer = Tokenizer.from_str(TRAINED)
    declared.apply(declared.decode(json.dumps(config).encode()), tokenizer)
    return {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}


def test_a_configuration_without_tokens_changes_nothing() -> None:
    tokenizer = Tokenizer.from_str(TRAINED)
    declared.apply(declared.decode(b'{"model_max_length": 1000000000000000019884624838656}'), tokenizer)
    assert tokenizer.to_str() == Tokenizer.from_str(TRAINED).to_str()


def test_tokens_that_only_the_configuration_has_are_added() -> None:
    tokens = applied(
        {
            "added_tokens_decoder": {"900": {"content": "<a>", "lstrip": True, "special": False, "normalized": False}},
            "pad_token": "<b>",
            "eos_token": {"__type": "AddedToken", "content": "<c>", "rstrip": True},
            "extra_special_tokens": ["<d>", {"content": "<e>"}],
        }
    )
    assert set(tokens) == {"<s>", "<a>", "<b>", "<c>", "<d>", "<e>"}
    assert (tokens["<a>"].lstrip, tokens["<a>"].normalized, tokens["<a>"].special) == (True, False, False)
    assert (tokens["<c>"].rstrip, tokens["<c>"].special) == (True, True)
    assert all(tokens[one].special for one in ("<b>", "<d>", "<e>"))


def test_a_token_with_other_flags_is_taken_over() -> None:
    assert not applied({})["<s>"].rstrip
    config = {"added_tokens_decoder": {"0": {"content": "<s>", "rstrip": True, "special": True, "normalized": False}}}
    assert applied(config)["<s>"].rstrip


def test_a_known_token_is_not_changed_by_its_name() -> None:
    assert repr(applied({"bos_token": {"content": "<s>", "lstrip": True}})["<s>"]) == repr(applied({})["<s>"])


def test_special_tokens_by_their_older_name_count_where_the_newer_is_absent() -> None:
    assert "<a>" in applied({"additional_special_tokens": ["<a>"]})
    assert "<a>" not in applied({"additional_special_tokens": ["<a>"], "extra_special_tokens": []})
    assert "<a>" in applied({"extra_special_tokens": {"image_token": "<a>"}})


def test_templates_get_the_tokens_that_the_model_has() -> None:
    config = declared.decode(b'{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null}')
    assert config.named == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"bos_token": 1}', "$.bos_token"),
        (b'{"added_tokens_decoder": {"a": {"content": "<a>"}}}', "$.added_tokens_decoder"),
        (b'{"added_tokens_decoder": {"1": {"contents": "<a>"}}}', "missing required field `content`"),
        (b'{"chat_template": 5}', "$.chat_template"),
        (b'{"x": ' + b"[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(raw: bytes, told: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is looked at
        declared.decode(raw)
    assert told in str(caught.value)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "1", "name"]), inner),
    max_leaves=6,
)
configs = st.dictionaries(st.sampled_from(sorted(declared.Declared.__struct_fields__)), values)


@given(st.binary(max_size=60) | configs.map(lambda config: json.dumps(config).encode()))
def test_no_content_raises_anything_else(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        declared.apply(declared.decode(raw), Tokenizer.from_str(TRAINED))
