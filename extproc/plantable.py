"""How many nodes are needed, as tables and a sentence for people."""

from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from extproc.planning import Planning
from extproc.runprogress import counted
from extproc.sim.fleetsize import Sized, Sizing, Window
from extproc.sim.nodesneeded import Needed, Tried

WIDTH: Final = 140
"""Characters of a line that goes to a file."""
WIDTH_MIN: Final = 80
"""A narrower terminal breaks the lines: no figure is cut."""
WINDOWS_SHOWN_MAX: Final = 1500
"""A day of minutes; `--json` has all."""
BAR_CHARS_MAX: Final = 40
LINE_CHARS_MAX: Final = 200
"""No line of these tables is longer."""


def show(planning: Planning, sized: Sized, console: Console) -> None:
    """Print what was tried, the windows if there are any, and the answer."""
    parts = tables(planning.sizing, sized)
    least = WIDTH_MIN if console.is_terminal else WIDTH
    console.width = max(console.width if console.is_terminal else 0, least, *(_width(part, console) for part in parts))
    console.print(Group(*parts, *map(Text, answers(planning.sizing, sized))))


def tables(sizing: Sizing, sized: Sized) -> list[RenderableType]:
    """What was tried, and the windows."""
    if not sized.windows:
        return [_tried(sized.needed), Text()]
    return [_tried(sized.needed), Text(), _windows(sized, sizing.nodes_max), *_windows_left(sized), Text()]


def _width(part: RenderableType, console: Console) -> int:
    """Of its widest line: rich cuts what does not fit."""
    return Measurement.get(console, console.options.update(max_width=LINE_CHARS_MAX), part).maximum


def answers(sizing: Sizing, sized: Sized) -> Iterator[str]:
    """How many nodes, what speaks for it, and what it is worth: a sentence each."""
    found, most = sized.needed, sized.needed.tried[-1]
    at = found.at_answer
    in_time = f"within {sizing.objective.ttft_s:g} s"
    if sizing.objective.tpot_s is not None:
        in_time += f", and {sizing.objective.tpot_s:g} s from token to token"
    wanted = f"{sizing.objective.share * 100:.10g} % are wanted"
    if at is None:
        yield (
            f"Not even {counted(most.nodes, 'node')} would be enough: {_percent(most)} % of "
            f"{counted(most.requests, 'request')} had their first token {in_time}; {wanted}."
        )
    else:
        fewer = next((one for one in found.tried if one.nodes == at.nodes - 1), None)
        than = "" if fewer is None else f", with {counted(fewer.nodes, 'node')} {_percent(fewer)} %"
        yield (
            f"{counted(at.nodes, 'node')} would be enough: {_percent(at)} % of {counted(at.requests, 'request')} had "
            f"their first token {in_time}{than}; {wanted}."
        )
    if sized.slow_alone and at is None:
        yield (
            f"{counted(sized.slow_alone, 'request')} of {sizing.span.requests:,} would not have it in time on an idle "
            "node either, where nothing of the prompt is cached."
        )
    if found.enough_below:
        fewer_nodes = " and ".join(f"{nodes:,}" for nodes in found.enough_below)
        yield (
            f"{fewer_nodes} would have been enough too, though more were not: so near to each other they differ by "
            "chance. More --seeds tell more."
        )
    if sized.nodes_mean is not None:
        nodes = [one.nodes or 0 for one in sized.windows]
        yield f"Window by window {min(nodes):,} to {max(nodes):,} would be, {sized.nodes_mean:.3g} in the mean."


def _tried(found: Needed) -> Table:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    seeds = any(one.share_worst is not None for one in found.tried)
    headings = ["nodes", "in time\n%", *(["worst\nseed %"] if seeds else []), "TTFT\np50 s", "TTFT\np90 s"]
    headings += ["TTFT\np99 s", "TPOT\np99 s", "refused", "failed"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in found.tried:
        worst = [] if one.share_worst is None else [_floored(one.share_worst)]
        table.add_row(
            f"{one.nodes:,}",
            _percent(one),
            *worst,
            *(_shown(value) for value in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s)),
            _shown(one.tpot_p99_s, 3),
            f"{one.refused:,}",
            f"{one.failed:,}",
            "answer" if one.nodes == found.nodes else "enough" if one.enough else "",
        )
    return table


def _windows(sized: Sized, nodes_max: int) -> Table:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("from s", "requests", "per s", "nodes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max(nodes_max if one.nodes is None else one.nodes for one in sized.windows)
    for one in sized.windows[:WINDOWS_SHOWN_MAX]:
        table.add_row(
            f"{one.from_s:,.10g}",
            f"{one.requests:,}",
            f"{one.requests / (one.until_s - one.from_s):.3g}",
            f"> {nodes_max:,}" if one.nodes is None else f"{one.nodes:,}",
            _bar(one, nodes_max, most),
        )
    return table


def _windows_left(sized: Sized) -> list[Text]:
    left = len(sized.windows) - WINDOWS_SHOWN_MAX
    return [Text(f"{left:,} more, which --json names")] if left > 0 else []


def _bar(window: Window, nodes_max: int, most: int) -> str:
    """A character for each node where they fit, else in proportion; what is not known to be enough ends in `>`."""
    nodes = nodes_max if window.nodes is None else window.nodes
    chars = nodes if most <= BAR_CHARS_MAX else -(-nodes * BAR_CHARS_MAX // most)
    return "█" * chars + (">" if window.nodes is None else "")


def _percent(tried: Tried) -> str:
    """Rounded down, so that what is too few never looks like enough."""
    return f"{tried.met * 10_000 // tried.requests / 100:.2f}"


def _floored(share: float) -> str:
    return f"{int(share * 10_000 + 1e-6) / 100:.2f}"


def _shown(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
