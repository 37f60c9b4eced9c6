"""The signals as a table for people."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from extproc.correlate.ranks import Rho
from extproc.correlate.result import Correlated, Row, Says

_STYLES = {Says.TELLS: "bold green", Says.FALLS: "bold red", Says.NOTHING: "dim", Says.ABSENT: "dim"}
NO_FIRST_TOKENS = (
    "No request of this journal has a first token: let its routes show the first piece of each answer "
    "(docs/envoy.md), and record again."
)


def shown(correlated: Correlated) -> RenderableType:
    """All of it, one part below the other."""
    return Group(*_parts(correlated))


def _parts(correlated: Correlated) -> Iterator[RenderableType]:
    if correlated.ttft_p50_s is None or correlated.ttft_p90_s is None:
        yield Text(f"{correlated.chosen} requests went to a node. {NO_FIRST_TOKENS}")
        return
    yield Text(
        f"{correlated.requests} first tokens of {correlated.chosen} requests that went to a node; "
        f"median {_seconds(correlated.ttft_p50_s)}, 90 % within {_seconds(correlated.ttft_p90_s)}",
        "italic",
    )
    yield _table(correlated.rows)
    yield from _notes(correlated)


def _table(rows: tuple[Row, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("signal", no_wrap=True)
    table.add_column("what it is")
    table.add_column("known", justify="right")
    table.add_column("ρ with TTFT", justify="right", no_wrap=True)
    table.add_column("beside its size", justify="right", no_wrap=True)
    table.add_column("TTFT where lowest", justify="right")
    table.add_column("and highest", justify="right")
    table.add_column("says", no_wrap=True)
    for row in rows:
        ends = [_seconds(one) for one in row.ttft_s_by_fifth[:1] + row.ttft_s_by_fifth[-1:]] or ["", ""]
        says = Text(row.says.value, _STYLES.get(row.says, ""))
        table.add_row(row.signal, row.text, f"{row.known:.0%}", _rho(row.rho), _rho(row.rho_beside), *ends, says)
    return table


def _notes(correlated: Correlated) -> Iterator[Text]:
    if correlated.stale:
        yield Text(f"{correlated.stale} went to a node without a fresh snapshot and are left out.")
    if correlated.moved:
        yield Text(f"{correlated.moved} were served by another node than the chosen one and are left out.")
    if correlated.left_out:
        yield Text(f"{correlated.left_out} more first tokens were left out: the journal is too long for one look.")
    if correlated.lines_damaged:
        yield Text(
            f"{correlated.lines_damaged} of {correlated.lines} lines are damaged: numbers of ours are not exact."
        )


def _rho(rho: Rho | None) -> str:
    return "" if rho is None else f"{rho.value:+.2f} ({rho.low:+.2f} … {rho.high:+.2f})"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
