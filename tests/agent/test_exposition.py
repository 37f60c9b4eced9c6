import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from extproc.agent.engines.exposition import samples_of
from tests.agent.pages import SAMPLES

Rows = list[tuple[str, dict[str, str], float]]


def by_prometheus(text: str) -> Rows:
    # Its parser appends `_total` to counters that are declared without; the names on the lines are what counts here.
    undeclared = "\n".join(line for line in text.split("\n") if not line.startswith("# TYPE"))
    families = text_string_to_metric_families(undeclared)
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def by_us(text: str, names: set[str]) -> Rows:
    return [(name, dict(s.labels), s.value) for name, samples in samples_of(text, names).items() for s in samples]


def same(ours: Rows, theirs: Rows) -> bool:
    def key(row: tuple[str, dict[str, str], float]) -> tuple[str, list[tuple[str, str]], str]:
        return row[0], sorted(row[1].items()), repr(float(row[2]))

    return sorted(map(key, ours)) == sorted(map(key, theirs))


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.prom")), ids=lambda path: path.name)
def test_every_sample_of_a_captured_page_is_read_as_prometheus_reads_it(path: Path) -> None:
    text = path.read_text()
    theirs = by_prometheus(text)
    assert len(theirs) > 10
    assert same(by_us(text, {name for name, _, _ in theirs}), theirs)


NAMES = st.from_regex(r"[a-z_:][a-z0-9_:]{0,5}", fullmatch=True)
LABEL_NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True)
LABEL_VALUES = st.text(st.one_of(st.sampled_from('\\"\n{}, =#\t\r\u2028é'), st.characters(codec="utf-8")), max_size=8)
VALUES = st.one_of(st.floats(), st.integers(-(2**70), 2**70)).map(
    lambda value: {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    space = st.sampled_from(["", " ", "\t", "  "])
    labels = draw(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=3))
    escaped = [
        f'{name}{draw(space)}={draw(space)}"'
        + value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        + '"'
        for name, value in labels.items()
    ]
    inside = f",{draw(space)}".join(escaped) + (draw(st.sampled_from(["", ","])) if labels else "")
    bare = draw(st.sampled_from(["", "{}"]))
    braces = f"{draw(space)}{{{inside}}}" if labels else bare
    stamp = draw(st.sampled_from(["", "", " 1795967852000"]))
    return f"{draw(space)}{draw(NAMES)}{braces} {draw(VALUES)}{stamp}{draw(space)}"


@settings(deadline=None)
@given(st.lists(st.one_of(lines(), st.sampled_from(["", "# a comment", "# TYPE q gauge", "#"])), max_size=12))
def test_generated_pages_are_read_as_prometheus_reads_them(page: list[str]) -> None:
    text = "\n".join(page)
    theirs = by_prometheus(text)
    assert same(by_us(text, {name for name, _, _ in theirs}), theirs)


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from('ab{}="\\,\n #1.+eN'), st.characters()), max_size=60))
def test_no_text_raises(text: str) -> None:
    samples_of(text, {"a", "b", "ab"})


def test_names_are_matched_whole() -> None:
    page = samples_of('a_b 1\na 2\na:c 3\naé 4\nxa 5\na{l="v"} 6\n', {"a"})
    assert [sample.value for sample in page["a"]] == [2, 6]


@pytest.mark.parametrize(
    "line",
    ["a", "a ", "a{", 'a{l="v" 1', 'a{l="v} 1', 'a{l="1",l="2"} 1', "a x", "a 1 2 3", "a 1_0", "a{l=v} 1", "a{} "],
)
def test_malformed_lines_are_left_out(line: str) -> None:
    assert samples_of(f"{line}\nb 1\n", {"a", "b"}).keys() == {"b"}


def test_what_is_no_number_is_read_as_such() -> None:
    nan, plus, minus = samples_of("a NaN\na +Inf\na -Inf\n", {"a"})["a"]
    assert math.isnan(nan.value)
    assert (plus.value, minus.value) == (math.inf, -math.inf)
