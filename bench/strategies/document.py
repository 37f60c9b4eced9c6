"""The simulated part of a document: from figures to text, and the text to its place between two marks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bench.grid import Grid
from bench.strategies import cases, checks, tables
from bench.strategies.cases import Case, Scope
from bench.strategies.tables import Found

BEGIN: Final = "<!-- simulated -->"
END: Final = "<!-- /simulated -->"


@dataclass(frozen=True, slots=True)
class Part:
    """One question, and how it is answered."""

    title: str
    cases: Callable[[Scope], list[Case]]
    grids: Callable[[Scope, Found], list[Grid]]
    checks: Callable[[Scope, Found], list[str]]
    """Sentences."""
    folded: Sequence[int] = ()
    """Places of tables that readers open to see."""


def _nothing(_scope: Scope, _found: Found) -> list[str]:
    return []


PARTS: Final[Mapping[str, Part]] = MappingProxyType(
    {
        "workloads": Part("Strategies", cases.of_workloads, tables.of_workloads, checks.of_workloads, (1, 2, 4, 5)),
        "snapshots": Part("The age of snapshots", cases.of_snapshots, tables.of_snapshots, checks.of_snapshots),
        "weights": Part("Weights", cases.of_weights, tables.of_weights, _nothing),
        "routers": Part("Several routers", cases.of_routers, tables.of_routers, _nothing, (1,)),
        "kv events": Part("KV events", cases.of_kv_events, tables.of_kv_events, _nothing),
        "failing": Part("A node that fails", cases.of_failing, tables.of_failing, _nothing),
    }
)


def written(parts: Iterable[str], scope: Scope, found: Found) -> str:
    """The text of these parts, in Markdown."""
    texts = [about(scope)]
    for name in parts:
        part = PARTS[name]
        grids = part.grids(scope, found)
        texts += [f"### {part.title}", *(f"- {one}" for one in part.checks(scope, found))]
        texts += [folded(grid) if place in part.folded else unfolded(grid) for place, grid in enumerate(grids)]
    return "\n\n".join(texts).replace(".\n\n- ", ".\n- ")


def unfolded(grid: Grid) -> str:
    """A table in Markdown."""
    return grid.markdown().rstrip()


def folded(grid: Grid) -> str:
    """The same as readers open it to see."""
    _, _, rest = unfolded(grid).partition("\n\n")
    return f"<details><summary>{grid.title}</summary>\n\n{rest}\n\n</details>"


def placed(document: str, text: str, begin_mark: str = BEGIN, end_mark: str = END) -> str | None:
    """The document with this text between the marks; `None` if it does not have both, once and in order.

    Of an empty document the text with the marks is all.
    """
    if not document:
        document = f"{begin_mark}\n{end_mark}\n"
    before, begin, rest = document.partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not (begin and end) or begin_mark in rest or end_mark in after:
        return None
    return f"{before}{begin_mark}\n{text}\n{end_mark}{after}"


def about(scope: Scope, wanted: Iterable[str] = cases.SETTINGS) -> str:
    """What was run, and which of the wanted settings was not at hand."""
    numbers: dict[int, list[str]] = {}
    for setting in scope.settings:
        numbers.setdefault(scope.requests or setting.requests, []).append(setting.name)
    requests = _listed([f"{number} ({_listed(names, '; ')})" for number, names in numbers.items()], "; ")
    if len(numbers) == 1:
        requests = str(next(iter(numbers)))
    seeds = f"{scope.seeds} seeds" if scope.seeds > 1 else "one seed"
    missing = [name for name in wanted if name not in {one.name for one in scope.settings}]
    absent = f" Without {_listed(missing, '; ')}, whose traces were not at hand." if missing else ""
    return (
        f"Eight nodes, {seeds}; requests in each run: {requests}. Figures are means of the seeds; in brackets the "
        f"greatest less the least.{absent}"
    )


def _listed(names: Sequence[str], between: str) -> str:
    return between.join(names)
