"""A comparison of strategies as tables for people, at any width: what does not fit beside stands below.

No figure is ever cut. Names of strategies that are too long are broken behind a colon, else anywhere.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from extproc.sim.compared import Compared, Missed, Row

WIDTH: Final = 140
"""Characters of a line that goes to a file."""
WIDTH_MIN: Final = 40
"""A narrower terminal breaks the lines of tables of this width."""
NODES_SHOWN_MAX: Final = 8
"""Of a larger fleet the table shows the smallest and the largest share."""
MISSED_SHOWN_MAX: Final = 10
"""Lines for each load of what never happened; and of the nodes in each line `MISSED_NODES_MAX`."""
MISSED_NODES_MAX: Final = 3
_GAP: Final = 2
"""Between two columns."""

_Column = tuple[str, list[str]]
"""A heading and the cell of each row."""


def show(compared: Compared, console: Console) -> None:
    """Print the tables, as wide as they are where nobody's terminal is narrower."""
    console.width = max(console.width, WIDTH_MIN) if console.is_terminal else WIDTH
    console.print(tables(compared, console.width))


def tables(compared: Compared, width: int) -> Group:
    """For each load how well requests fared, with the ratios to round robin, how it came, and what never happened."""
    parts: list[RenderableType] = []
    for load in dict.fromkeys(row.load for row in compared.rows):
        rows = [row for row in compared.rows if row.load == load]
        names = [row.strategy for row in rows]
        title = f"load {load:g}: {rows[0].rate_per_s:.3g} requests/s of {compared.capacity_per_s:.3g}"
        fared, how = _fared(rows), _how(rows)
        parts.append(Text(title, "italic"))
        for columns in [fared, how] if _fits(_broken(names), fared, width) else [fared + how]:
            parts += _side_by_side(names, columns, width)
        parts += _nodes(rows[0])
        parts += _classes(rows, width)
        parts += _never(compared, load, len(rows))
    return Group(*parts)


def _classes(rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """How each class fared, where there are any."""
    each = [(row.strategy, name, one) for row in rows for name, one in row.classes.items() if one.requests]
    if each:
        columns = [
            ("class", [name for _, name, _ in each]),
            ("requests", [f"{one.requests:.0f}" for *_, one in each]),
            ("ngood", [_shown(one.ngood, 3) for *_, one in each]),
            ("refused", [f"{one.refused:.0f}" for *_, one in each]),
            ("ngood of the rest", [_shown(one.ngood_accepted, 3) for *_, one in each]),
            ("TTFT p50 s", [_shown(one.ttft_p50_s) for *_, one in each]),
            ("TTFT p90 s", [_shown(one.ttft_p90_s) for *_, one in each]),
            ("TTFT p99 s", [_shown(one.ttft_p99_s) for *_, one in each]),
            ("queued p90 s", [_shown(one.queued_p90_s) for *_, one in each]),
        ]
        yield from _side_by_side([name for name, *_ in each], columns, width)


def _side_by_side(names: Sequence[str], columns: Sequence[_Column], width: int) -> Iterator[RenderableType]:
    """As few tables as hold all columns at this width, each with the names in front, a line below each."""
    shown = names if _fits(names, columns, width) else _broken(names)
    names_width = min(width // 2, _names_width(shown))
    table, left = _begun(names_width), width - names_width
    cells: list[list[str]] = []
    for heading, column in columns:
        least, most = _widths((heading, column))
        if cells and left < least + _GAP:
            yield from _filled(table, shown, cells)
            table, left, cells = _begun(names_width), width - names_width, []
        taken = max(least, min(most, left - _GAP))
        table.add_column(heading, width=taken, justify="right" if least == most else "left", overflow="fold")
        cells.append(column)
        left -= taken + _GAP
    yield from _filled(table, shown, cells)


def _broken(names: Sequence[str]) -> list[str]:
    return [name.replace(":", ":\n") for name in names]


def _names_width(names: Sequence[str]) -> int:
    return max(len(line) for name in ("strategy", *names) for line in name.splitlines())


def _fits(names: Sequence[str], columns: Sequence[_Column], width: int) -> bool:
    return _names_width(names) + sum(_widths(column)[0] + _GAP for column in columns) <= width


def _begun(names_width: int) -> Table:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("strategy", width=names_width, overflow="fold")
    return table


def _filled(table: Table, names: Sequence[str], columns: Sequence[list[str]]) -> tuple[Table, Text]:
    for cells in zip(names, *columns, strict=True):
        table.add_row(*map(Text, cells))
    return table, Text()


def _widths(column: _Column) -> tuple[int, int]:
    """That of its longest word, and that of its longest cell if that is more."""
    heading, cells = column
    least = max(len(word) for cell in (heading, *cells) for word in cell.split())
    return least, max(least, *map(len, cells))


def _fared(rows: Sequence[Row]) -> list[_Column]:
    columns = [
        ("ngood", [f"{row.ngood:.3f}" for row in rows]),
        ("ngood × rr", [_shown(row.ngood_vs_round_robin) for row in rows]),
        ("TTFT p50 s", [_shown(row.ttft_p50_s) for row in rows]),
        ("TTFT p90 s", [_shown(row.ttft_p90_s) for row in rows]),
        ("TTFT p99 s", [_shown(row.ttft_p99_s) for row in rows]),
        ("TTFT p90 × rr", [_shown(row.ttft_p90_vs_round_robin) for row in rows]),
        ("TPOT p99 s", [_shown(row.tpot_p99_s, 3) for row in rows]),
        ("slowdown", [_shown(row.slowdown) for row in rows]),
        ("slowdown × rr", [_shown(row.slowdown_vs_round_robin) for row in rows]),
    ]
    if any(row.ngood_spread is not None for row in rows):
        columns.insert(1, ("ngood spread", [_shown(row.ngood_spread, 3) for row in rows]))
    return columns


def _how(rows: Sequence[Row]) -> list[_Column]:
    columns = [
        ("preempted", [f"{row.preemptions:.0f}" for row in rows]),
        ("hits %", [f"{row.prefix_hits * 100:.1f}" for row in rows]),
        ("refused", [f"{row.refused:.0f}" for row in rows]),
        ("failed", [f"{row.failed:.0f}" for row in rows]),
        ("% of the requests for each node", [_shares(row) for row in rows]),
    ]
    if any(row.refused for row in rows):
        columns.insert(3, ("ngood of the rest", [_shown(row.ngood_accepted, 3) for row in rows]))
    return columns


def _shares(row: Row) -> str:
    shares = [share * 100 for share in row.per_node.values()]
    if len(shares) > NODES_SHOWN_MAX:
        return f"{min(shares):.1f} to {max(shares):.1f}"
    return " ".join(f"{share:.1f}" for share in shares)


def _nodes(row: Row) -> list[Text]:
    """Which nodes the shares belong to, where their names say more than their place."""
    names = list(row.per_node)
    if len(names) > NODES_SHOWN_MAX or names == [f"node-{place}" for place in range(1, len(names) + 1)]:
        return []
    return [Text(f"nodes, as their shares stand: {', '.join(names)}"), Text()]


def _shown(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _never(compared: Compared, load: float, strategies: int) -> list[Text]:
    """Who reads that nothing failed shall know that nothing could."""
    found: dict[tuple[str, float], list[Missed]] = {}
    for one in compared.missed:
        if one.load == load:
            found.setdefault((one.event, one.at_s), []).append(one)
    lines = [_line(ones, compared.seeds * strategies) for ones in found.values()]
    if rest := len(lines[MISSED_SHOWN_MAX:]):
        lines[MISSED_SHOWN_MAX:] = [f"{rest} more, which --json names"]
    title = f"load {load:g}: planned, but it never happened, since the runs were over before:"
    return [Text(line) for line in (title, *(f"  {line}" for line in lines), "")] if lines else []


def _line(missed: Sequence[Missed], runs: int) -> str:
    nodes = list(dict.fromkeys(one.node for one in missed))
    named = ", ".join(nodes[:MISSED_NODES_MAX])
    if rest := len(nodes[MISSED_NODES_MAX:]):
        named += f" and {rest} more"
    too_late = sum(one.runs for one in missed if one.node == nodes[0])
    last = "the last answer was over" if missed[0].felt_by_answers else "the last request came"
    until_s = max(one.felt_until_s for one in missed)
    what = f"{missed[0].event} at {missed[0].at_s:g} s"
    return f"{named}: {what}, in {too_late} of {runs} runs ({last} by {until_s:.1f} s)"
