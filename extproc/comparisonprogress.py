"""How much there is to compare, and how far it is: for whoever waits."""

import time
from collections.abc import Callable
from typing import Final

from rich.console import Console

from extproc import runprogress
from extproc.runprogress import counted
from extproc.sim import comparison as comparisons
from extproc.sim.compared import Compared
from extproc.sim.comparison import CAPACITY, Comparison

MEASURING: Final = "measuring what the fleet can carry, once for each seed …"


def run(comparison: Comparison, jobs: int, console: Console, clock: Callable[[], float] = time.monotonic) -> Compared:
    """Compare; say before it how many runs there are, and show on a terminal a bar."""
    console.print(_announced(comparison, jobs), highlight=False, soft_wrap=True)
    with runprogress.told(console, jobs, clock) as told:

        def tell(what: str, done: int, of: int) -> None:
            if what == CAPACITY and not done:
                console.print(MEASURING)
            told(what, done, of)

        return comparisons.compare(comparison, jobs, tell)


def _announced(comparison: Comparison, jobs: int) -> str:
    strategies, loads, seeds = len(comparison.contenders), len(comparison.loads), comparison.seeds
    return (
        f"{counted(strategies * loads * seeds, 'run')} (strategies {strategies} × loads {loads} × seeds {seeds}) of "
        f"{comparison.requests:,} requests on {counted(len(comparison.fleet.nodes), 'node')}, {jobs} at a time"
    )
