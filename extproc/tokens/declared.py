"""What a model's `tokenizer_config.json` says beside its `tokenizer.json`, and what engines make of it.

Engines load tokenizers with `transformers`, which adds the tokens that are declared only here. Whether texts begin with
BOS is the `tokenizer.json`'s to say since `transformers` 5: `add_bos_token` is not looked at where there is one.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct
from tokenizers import AddedToken, Tokenizer

_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class DeclaredToken(Struct):
    """A token as the file writes it."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None
    """`None`: unless it is special."""
    special: bool = False


class NamedTemplate(Struct):
    """One of several chat templates."""

    name: str
    template: str


Token = str | DeclaredToken
Templates = str | list[NamedTemplate] | dict[str, str]


class Declared(Struct):
    """The file, as far as it matters to counts."""

    added_tokens_decoder: dict[int, DeclaredToken] | None = None
    bos_token: Token | None = None
    eos_token: Token | None = None
    unk_token: Token | None = None
    sep_token: Token | None = None
    pad_token: Token | None = None
    cls_token: Token | None = None
    mask_token: Token | None = None
    additional_special_tokens: list[Token] | None = None
    """The older name of the next."""
    extra_special_tokens: list[Token] | dict[str, Token] | None = None
    chat_template: Templates | None = None

    @property
    def named(self) -> dict[str, str]:
        """Special tokens by what templates call them, as `bos_token`; those that the model has."""
        tokens = {name: getattr(self, name) for name in _NAMED}
        return {name: one if isinstance(one, str) else one.content for name, one in tokens.items() if one is not None}


def decode(raw: bytes) -> Declared:
    """The file's content. Raises `ValueError` where a part that matters is not as it has to be."""
    try:
        return msgspec.json.decode(raw, type=Declared)
    except RecursionError:
        msg = "JSON that is nested too deep"
        raise ValueError(msg) from None


def apply(declared: Declared, tokenizer: Tokenizer) -> None:
    """Add to a tokenizer what an engine adds. Raises what the library raises of tokens that it cannot take."""
    known = tokenizer.get_added_tokens_decoder().values()
    # A token with other flags than it has there is taken over.
    written = {repr(token) for token in known}
    by_id = sorted((declared.added_tokens_decoder or {}).items())
    more = [token for token in (_added(one) for _, one in by_id) if repr(token) not in written]
    contents = {token.content for token in (*known, *more)}
    for token in _special(declared):
        if token.content not in contents:
            contents.add(token.content)
            more.append(token)
    tokenizer.add_tokens(more)


def _special(declared: Declared) -> Iterator[AddedToken]:
    extra = declared.extra_special_tokens
    if extra is None:
        extra = declared.additional_special_tokens or []
    for one in (*(getattr(declared, name) for name in _NAMED), *(extra.values() if isinstance(extra, dict) else extra)):
        if isinstance(one, str):
            yield AddedToken(one, special=True)
        elif one is not None:
            token = _added(one)
            token.special = True
            yield token


def _added(token: DeclaredToken) -> AddedToken:
    return AddedToken(
        token.content,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
        normalized=not token.special if token.normalized is None else token.normalized,
        special=token.special,
    )
