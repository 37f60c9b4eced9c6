"""Where a rendered chat may be cut so that the counts of its pieces add up exactly to the count of the whole.

A tokenizer first looks for its added tokens, from left to right, the longest where several begin together; special or
not makes no difference. Then it takes each stretch of text between them by itself: normalises it, splits it, encodes
it. So a text can be cut in front of an added token, if that token is found wherever its text stands and if nothing on
its left reaches into it:

- Its text shares no end, no beginning and no part with another added token's, nor its own end with its beginning.
- It is looked for in the text as it stands (not `normalized`; or the tokenizer normalises nothing).
- It does not take the blanks before it along (`lstrip`), and is found within words (not `single_word`).
- It begins with a sign: tokens on its left that have to end a word, or take the blanks after them along, end there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
from tokenizers import AddedToken, Tokenizer

from extproc.prompt import Chat, Message
from extproc.tokens.encoders import Encoder
from extproc.tokens.probe import short_texts
from extproc.tokens.template import ChatTemplate, Rendered

PROBE: Final = Chat(
    (
        Message(role="user", content="One."),
        Message(role="assistant", content="Two."),
        Message(role="user", content="Three."),
    )
)
"""A chat that any template takes."""
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """The added tokens of a tokenizer, as far as cutting goes."""

    texts: tuple[str, ...]
    findable: frozenset[str]
    """Those that are found wherever they stand, if they share nothing with the others."""

    def may_cut_at(self, text: str) -> bool:
        """Whether any text may be cut wherever this one stands in it, in front of it."""
        return text in self.findable and _stands_alone(text, self.texts)


def added_tokens(tokenizer: Tokenizer) -> AddedTokens:
    """What has to be known of a tokenizer, which need not be kept."""
    tokens = tokenizer.get_added_tokens_decoder().values()
    as_it_stands = _leaves_text(tokenizer)
    findable = frozenset(token.content for token in tokens if _findable(token, as_it_stands=as_it_stands))
    return AddedTokens(tuple(token.content for token in tokens), findable)


def find(tokens: AddedTokens, template: ChatTemplate, encoder: Encoder) -> str | None:
    """The token in front of which this template's chats are best cut: the one it writes most often."""
    rendered = template.render(PROBE, NOW)
    if not isinstance(rendered, Rendered):
        return None
    text = rendered.text
    counts = {one: text.count(one) for one in tokens.findable}
    often = sorted((one for one in counts if counts[one] > 1), key=lambda one: (-counts[one], text.index(one)))
    return next((one for one in often if tokens.may_cut_at(one) and _adds_up(one, encoder)), None)


def _findable(token: AddedToken, *, as_it_stands: bool) -> bool:
    begins_with_sign = re.match(r"[^\w\s]", token.content) is not None
    return begins_with_sign and not (token.lstrip or token.single_word) and (as_it_stands or not token.normalized)


def _leaves_text(tokenizer: Tokenizer) -> bool:
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return True
    # Some files have an empty list of normalisers. The library shows what it has to `pickle` alone.
    return bool(msgspec.json.decode(normalizer.__getstate__()) == {"type": "Sequence", "normalizers": []})


def _stands_alone(text: str, others: Iterable[str]) -> bool:
    """Whether no other text, nor this one a second time, can reach into a place where this one stands."""
    ends = {text[-size:] for size in range(1, len(text))}
    beginnings = {text[:size] for size in range(1, len(text))}
    if ends & beginnings:
        return False
    for other in others:
        if other != text and (
            other in text
            or text in other
            or any(other.startswith(end) for end in ends)
            or any(other.endswith(beginning) for beginning in beginnings)
        ):
            return False
    return True


def _adds_up(boundary: str, encoder: Encoder) -> bool:
    """Whether it holds for the probe's texts on both sides."""
    texts = short_texts()
    for left, right in zip(texts, [*texts[1:], texts[0]], strict=True):
        counts = encoder.counts([left + boundary + right, left, boundary + right], add_special_tokens=False)
        if counts is None or counts[0] != counts[1] + counts[2]:
            return False
    return True
