"""How far what was told is from what was needed, in figures and as a picture."""

from collections.abc import Sequence
from typing import Final

from bench.forecast.following import FORECAST, NAMES, Way
from bench.grid import Grid
from bench.strategies.spread import percent

BARS: Final = "▁▂▃▄▅▆▇█"
COLUMNS: Final = (
    "",
    "nodes",
    "mean error",
    "mean absolute",
    "within one",
    "too few",
    "by at most",
    "nodes / needed",
    "in time",
)


def row(name: str, way: Way, needed: Sequence[int]) -> Sequence[str]:
    """The figures of one way to tell; as many numbers as windows, one and more."""
    errors = [one - other for one, other in zip(way.told, needed, strict=True)]
    count = len(errors)
    return (
        name,
        f"{sum(way.told) / count:.2f}",
        f"{sum(errors) / count:+.2f}",
        f"{sum(map(abs, errors)) / count:.2f}",
        percent(round(sum(abs(one) <= 1 for one in errors) / count, 2)),
        percent(round(sum(one < 0 for one in errors) / count, 2)),
        str(max(0, -min(errors))),
        f"{sum(way.told) / sum(needed):.2f}",
        f"{way.in_time:.3f}",
    )


def grid(title: str, ways: Sequence[Way], needed: Sequence[int]) -> Grid:
    """A row for each way to tell, which are those of `NAMES`."""
    return Grid(title, COLUMNS, [row(name, way, needed) for name, way in zip(NAMES, ways, strict=True)])


def picture(told: Sequence[int], needed: Sequence[int]) -> str:
    """Two lines of bars, a bar for each window: a step for each node, or for more than one where there are many."""
    most = max(*told, *needed)
    lines = (("needed", needed), (FORECAST, told))
    return "\n".join(f"{name:9}{_bars(one, most)}  {min(one)} to {max(one)}" for name, one in lines)


def _bars(numbers: Sequence[int], most: int) -> str:
    steps = len(BARS)
    return "".join(BARS[max(1, one if most <= steps else round(steps * one / most)) - 1] for one in numbers)
