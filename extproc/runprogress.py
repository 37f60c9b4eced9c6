"""How far long work is, and how long it may still take: for whoever waits."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

TOLD_S_MIN: Final = 60.0
"""What takes longer is told in a line of its own as soon as it is known; and again after so long, without a bar."""

Tell = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""


@contextmanager
def told(console: Console, jobs: int, clock: Callable[[], float] = time.monotonic) -> Iterator[Tell]:
    """On a terminal a bar, elsewhere a line now and then; `jobs` is how much is done at a time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", left="")
        pace = _Pace(jobs, clock)
        told_s = clock()

        def tell(what: str, done: int, of: int) -> None:
            nonlocal told_s
            left_s = pace.left_s(what, done, of)
            left = "" if left_s is None else f"about {duration(left_s)} to go"
            # Before the first is done nobody knows how far it is: the bar moves, and stands for nothing.
            progress.update(bar, description=what, completed=done, total=of if done else None, left=left)
            first = done == 1 and left_s is not None and left_s >= TOLD_S_MIN
            again = not console.is_terminal and clock() - told_s >= TOLD_S_MIN
            if first or (0 < done < of and again):
                told_s = clock()
                console.print(f"{what}: {done} of {of} done, {left}", highlight=False, soft_wrap=True)

        yield tell


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


def counted(number: int, what: str) -> str:
    """As `1 run` and `2,000 runs`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
