import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.agent.engines.exposition import samples_of
from extproc.agent.engines.expressions import (
    CHARS_MAX,
    TERMS_MAX,
    Expression,
    Folded,
    Match,
    Number,
    Operation,
    Series,
    metrics_of,
    parse,
    value_of,
)

PAGE = """
one 4
zero 0
nan NaN
inf +Inf
huge 1e308
many{state="a",on="1"} 1
many{state="b"} 2
many{state="c"} 6
config{blocks="100",size="16",none="None",long="1_0"} 1
config{blocks="60",size="16"} 1
sums 7
"""
NAMES = ("one", "zero", "nan", "inf", "huge", "many", "config", "sums", "gone")


def value(text: str) -> float | str:
    return value_of(parse(text), samples_of(PAGE, NAMES))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7), ("1.5", 1.5), (".5", 0.5), ("2.", 2), ("2e3", 2000), ("one", 4), ("-one", -4), ("one-1", 3),
        ("one - -1", 5), ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("8 - 4 - 2", 2), ("8 / 4 / 2", 1), ("-2 * -3", 6),
        (" one\n / 2 ", 2), ("sums", 7), ("sum(many)", 9), ("max(many)", 6), ("min( many )", 1), ("avg(many)", 3),
        ("sum(one)", 4), ('many{state="b"}', 2), ('sum(many{state!="b"})', 7), ('many{state="a",on="1"}', 1),
        ('sum(many{on=""})', 8), ('sum(many{on!=""})', 1), ("one{}", 4), ('sum(label(config, "blocks"))', 160),
        ('max(label(config, "size"))', 16), ('label(config{blocks="60"}, "size")', 16),
        ("((((((((((one))))))))))", 4), ("sum(many) / sum(one) + 1", 3.25),
    ],
)  # fmt: skip
def test_an_expression_has_the_value_that_it_says(text: str, number: float) -> None:
    assert value(text) == number
    assert value(str(parse(text))) == number


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gone", "gone is missing"),
        ("sum(gone) + 1", "gone is missing"),
        ('one + many{state="x"}', 'many{state="x"} is missing'),
        ("many", "many has several series: say sum, max, min or avg of it"),
        ("one / zero", "zero is 0"),
        ("one / (sum(many) - 9)", "sum(many) - 9 is 0"),
        ("nan", "nan is no number"),
        ("sum(inf)", "inf is no number"),
        ("huge * 10", "huge * 10 is no number"),
        ("sum(huge) * huge", "sum(huge) * huge is no number"),
        ('label(config{none="None"}, "none")', 'label(config{none="None"}, "none") is no number'),
        ('label(config{none="None"}, "long")', 'label(config{none="None"}, "long") is no number'),
        ('sum(label(config, "gone"))', 'label(config, "gone") is no number'),
        ('label(config, "size")', 'label(config, "size") has several series: say sum, max, min or avg of it'),
    ],
)
def test_without_a_value_the_reason_names_the_metric(text: str, reason: str) -> None:
    assert value(text) == reason


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "ends too early"), ("  ", "ends too early"), ("sum(a", "ends too early"), ("a +", "ends too early"),
        ("a b", "character 3"), ("a}", "character 2"), ("a\n}", "character 3"), ("sum(a + b)", "character 7"),
        ("sum(1)", "character 5"), ("2x", "character 2"), ("1.2.3", "character 4"), ('a{b="c}', "character 5"),
        ('a{b="\\d"}', "character 5"), ("a{b=c}", "character 5"), ('a{b:c="d"}', "character 4"), ("é", "character 1"),
        ("a ** b", "character 4"), ("a.b", "character 2"), ("a[0]", "character 2"), ("f(a)", "character 2"),
        ("sum", "ends too early"), ("label(a)", "character 8"), ('label("a", "b")', "character 7"),
        ("a > b", "character 3"), ("1e999", "finite"), ("__import__('os')", "character 11"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused_with_its_place(text: str, where: str) -> None:
    with pytest.raises(ValueError, match=where):
        parse(text)


def test_limits_are_kept_at_their_edge() -> None:
    parse("+".join(["a"] * TERMS_MAX))
    for text in ("+".join(["a"] * (TERMS_MAX + 1)), "-" * TERMS_MAX + "a", "-" * (CHARS_MAX - 1) + "a"):
        with pytest.raises(ValueError, match=f"{TERMS_MAX} metrics"):
            parse(text)
    longest = "(" * 200 + "a" + " " * (CHARS_MAX - 401) + ")" * 200
    assert parse(longest) == parse("a")
    with pytest.raises(ValueError, match=f"{CHARS_MAX} characters"):
        parse(longest + " ")


def test_the_metrics_in_it_are_known() -> None:
    assert metrics_of(parse('sum(a) / (label(b:c, "x") - a) + 1')) == {"a", "b:c"}


METRICS = st.sampled_from(NAMES)
TEXTS = st.text(st.sampled_from('ab"\\\n{}, '), max_size=4)
SERIES = st.builds(
    Series,
    METRICS,
    st.lists(st.builds(Match, st.sampled_from(["state", "on"]), st.booleans(), TEXTS), max_size=2).map(tuple),
    st.one_of(st.none(), st.sampled_from(["size", "blocks"])),
)
EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(
        st.builds(Number, st.floats(0, 1e9).map(lambda number: float(f"{number:g}"))),
        st.builds(Folded, st.sampled_from([None, "sum", "max", "min", "avg"]), SERIES),
    ),
    lambda some: st.builds(Operation, st.sampled_from("+-*/"), some, some),
    max_leaves=8,
)


@settings(deadline=None)
@given(EXPRESSIONS)
def test_every_expression_is_what_its_text_is_and_has_a_finite_value_or_a_reason(expression: Expression) -> None:
    assert parse(str(expression)) == expression
    result = value_of(expression, samples_of(PAGE, NAMES))
    assert result if isinstance(result, str) else math.isfinite(result)


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from('ab1.+-*/(){}="\\, \nsumlabel'), st.characters()), max_size=40))
def test_no_text_raises_anything_but_that_it_is_none(text: str) -> None:
    with contextlib.suppress(ValueError):
        value_of(parse(text), samples_of(PAGE, NAMES))
