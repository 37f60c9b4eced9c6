"""What people see of it, and what each word means."""

import io
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from extproc.correlate.ranks import Rho
from extproc.correlate.result import Correlated, Row, Says, _says
from extproc.correlate.signals import SIGNALS
from extproc.correlate.table import MEANS, WIDTH, WIDTH_MIN, show

RHO = Rho(-0.81, -0.92, -0.003)
ROWS = tuple(
    Row(signal.name, signal.text, 1.0, says, RHO, Rho(0.123, -0.004, 0.456), (0.0123, 0.2, 123.456))
    for signal, says in zip(SIGNALS, [*Says] * 3, strict=False)
)
FIGURES = ("-0.81 (-0.92 … +0.00)", "+0.12 (+0.00 … +0.46)", "100%", "12 ms", "123.46 s")


def correlated(rows: tuple[Row, ...] = ROWS, changes: Mapping[str, int] = MappingProxyType({})) -> Correlated:
    counts = dict.fromkeys(Correlated.__struct_fields__, 0) | {"requests": 40, "chosen": 50} | dict(changes)
    return Correlated(**counts | {"ttft_p50_s": 0.25, "ttft_p90_s": 1.5, "rows": rows})  # type: ignore[arg-type]


def printed(found: Correlated, width: int, *, terminal: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)
    show(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [20, WIDTH_MIN, 60, 80, 100, 120, 150, 300])
def test_no_figure_is_cut_at_any_width(width: int) -> None:
    text = printed(correlated(), width)
    for row in ROWS:
        assert row.says.value in text
        assert text.count(row.signal) >= 1
    assert all(text.count(figure) >= len(ROWS) for figure in FIGURES)
    assert max(map(len, text.splitlines())) <= max(width, WIDTH_MIN)


def test_what_goes_to_a_file_is_one_table() -> None:
    lines = printed(correlated(), 20, terminal=False).splitlines()
    assert sum(line.startswith("signal ") for line in lines) == 1
    assert max(map(len, lines)) <= WIDTH


def test_words_that_are_used_are_explained_and_no_others() -> None:
    assert set(MEANS) == set(Says)
    for row in ROWS:
        text = printed(correlated((row,)), 300)
        assert [says for says in Says if f"\n{says.value}: " in text] == [row.says]


@pytest.mark.parametrize(
    ("rho", "says"),
    [
        (Rho(0.5, 0.3, 0.7), Says.TELLS),
        (Rho(0.5, 0.29, 0.7), Says.A_LITTLE),
        (Rho(0.1, 0.01, 0.2), Says.A_LITTLE),
        (Rho(0.05, 0.01, 0.09), Says.NOTHING),
        (Rho(0.0, -0.09, 0.09), Says.NOTHING),
        (Rho(0.0, -0.1, 0.09), Says.UNSURE),
        (Rho(0.0, -0.09, 0.1), Says.UNSURE),
        (Rho(-0.06, -0.11, -0.02), Says.UNSURE),
        (Rho(-0.2, -0.3, -0.09), Says.UNSURE),
        (Rho(-0.2, -0.3, -0.1), Says.FALLS),
        (Rho(0.5, -0.3, 0.9), Says.UNSURE),
        (None, Says.NOTHING),
    ],
)
def test_a_word_needs_the_whole_interval(rho: Rho | None, says: Says) -> None:
    assert _says(rho) is says


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_every_interval_has_a_word_that_is_no_bolder_than_it(value: float, below: float, above: float) -> None:
    rho = Rho(value, max(-1.0, value - below), min(1.0, value + above))
    if rho.low <= 0 <= rho.high:
        assert _says(rho) in (Says.NOTHING, Says.UNSURE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stale", "3 went to a node without a fresh snapshot"),
        ("moved", "3 were served by another node"),
        ("without", "3 ended without a first token"),
        ("left_out", "3 more first tokens"),
        ("lines_damaged", "3 of 0 lines are damaged"),
        ("decisions_not_compared", "3 of 0 decisions stand where"),
        ("decisions_different", "3 of 0 decisions come out otherwise"),
    ],
)
def test_what_weakens_it_is_told(name: str, words: str) -> None:
    assert words in printed(correlated(changes={name: 3}), 150)
    assert words not in printed(correlated(), 150)
