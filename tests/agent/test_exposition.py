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


NAMES = st.one_of(
    st.from_regex(r"[a-z_:][a-z0-9_:]{0,5}", fullmatch=True),
    st.sampled_from(["v:a", "v:a_b", "v:a_b_c", "v:ab", "v:", "v:a_total", "v:a_bucket"]),  # they begin alike
)
LABEL_NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True)
LABEL_VALUES = st.text(st.one_of(st.sampled_from('\\"\n{}, =#\t\r\u2028é'), st.characters(codec="utf-8")), max_size=8)
VALUES = st.one_of(
    st.one_of(st.floats(), st.integers(-(2**70), 2**70)).map(
        lambda value: {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
    ),
    st.sampled_from(["1e400", "-1E+3", "+1", ".5", "5.", "0005", "9223372036854775808"]),
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
    exemplar = draw(st.sampled_from(["", "", ' # {trace_id="7 }{"} 0.5', ' # {trace_id="7"} 1.0 1795967852.5']))
    return f"{draw(space)}{draw(NAMES)}{braces} {draw(VALUES)}{stamp}{exemplar}{draw(space)}"


@st.composite
def comments(draw: st.DrawFn) -> str:
    begun = draw(st.sampled_from(["# HELP", "# TYPE", "# UNIT", "#HELP", "# ", "#"]))
    told = draw(st.sampled_from(["gauge", "counter", " of v:a 5 and v:a_b 7", 'with {a="b"} 1']))
    return f"{begun} {draw(NAMES)} {told}"


OTHERS = st.sampled_from(["", "# a comment", "# TYPE q gauge", "#", "# EOF", "   ", "\t#"])


@settings(deadline=None)
@given(
    st.lists(st.one_of(lines(), comments(), OTHERS), max_size=12),
    st.sets(NAMES, max_size=4),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.sampled_from(["", "\n", "\r\n"]),
)
def test_generated_pages_are_read_as_prometheus_reads_them(
    page: list[str], some: set[str], ends: str, end: str
) -> None:
    text = ends.join(page) + end
    theirs = by_prometheus(text)
    assert same(by_us(text, {name for name, _, _ in theirs}), theirs)
    assert same(by_us(text, some), [row for row in theirs if row[0] in some])


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from('ab{}="\\,\n #1.+eN'), st.characters()), max_size=60))
def test_no_text_raises(text: str) -> None:
    samples_of(text, {"a", "b", "ab"})


def test_names_are_matched_whole() -> None:
    page = samples_of('a_b 1\na 2\na:c 3\naé 4\nxa 5\na7 8\na{l="v"} 6\n', {"a"})
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


def test_no_names_are_no_samples() -> None:
    assert samples_of("a 1\n 2\n", set()) == {}


def test_a_name_that_another_begins_with_is_found_beside_it() -> None:
    page = samples_of("a_b_c 3\na_b 2\na 1\n", {"a", "a_b_c"})
    assert {name: samples[0].value for name, samples in page.items()} == {"a": 1, "a_b_c": 3}


def test_names_mean_themselves_whatever_is_in_them() -> None:
    assert samples_of("axb 1\n", {"a.b", "a*b"}) == {}
    assert samples_of("a.b 1\n", {"a.b"})["a.b"][0].value == 1


@pytest.mark.parametrize(
    "page", ["\n" * 100_000, " " * 100_000, "a" * 100_000, "a{" + 'l="v",' * 20_000, 'a{l="' * 20_000]
)
def test_a_hostile_page_takes_no_longer_than_its_length(page: str) -> None:
    samples_of(page * 10, {"a", "aa"})  # were it the square of it, this would take hours
