"""How much there is to compare, how far it is, and how long it may still take: for whoever waits."""

import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from extproc.sim import comparison as comparisons
from extproc.sim.compared import Compared
from extproc.sim.comparison import Comparison

TOLD_S_MIN: Final = 60.0
"""What takes longer is told in a line of its own as soon as it is known."""


def run(comparison: Comparison, jobs: int, console: Console, clock: Callable[[], float] = time.monotonic) -> Compared:
    """Compare; say before it how many runs there are, and show on a terminal a bar."""
    console.print(_announced(comparison, jobs), highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", left="")
        pace = _Pace(jobs, clock)

        def tell(what: str, done: int, of: int) -> None:
            left_s = pace.left_s(what, done, of)
            left = "" if left_s is None else f"about {duration(left_s)} to go"
            progress.update(bar, description=what, completed=done, total=of, left=left)
            if done == 1 and left_s is not None and left_s >= TOLD_S_MIN:
                console.print(f"{what}: 1 of {of} done, {left}", highlight=False, soft_wrap=True)

        return comparisons.compare(comparison, jobs, tell)


class _Pace:
    """What is left takes as long each as what is done, so many at a time. The first ones come from all processes."""

    def __init__(self, jobs: int, clock: Callable[[], float]) -> None:
        self._jobs = jobs
        self._clock = clock
        self._what = ""
        self._begun_s = 0.0

    def left_s(self, what: str, done: int, of: int) -> float | None:
        """`None` before the first is done."""
        if what != self._what:
            self._what, self._begun_s = what, self._clock()
        if not done:
            return None
        return (self._clock() - self._begun_s) / max(done, min(self._jobs, of)) * (of - done)


def duration(seconds: float) -> str:
    """Roughly: `40 s`, `12 min`, `7.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _announced(comparison: Comparison, jobs: int) -> str:
    strategies, loads, seeds = len(comparison.contenders), len(comparison.loads), comparison.seeds
    return (
        f"{strategies * loads * seeds} runs (strategies {strategies} × loads {loads} × seeds {seeds}) of "
        f"{comparison.requests} requests on {len(comparison.fleet.nodes)} nodes, {jobs} at a time; "
        f"before them the capacity for each seed"
    )
