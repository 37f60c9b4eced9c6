"""What a replay found, for people. A journal may be hostile: what it says is shown without its control characters."""

from collections.abc import Iterator

from msgspec import structs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from extproc.journal.lines import Decided, encode
from extproc.replay.result import Choices, Comparison, Difference, Replayed

NODES_SHOWN_MAX = 40
VALUE_CHARS_MAX = 200
"""Of a value that differs."""


def shown(replayed: Replayed) -> RenderableType:
    """All of it, one part below the other."""
    parts: list[RenderableType] = [_summary(replayed)]
    if replayed.comparison is not None:
        parts += [Text(), *_comparison(replayed.comparison)]
    parts += _listed("different", replayed.different, [line for one in replayed.differences for line in _lines(one)])
    parts += _listed("damaged", replayed.damaged, [str(fault) for fault in replayed.damage])
    return Group(*parts)


def _summary(replayed: Replayed) -> Table:
    table = _table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    rows: list[tuple[str, int, str]] = [
        ("files", len(replayed.files), ", ".join(replayed.files)),
        ("lines", replayed.lines, f"of {replayed.runs} run(s), by extproc {', '.join(replayed.versions) or '?'}"),
        ("decisions", replayed.decisions, ""),
        ("identical", replayed.identical, ""),
        ("different", replayed.different, ""),
    ]
    rows += [("not compared", count, doubt) for doubt, count in replayed.not_compared.items()]
    if replayed.not_compared:
        rows.append(("", replayed.not_compared_same_node, "of these went to the same node nevertheless, or to none"))
    if replayed.lines_lost:
        rows.append(("lines lost", replayed.lines_lost, "when they were to be written"))
    if replayed.damaged:
        rows.append(("lines damaged", replayed.damaged, ""))
    if replayed.cut:
        rows.append(("lines cut", replayed.cut, "at a run's end, which harms nothing"))
    if replayed.unread:
        rows.append(("lines not read", replayed.unread, "behind a first line that cannot be used"))
    for name, count, remark in rows:
        table.add_row(name, f"{count:,}", Text(_plain(remark)))
    return table


def _comparison(comparison: Comparison) -> Iterator[RenderableType]:
    count = comparison.decisions
    yield Text(comparison.caveat)
    share = f" ({comparison.same_node / count:.1%})" if count else ""
    yield Text(f"{count:,} requests: {comparison.same_node:,} to the same node{share}, {comparison.other_node:,} not")
    table = _table(show_header=True)
    table.add_column("requests to")
    table.add_column("recorded", justify="right")
    table.add_column(Text(_plain(comparison.policy)), justify="right")
    for name, *values in _rows(comparison.recorded, comparison.would_be):
        table.add_row(Text(_plain(name)), *values)
    yield table


def _rows(*sides: Choices) -> Iterator[list[str]]:
    nodes = sorted({node_id for one in sides for node_id in one.per_node})
    for node_id in nodes[:NODES_SHOWN_MAX]:
        yield [node_id, *(f"{one.per_node.get(node_id, 0):,}" for one in sides)]
    if rest := nodes[NODES_SHOWN_MAX:]:
        yield [f"{len(rest)} more nodes", *(f"{sum(one.per_node.get(node, 0) for node in rest):,}" for one in sides)]
    yield ["nobody (refused)", *(f"{one.refused:,}" for one in sides)]
    yield ["Envoy's own cluster", *(f"{one.unknown:,}" for one in sides)]
    yield ["nobody yet (they wait)", *(f"{one.queued:,}" for one in sides)]
    means = [one.uncached_tokens_mean for one in sides]
    yield ["mean uncached tokens", *("–" if mean is None else f"{mean:,.1f}" for mean in means)]


def _listed(name: str, count: int, lines: list[str]) -> Iterator[RenderableType]:
    if count:
        yield Text(f"\n{name} ({count:,}):")
        for line in lines:
            yield Text(_plain(line), overflow="fold")


def _lines(difference: Difference) -> Iterator[str]:
    """Each part of a decision that came out otherwise."""
    where = f"{difference.where}: {difference.request_id}"
    wanted, got = _parts(difference.wanted), _parts(difference.got)
    for name in sorted(wanted.keys() | got.keys()):
        one, other = wanted.get(name, "nothing"), got.get(name, "nothing")
        if one != other:
            yield f"{where}: {name}: wanted {_cut(one)}, got {_cut(other)}"


def _parts(decided: Decided | None) -> dict[str, str]:
    if decided is None:
        return {"decision": "an error of ours"}
    parts = structs.asdict(decided)
    return {name: encode(value).decode() for name, value in parts.items() if value is not None}


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def _plain(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def _table(*, show_header: bool) -> Table:
    return Table(box=None, pad_edge=False, show_header=show_header)
