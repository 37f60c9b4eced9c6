"""Arithmetic over a page's metrics, as `sum(my_running{state="active"})` or `my_used / my_total`.

A text may have numbers, `+ - * /`, brackets, metrics with labels that must be (`=`) or must not be (`!=`) a text,
`label(my_info, "blocks")` for the number in a label, and `sum`, `max`, `min` or `avg` over the series of either.
Without one of these four a metric must have one series: which of several is meant nobody could tell.

A text becomes a value, which is only ever walked: nothing of it is run.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add, mul, sub, truediv

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError

from extproc.agent.engines.exposition import Page, unescaped

CHARS_MAX = 500
TERMS_MAX = 32
"""Metrics and numbers; a sign before one counts as a number."""

_EXAMPLE = 'an expression as sum(my_running{state="active"}) / 2'
_GRAMMAR = r"""
?sum: product | sum PLUS product -> operation
?product: factor | product TIMES factor -> operation
?factor: NUMBER -> number
    | "-" factor -> minus
    | "(" sum ")"
    | how "(" series ")" -> folded
    | series -> only
?series: metric
    | "label" "(" metric "," TEXT ")" -> labelled
metric: NAME [ "{" [ match ("," match)* ] "}" ]
match: LABEL IS TEXT
!how: "sum" | "max" | "min" | "avg"
PLUS: "+" | "-"
TIMES: "*" | "/"
IS: "=" | "!="
NAME: /[a-zA-Z_:][a-zA-Z0-9_:]*/
LABEL: /[a-zA-Z_][a-zA-Z0-9_]*/
TEXT: /"([^"\\\n]|\\[\\n"])*"/
NUMBER: /([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?/
%ignore /[ \t\r\n]+/
"""


@dataclass(frozen=True, slots=True)
class Match:
    """What a series' label must be, or must not."""

    label: str
    equal: bool
    text: str

    def __str__(self) -> str:
        return f"{self.label}{'=' if self.equal else '!='}{_quoted(self.text)}"


@dataclass(frozen=True, slots=True)
class Series:
    """Those of a metric that match; their values, or the numbers in one of their labels."""

    metric: str
    matches: tuple[Match, ...] = ()
    label: str | None = None

    def __str__(self) -> str:
        name = f"{self.metric}{{{','.join(map(str, self.matches))}}}" if self.matches else self.metric
        return name if self.label is None else f"label({name}, {_quoted(self.label)})"


@dataclass(frozen=True, slots=True)
class Folded:
    """One number out of several series, by one of `_FOLDS`; or of the only one."""

    how: str | None
    series: Series

    def __str__(self) -> str:
        return str(self.series) if self.how is None else f"{self.how}({self.series})"


@dataclass(frozen=True, slots=True)
class Number:
    """A finite constant."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True, slots=True)
class Operation:
    """Two numbers become one, by one of `_OPERATIONS`."""

    sign: str
    left: "Expression"
    right: "Expression"

    def __str__(self) -> str:
        left, right = (f"({one})" if isinstance(one, Operation) else str(one) for one in (self.left, self.right))
        return f"{left} {self.sign} {right}"


Expression = Number | Folded | Operation

_OPERATIONS: Mapping[str, Callable[[float, float], float]] = {"+": add, "-": sub, "*": mul, "/": truediv}
_FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "avg": lambda values: sum(values) / len(values),
}


def parse(text: str) -> Expression:
    """The expression that a text is. Raises `ValueError` with what is wanted instead."""
    if len(text) > CHARS_MAX:
        msg = f"an expression of up to {CHARS_MAX} characters"
        raise ValueError(msg)
    try:
        expression: Expression = _parser().parse(text)  # type: ignore[assignment]  # what `_Building` makes of the tree
    except UnexpectedInput as error:
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        where = "ends too early" if ended else f"is none from character {(error.pos_in_stream or 0) + 1} on"
        msg = f"{_EXAMPLE}; this {where}"
        raise ValueError(msg) from None
    except VisitError as error:
        raise ValueError(str(error.orig_exc)) from None
    if sum(1 for _ in terms_of(expression)) > TERMS_MAX:
        msg = f"an expression of up to {TERMS_MAX} metrics and numbers"
        raise ValueError(msg)
    return expression


def terms_of(expression: Expression) -> Iterator[Number | Folded]:
    """The numbers and metrics in it."""
    ahead: list[Expression] = [expression]
    while ahead:
        one = ahead.pop()
        if isinstance(one, Operation):
            ahead += (one.left, one.right)
        else:
            yield one


def metrics_of(expression: Expression) -> set[str]:
    """The names of the metrics in it."""
    return {term.series.metric for term in terms_of(expression) if isinstance(term, Folded)}


def value_of(expression: Expression, page: Page) -> float | str:
    """A finite number, or why there is none: it names the metrics, and carries no values. Raises for no page."""
    if isinstance(expression, Number):
        return expression.value
    if isinstance(expression, Folded):
        return _folded(expression, page)
    left, right = value_of(expression.left, page), value_of(expression.right, page)
    if isinstance(left, str):
        return left
    if isinstance(right, str):
        return right
    if expression.sign == "/" and right == 0:
        return f"{expression.right} is 0"
    value = _OPERATIONS[expression.sign](left, right)
    return value if math.isfinite(value) else f"{expression} is no number"


def _folded(folded: Folded, page: Page) -> float | str:
    series, numbers = folded.series, []
    for sample in page.get(series.metric, ()):
        if any((sample.labels.get(one.label, "") == one.text) != one.equal for one in series.matches):
            continue
        number = sample.value if series.label is None else _number(sample.labels.get(series.label, ""))
        if not math.isfinite(number):
            return f"{series} is no number"
        numbers.append(number)
    if not numbers:
        return f"{series} is missing"
    if folded.how is None:
        return numbers[0] if len(numbers) == 1 else f"{series} has several series: say sum, max, min or avg of it"
    value = _FOLDS[folded.how](numbers)
    return value if math.isfinite(value) else f"{folded} is no number"


def _number(label: str) -> float:
    try:
        return math.nan if "_" in label else float(label)
    except ValueError:
        return math.nan


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


class _Building(Transformer[Token, Expression]):
    """Makes the value while the text is read, so that no tree is walked, however deep."""

    def number(self, parts: list[Token]) -> Number:
        value = float(parts[0])
        if not math.isfinite(value):
            msg = "a number that is finite"
            raise ValueError(msg)
        return Number(value)

    def minus(self, parts: list[Expression]) -> Operation:
        return Operation("-", Number(0.0), parts[0])

    def operation(self, parts: tuple[Expression, Token, Expression]) -> Operation:
        return Operation(str(parts[1]), parts[0], parts[2])

    def how(self, parts: list[Token]) -> str:
        return str(parts[0])

    def folded(self, parts: tuple[str, Series]) -> Folded:
        return Folded(parts[0], parts[1])

    def only(self, parts: list[Series]) -> Folded:
        return Folded(None, parts[0])

    def labelled(self, parts: tuple[Series, Token]) -> Series:
        return Series(parts[0].metric, parts[0].matches, unescaped(parts[1][1:-1]))

    def metric(self, parts: list[Token | Match | None]) -> Series:
        return Series(str(parts[0]), tuple(part for part in parts[1:] if isinstance(part, Match)))

    def match(self, parts: list[Token]) -> Match:
        return Match(str(parts[0]), parts[1] == "=", unescaped(parts[2][1:-1]))


@lru_cache(1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, start="sum", parser="lalr", transformer=_Building(), maybe_placeholders=False)
