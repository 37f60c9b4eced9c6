"""How long the answers of each model are."""

from collections import OrderedDict

PRIOR_ANSWERS = 8
"""The length that is assumed weighs as much as so many answers."""
ANSWER_TOKENS_MAX = 32_768
"""No answer counts for more."""
ANSWERS_MAX = 500
"""Answers after which those so far count half."""
MODELS_MAX = 1024
"""Models whose answers' lengths are remembered; the one asked for the longest ago goes first."""


class AnswerLengths:
    """The mean length of each model's answers, in tokens."""

    def __init__(self, assumed_tokens: float) -> None:
        self._assumed_tokens = assumed_tokens
        self._sums: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Of each model the tokens of its answers and their number; the latest last."""

    def add(self, model: str, tokens: int) -> None:
        """An answer was so long, at least 0."""
        total, count = self._sums.pop(model, (0.0, 0.0))
        if count >= ANSWERS_MAX:
            total, count = total / 2, count / 2
        self._sums[model] = (total + min(tokens, ANSWER_TOKENS_MAX), count + 1)
        if len(self._sums) > MODELS_MAX:
            self._sums.popitem(last=False)

    def expected(self, model: str) -> float:
        """Tokens of the model's next answer."""
        total, count = self._sums.get(model, (0.0, 0.0))
        return (total + PRIOR_ANSWERS * self._assumed_tokens) / (count + PRIOR_ANSWERS)
