"""Tokens of a text by its size alone: so many for each byte of a kind, learned for each model from exact counts.

Four kinds of bytes tell most. Measured with four tokenizer families over prose, code, JSON, base64 and nine scripts,
as median and 90th percentile of the relative error:

| estimate | before any count | after 10 | after 50 |
|---|---|---|---|
| bytes / 4 | 11 % and 31 % | | |
| a ratio for each class of prompt | | 8 % and 28 % | 8 % and 28 % |
| a rate for each kind of byte, as here | 7 % and 21 % | 6 % and 19 % | 6 % and 18 % |
| the same rates by least squares | | 7 % and 20 % | 6 % and 19 % |
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

_Kinds = tuple[float, float, float, float]
"""A number for each kind of byte: small letters and blanks, other ASCII, of two-byte characters, of longer ones."""

_SOFT: Final = b"abcdefghijklmnopqrstuvwxyz \t\n\r"
"""What makes long tokens. Capitals, digits and signs make short ones, in code as in base64."""
_ASCII: Final = bytes(range(0x80))
_NO_STARTS_OF_TWO: Final = bytes(one for one in range(0x100) if not 0xC2 <= one <= 0xDF)

_UNTAUGHT: Final[_Kinds] = (0.9, 2.0, 0.85, 0.85)
"""Tokens of a kind's bytes, where as much English prose has one: about the mean of four tokenizer families."""
_RATE_MIN: Final = 0.05
_RATE_MAX: Final = 2.0
"""Learned tokens per byte. Text has some within; runs of blanks do not, and a client can send as many as it likes."""

_STEP: Final = 0.3
"""How far one count moves the rates towards itself: this share of the error's logarithm."""
_ERROR_MAX: Final = 0.3
"""Larger logarithms count as this: so odd prompts weigh by their number, and the others outvote them."""
_WEIGHTY_BYTES: Final = 256
"""Shorter prompts teach less, by their size: a whole number of tokens says little of their rate."""

_LOOKED_AT_CHARS: Final = 2048
_PIECES: Final = 16
_TEXTS_MAX: Final = 1024
"""Of longer prompts only so much is looked at: pieces at even distances, in at most so many of their texts."""


class Calibration:
    """The learned rates of `models_max` models; which was not taught for longest is forgotten. Pure, for one thread.

    Until any model has taught, `bytes_per_token` (over 0) holds for English prose. A model that has not taught goes by
    what all others taught.
    """

    def __init__(self, bytes_per_token: float, models_max: int) -> None:
        assert bytes_per_token > 0, "a size, not a switch"
        assert models_max > 0, "what is learned is kept"
        soft, other, two, more = _UNTAUGHT
        self._common = (
            soft / bytes_per_token,
            other / bytes_per_token,
            two / bytes_per_token,
            more / bytes_per_token,
        )
        self._rates: dict[str, _Kinds] = {}
        self._models_max = models_max

    def estimate(self, model: str, texts: Sequence[str]) -> int:
        """Tokens of the texts without special tokens; 0 where there is no text. Leaves no trace of the model."""
        return math.ceil(sum(_parts(self._rates.get(model, self._common), _sizes(texts))))

    def learn(self, model: str, texts: Sequence[str], tokens: int) -> float:
        """Take the exact count of the same texts alone. Returns how wrong the estimate was, relative to the count."""
        sizes = _sizes(texts)
        rates = self._rates.pop(model, self._common)
        estimate = math.ceil(sum(_parts(rates, sizes)))
        self._rates[model] = _taught(rates, sizes, tokens)
        self._common = _taught(self._common, sizes, tokens)
        if len(self._rates) > self._models_max:
            del self._rates[next(iter(self._rates))]
        return abs(estimate - tokens) / max(1, tokens)


def _taught(rates: _Kinds, sizes: _Kinds, tokens: int) -> _Kinds:
    """Rates moved towards a count, each by its part in the estimate: what a prompt lacks is not learned from it."""
    parts = _parts(rates, sizes)
    estimate = sum(parts)
    if not estimate:
        return rates
    error = math.log(max(1, tokens)) - math.log(estimate)
    error = max(-_ERROR_MAX, min(error, _ERROR_MAX))
    step = _STEP * error * min(1.0, sum(sizes) / _WEIGHTY_BYTES) / estimate
    soft, other, two, more = (
        max(_RATE_MIN, min(rate * math.exp(step * part), _RATE_MAX)) for rate, part in zip(rates, parts, strict=True)
    )
    return soft, other, two, more


def _parts(rates: _Kinds, sizes: _Kinds) -> _Kinds:
    return rates[0] * sizes[0], rates[1] * sizes[1], rates[2] * sizes[2], rates[3] * sizes[3]


def _sizes(texts: Sequence[str]) -> _Kinds:
    """Bytes of each kind in UTF-8; of a long prompt its characters are counted and their kinds taken from a sample."""
    chars = sum(map(len, texts))
    sample = "".join(texts) if chars <= _LOOKED_AT_CHARS else _sample(texts)
    scale = chars / len(sample) if sample else 0.0
    encoded = sample.encode(errors="surrogatepass")
    hard = encoded.translate(None, _SOFT)
    beyond = b"" if len(encoded) == len(sample) else hard.translate(None, _ASCII)
    two = 2 * len(beyond.translate(None, _NO_STARTS_OF_TWO))
    return (
        scale * (len(encoded) - len(hard)),
        scale * (len(hard) - len(beyond)),
        scale * two,
        scale * (len(beyond) - two),
    )


def _sample(texts: Sequence[str]) -> str:
    """Pieces at even distances. Not empty where any text is not."""
    if len(texts) > _TEXTS_MAX:
        spoken = list(filter(None, texts))
        texts = spoken[:: len(spoken) // _TEXTS_MAX + 1]
    ends = list(accumulate(map(len, texts)))
    length = _LOOKED_AT_CHARS // _PIECES
    pieces = []
    for one in range(_PIECES):
        at = (2 * one + 1) * ends[-1] // (2 * _PIECES)
        found = bisect_right(ends, at)
        start = at - ends[found] + len(texts[found])
        pieces.append(texts[found][start : start + length])
    return "".join(pieces)
