"""The libraries that count tokens: `tokenizers`, which engines use, and `fastokens` where it gives the same.

| | µs per KB of new text, 1 / 8 / 64 / 512 KB | memory while encoding, per byte | keeps other threads waiting |
|---|---|---|---|
| `fastokens` | 7 / 4 / 5 / 6 | 16 bytes at most | 4 ms at most, for 2 MB |
| `tokenizers` | 360 / 330 / 340 / 360 | 75 of prose, 180 of noise | 4 ms at most, for 2 MB |

Every call here makes no Python object for a token, and lets other threads run while it encodes. `fastokens` remembers
words: in each thread that encodes, 16 MiB from its first text on, and up to 200 MiB after long noise.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Protocol

import fastokens
from tokenizers import Tokenizer

from extproc.kvchain import ID_BYTES, id_bytes
from extproc.tokens.probe import long_texts, short_texts

# Both would spread one call over all cores: the counter's own threads are the bound, and the event loop needs a core.
# `fastokens` does 60 % more work for the same text when it spreads it. Read when the libraries first encode.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")

REASON_CHARS_MAX: Final = 200
_SHOWN_CHARS: Final = 40
_EXAMPLES: Final = 8
_TEXTS_AT_ONCE: Final = 1024
"""Texts are handed over and counts taken back while no other thread runs: 1.5 ms for so many."""


class Encoder(Protocol):
    """What counts the tokens of one vocabulary. Any thread may use it."""

    engine: str
    """The library: `fastokens` or `tokenizers`."""
    reason: str
    """Why this one, in up to `REASON_CHARS_MAX` characters and one line."""

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int] | None:
        """Tokens of each text. `None`: it cannot be encoded, as lone surrogates cannot. Never raises."""

    def ids(self, texts: Sequence[str]) -> list[bytes] | None:
        """The same with the ids themselves, four bytes for each as `kvchain` wants them, no special tokens added."""


class Reference:
    """`tokenizers`, by the call that keeps no offsets: a third cheaper, and it lets other threads run."""

    engine = "tokenizers"

    def __init__(self, tokenizer: Tokenizer, reason: str) -> None:
        self.reason = reason
        self._tokenizer = tokenizer

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int] | None:
        """See `Encoder`."""
        counts: list[int] = []
        try:
            for part in _parts(texts):
                encodings = self._tokenizer.encode_batch_fast(part, add_special_tokens=add_special_tokens)
                counts += map(len, encodings)
        except BaseException as error:
            if is_failure(error):
                return None
            raise
        return counts

    def ids(self, texts: Sequence[str]) -> list[bytes] | None:
        """See `Encoder`."""
        try:
            encodings = (
                encoding
                for part in _parts(texts)
                for encoding in self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
            )
            return [id_bytes(encoding.ids) for encoding in encodings]
        except BaseException as error:
            if is_failure(error):
                return None
            raise


class Fast:
    """`fastokens`, by the call that gives all ids as one string of bytes: half the time of the one with objects."""

    engine = "fastokens"

    def __init__(self, tokenizer: fastokens.Tokenizer) -> None:
        self.reason = "told to"
        self._tokenizer = tokenizer

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int] | None:
        """See `Encoder`."""
        counts: list[int] = []
        try:
            for part in _parts(texts):
                _, offsets = self._tokenizer.encode_batch_flat(part, add_special_tokens=add_special_tokens)
                counts += [end - start for start, end in pairwise(memoryview(offsets).cast("Q"))]
        except BaseException as error:
            if is_failure(error):
                return None
            raise
        return counts

    def ids(self, texts: Sequence[str]) -> list[bytes] | None:
        """See `Encoder`."""
        try:
            return [ids for part in _parts(texts) for ids in self.raw_ids(part, add_special_tokens=False)]
        except BaseException as error:
            if is_failure(error):
                return None
            raise

    def raw_ids(self, texts: list[str], add_special_tokens: bool) -> list[bytes]:
        """The same; raises what the library raises."""
        ids, offsets = self._tokenizer.encode_batch_flat(texts, add_special_tokens=add_special_tokens)
        return [bytes(ids[start * ID_BYTES : end * ID_BYTES]) for start, end in pairwise(memoryview(offsets).cast("Q"))]


def choose(reference: Tokenizer) -> Encoder:
    """The faster library where it gives the same ids for all of `probe`'s texts; else `tokenizers`.

    `reference` is as engines have it, and is freed where the other one takes over. Cutting and padding, which files
    often carry from a training run, are taken off: a count wants neither. Takes 1 to 3 s.
    """
    reference.no_truncation()
    reference.no_padding()
    try:
        # Not from the file: that reads the `tokenizer_config.json` beside it too, in a way of its own.
        fast = Fast(fastokens.Tokenizer.from_json_str(reference.to_str()))
    except BaseException as error:
        if is_failure(error):
            return Reference(reference, _line(f"fastokens cannot load it: {error}"))
        raise
    short = short_texts(_examples(reference))
    texts = [*short, *long_texts()]
    # Special tokens are put around any text alike.
    different = _difference(reference, fast, texts, special=False) or _difference(reference, fast, short, special=True)
    if different is not None:
        return Reference(reference, _line(different))
    fast.reason = f"agrees with tokenizers on {len(texts)} texts"
    return fast


def is_failure(error: BaseException) -> bool:
    """Whether a library failed, and not this process: a panic in its Rust code is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _examples(reference: Tokenizer) -> list[str]:
    """Some added tokens of each kind: vocabularies have up to a thousand, nearly all alike."""
    kinds: dict[tuple[bool, ...], list[str]] = {}
    for one in reference.get_added_tokens_decoder().values():
        kind = one.special, one.normalized, one.lstrip, one.rstrip, one.single_word
        kinds.setdefault(kind, []).append(one.content)
    return [one for kind in kinds.values() for one in (*kind[:_EXAMPLES], *kind[_EXAMPLES:][-_EXAMPLES:])]


def _difference(reference: Tokenizer, fast: Fast, texts: list[str], *, special: bool) -> str | None:
    """How the ids of these texts differ, encoded in this order or backwards; `None`: not at all.

    Two orders, because `fastokens` remembers how it split earlier text, and a version of it was wrong there.
    """
    try:
        wanted = [id_bytes(one.ids) for one in reference.encode_batch_fast(texts, add_special_tokens=special)]
        together = fast.raw_ids(texts, special)
        alone = [fast.raw_ids([text], special)[0] for text in reversed(texts)]
    except BaseException as error:
        if is_failure(error):
            return f"fastokens or tokenizers cannot encode every text: {error}"
        raise
    for text, ids, *got in zip(texts, wanted, together, reversed(alone), strict=True):
        if got != [ids, ids]:
            return f"fastokens differs from tokenizers on {text[:_SHOWN_CHARS]!r}"
    return None


def _parts(texts: Sequence[str]) -> list[list[str]]:
    return [list(texts[start : start + _TEXTS_AT_ONCE]) for start in range(0, len(texts), _TEXTS_AT_ONCE)]


def _line(text: str) -> str:
    return " ".join(text.split())[:REASON_CHARS_MAX]
