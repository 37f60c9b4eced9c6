"""The list at /v1/models, which every engine has in OpenAI's form and enriches in its own."""

from typing import Any

import msgspec

from extproc.agent.engines.adapter import Pages, missing_of, page_of
from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.snapshot import CONTEXT_LENGTH_TOKENS_MAX, MODELS_MAX, ServedModel


class Meta(msgspec.Struct, frozen=True):
    """What llama.cpp adds to an entry."""

    n_ctx: int | None = None
    """Tokens that one request may have."""
    n_ctx_train: int | None = None


class Entry(msgspec.Struct, frozen=True):
    """One model of the list."""

    id: str
    max_model_len: int | None = None
    """vLLM's and SGLang's context length in tokens."""
    parent: Any = None
    """Theirs too: of an adapter, the model that it adapts."""
    meta: Meta | None = None

    @property
    def base(self) -> str:
        """The parent's id; empty for what is no adapter."""
        return self.parent if isinstance(self.parent, str) else ""


class _ModelList(msgspec.Struct, frozen=True):
    data: list[Entry]


_DECODER = msgspec.json.Decoder(_ModelList)


def entries_of(text: str) -> list[Entry] | str:
    """The entries of a /v1/models answer, or what is wrong with it."""
    try:
        return _DECODER.decode(text).data
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "/v1/models is no OpenAI model list"


def served(name: str, context_length_tokens: int | None) -> ServedModel | str:
    """One model as a snapshot carries it, or why it cannot."""
    if not 1 <= len(name) <= MODEL_CHARS_MAX or not name.isprintable():
        return f"/v1/models has a name that is not 1..{MODEL_CHARS_MAX} printable characters"
    if context_length_tokens is not None and not 1 <= context_length_tokens <= CONTEXT_LENGTH_TOKENS_MAX:
        context_length_tokens = None
    return ServedModel(name, context_length_tokens=context_length_tokens)


def served_all(pairs: list[tuple[str, int | None]]) -> tuple[ServedModel, ...] | str:
    """The whole list out of names and context lengths; one bad entry spoils it, since a part of it would mislead."""
    if len(pairs) > MODELS_MAX:
        return f"/v1/models has more than {MODELS_MAX} models"
    models = []
    for name, context_length_tokens in pairs:
        model = served(name, context_length_tokens)
        if isinstance(model, str):
            return model
        models.append(model)
    return tuple(models)


def models_of(text: str) -> tuple[ServedModel, ...] | str:
    """The models of a /v1/models answer, or what is wrong with it.

    An adapter's entry has its base model as parent, and no length of its own.
    """
    entries = entries_of(text)
    if isinstance(entries, str):
        return entries
    lengths = {entry.id: entry.max_model_len for entry in entries}
    pairs = [(one.id, lengths.get(one.base) if one.max_model_len is None else one.max_model_len) for one in entries]
    return served_all(pairs)


def listed(pages: Pages) -> tuple[ServedModel, ...] | str:
    """The same, where /v1/models is the one page that an adapter needs."""
    text = page_of(pages, "/v1/models")
    return missing_of(pages, "/v1/models") if text is None else models_of(text)
