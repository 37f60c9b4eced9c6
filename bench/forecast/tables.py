"""How far what was told is from what was needed, in figures and as a picture."""

from collections.abc import Mapping, Sequence
from typing import Final

from bench.forecast.following import FORECAST
from bench.grid import Grid
from bench.strategies.spread import percent

BARS: Final = "▁▂▃▄▅▆▇█"
COLUMNS: Final = (
    "",
    "nodes, mean",
    "error, mean",
    "absolute",
    "within one",
    "too few",
    "at most too few",
    "node-hours / needed",
    "in time if followed",
)


def row(name: str, told: Sequence[int], needed: Sequence[int], in_time: float) -> Sequence[str]:
    """The figures of one way to tell; as many numbers as windows, one and more."""
    errors = [one - other for one, other in zip(told, needed, strict=True)]
    count = len(errors)
    return (
        name,
        f"{sum(told) / count:.2f}",
        f"{sum(errors) / count:+.2f}",
        f"{sum(map(abs, errors)) / count:.2f}",
        _share(sum(abs(one) <= 1 for one in errors) / count),
        _share(sum(one < 0 for one in errors) / count),
        str(max(0, -min(errors))),
        f"{sum(told) / sum(needed):.2f}",
        f"{in_time:.3f}",
    )


def grid(title: str, told: Mapping[str, Sequence[int]], needed: Sequence[int], in_time: Mapping[str, float]) -> Grid:
    """A row for each way to tell."""
    return Grid(title, COLUMNS, [row(name, numbers, needed, in_time[name]) for name, numbers in told.items()])


def picture(told: Sequence[int], needed: Sequence[int]) -> str:
    """Two lines of bars, a bar for each window, from 0 to the most of both."""
    most = max(*told, *needed)
    lines = (("needed", needed), (FORECAST, told))
    return "\n".join(f"{name:9}{_bars(one, most)}  {min(one)} to {max(one)}" for name, one in lines)


def _bars(numbers: Sequence[int], most: int) -> str:
    return "".join(BARS[max(0, round(len(BARS) * one / most) - 1)] for one in numbers)


def _share(share: float) -> str:
    return percent(round(share, 2))
