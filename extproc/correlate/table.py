"""The signals as tables for people, at any width: columns that do not fit beside stand in a table below.

No figure is ever cut. Nothing of a journal is shown but numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from extproc.correlate.ranks import PAIRS_MIN, Rho
from extproc.correlate.result import NOTHING_MAX, TELLS_MIN, Correlated, Row, Says

WIDTH: Final = 150
"""Characters of a line that goes to a file."""
WIDTH_MIN: Final = 44
"""A narrower terminal breaks the lines of tables of this width."""
_GAP: Final = 2
"""Between two columns."""
_STYLES: Final = {Says.TELLS: "bold green", Says.FALLS: "bold red", Says.NOTHING: "dim", Says.ABSENT: "dim"}
MEANS: Final = {
    Says.TELLS: f"the first token comes later where it is higher: ρ is surely over {TELLS_MIN}",
    Says.A_LITTLE: f"the same, but ρ may be under {TELLS_MIN}",
    Says.NOTHING: f"ρ is surely under {NOTHING_MAX} either way, or the request's size says all of it: drop it",
    Says.FALLS: f"the first token comes sooner where it is higher, ρ is surely under -{NOTHING_MAX}: look at each node",
    Says.UNSURE: f"the interval is too wide to say, or fewer than {PAIRS_MIN} requests: record for longer",
    Says.CONSTANT: "it was the same for all requests",
    Says.ABSENT: "no node told it",
}
NO_FIRST_TOKENS: Final = (
    "No request of these has a first token: let its routes show the first piece of each answer "
    "(docs/correlate.md), and record again."
)


class _Column(NamedTuple):
    heading: str
    cells: Sequence[Text]
    right: bool = True

    @property
    def width(self) -> int:
        """Of its longest line."""
        return max(*map(len, self.heading.split("\n")), *map(len, self.cells))


def show(correlated: Correlated, console: Console) -> None:
    """Print all of it, as wide as a terminal is."""
    console.width = max(console.width, WIDTH_MIN) if console.is_terminal else WIDTH
    console.print(shown(correlated, console.width))


def shown(correlated: Correlated, width: int) -> RenderableType:
    """All of it, one part below the other."""
    return Group(*_parts(correlated, width))


def _parts(correlated: Correlated, width: int) -> Iterator[RenderableType]:
    if correlated.ttft_p50_s is None or correlated.ttft_p90_s is None:
        yield Text(f"{correlated.chosen} requests went to a node. {NO_FIRST_TOKENS}")
    else:
        yield Text(
            f"{correlated.requests} first tokens of {correlated.chosen} requests that went to a node; "
            f"median {_seconds(correlated.ttft_p50_s)}, 90 % within {_seconds(correlated.ttft_p90_s)}\n",
            "italic",
        )
        yield from _tables(correlated.rows, width)
        for says, text in MEANS.items():
            if any(row.says is says for row in correlated.rows):
                yield Text(f"{says.value}: {text}", "dim")
    yield from map(Text, _notes(correlated))


def _tables(rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """As few as hold all columns, each with the signals' names in front."""
    names = _Column("signal", [Text(row.signal) for row in rows], right=False)
    ends = [row.ttft_s_by_fifth[:1] + row.ttft_s_by_fifth[-1:] or (None, None) for row in rows]
    columns = [
        _Column("says", [Text(row.says.value, _STYLES.get(row.says, "")) for row in rows], right=False),
        _Column("ρ with TTFT\nbeside its size", [_rho(row.rho_beside) for row in rows]),
        _Column("ρ with TTFT", [_rho(row.rho) for row in rows]),
        _Column("known", [Text(f"{row.known:.0%}") for row in rows]),
        _Column("TTFT where\nit is low", [Text(_seconds(low)) for low, _ in ends]),
        _Column("and\nhigh", [Text(_seconds(high)) for _, high in ends]),
        _Column("what it is", [Text(row.text) for row in rows], right=False),
    ]
    beside: list[_Column] = [names]
    for column in columns:
        if len(beside) > 1 and sum(one.width + _GAP for one in beside) + column.width > width:
            yield from _filled(beside)
            beside = [names]
        beside.append(column)
    yield from _filled(beside)


def _filled(columns: Sequence[_Column]) -> tuple[Table, Text]:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in columns:
        table.add_column(
            column.heading, justify="right" if column.right else "left", width=column.width, overflow="fold"
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table, Text()


def _notes(correlated: Correlated) -> Iterator[str]:
    if correlated.stale:
        yield f"{correlated.stale} went to a node without a fresh snapshot and are left out."
    if correlated.moved:
        yield f"{correlated.moved} were served by another node than the chosen one and are left out."
    if correlated.without:
        yield f"{correlated.without} ended without a first token and are left out: the slowest may be among them."
    if correlated.left_out:
        yield f"{correlated.left_out} more first tokens were left out: the journal is too long for one look."
    if correlated.lines_damaged:
        yield f"{correlated.lines_damaged} of {correlated.lines} lines are damaged: numbers of ours are not exact."
    if correlated.decisions_not_compared:
        yield (
            f"{correlated.decisions_not_compared} of {correlated.decisions} decisions stand where lines before them, "
            "as a run's beginning, are missing: numbers of ours are not exact there."
        )
    if correlated.decisions_different:
        yield (
            f"{correlated.decisions_different} of {correlated.decisions} decisions come out otherwise than recorded, "
            "as by another version of extproc: numbers of ours may not be those of then."
        )


def _rho(rho: Rho | None) -> Text:
    return Text("" if rho is None else f"{_signed(rho.value)} ({_signed(rho.low)} … {_signed(rho.high)})")


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # 0 is never -0


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
