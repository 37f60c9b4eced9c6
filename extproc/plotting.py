"""A comparison as a picture. Needs matplotlib, which the extra `plot` brings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from extproc.core.settings import GOT_CHARS_MAX, Fault
from extproc.sim.compared import Compared, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".png", ".svg")
WRITABLE: Final = "a file that can be written"


def checked(file: Path) -> Fault | None:
    """What would keep `draw` from drawing there: asked before the work, and not after it."""
    if file.suffix not in SUFFIXES:
        return Fault("--plot", f"a file ending in {' or '.join(SUFFIXES)}", str(file)[:GOT_CHARS_MAX])
    try:
        if not file.parent.is_dir():
            return Fault("--plot", "a file in a folder that exists", str(file)[:GOT_CHARS_MAX])
        if file.exists() and not file.is_file():  # a pipe would wait for a reader for ever
            return Fault("--plot", "a regular file", str(file)[:GOT_CHARS_MAX])
    except OSError as error:  # such as a name that is too long
        return Fault("--plot", WRITABLE, error.strerror or str(error))
    try:
        import matplotlib  # noqa: F401, PLC0415 - optional
    except ImportError:
        return Fault("--plot", "matplotlib: pip install matplotlib", "no such module")
    return None


def draw(compared: Compared, title: str, file: Path) -> None:
    """Three panels: goodput, TTFT, slowdown; one group of bars for each load. Raises `OSError` if it cannot write."""
    from matplotlib import rc_context  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    loads = list(dict.fromkeys(row.load for row in compared.rows))
    figure = Figure(figsize=(6 + 1.2 * len(compared.rows), 9), layout="constrained")
    goodput, first_token, slowdown = figure.subplots(3, 1)
    for place, load in enumerate(loads):
        rows = [row for row in compared.rows if row.load == load]
        _bars(goodput, place, rows, [row.ngood for row in rows])
        _bars(first_token, place, rows, [row.ttft_p90_s for row in rows])
        _points(first_token, place, rows, [row.ttft_p99_s for row in rows])
        _bars(slowdown, place, rows, [row.slowdown for row in rows])
    for axes, label in (
        (goodput, "ngood"),
        (first_token, "TTFT p90 (bars), p99 (dots), s"),
        (slowdown, "mean slowdown"),
    ):
        axes.set_ylabel(label)
        axes.set_xticks(range(len(loads)), [f"load {load:g}" for load in loads])
        axes.grid(axis="y", alpha=0.3)
    goodput.set_ylim(0, 1)
    first_token.set_yscale("log")
    figure.suptitle(title, parse_math=False)  # a file's name may hold a $
    figure.legend(*goodput.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    # Without the date of today, and with names that are not drawn by lot, the same comparison is the same file.
    with rc_context({"svg.hashsalt": "extproc"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _place(group: int, index: int, count: int) -> float:
    return group + 0.8 * ((index + 0.5) / count - 0.5)


def _bars(axes: "Axes", group: int, rows: Sequence[Row], values: Sequence[float | None]) -> None:
    for index, (row, value) in enumerate(zip(rows, values, strict=True)):
        label = row.strategy if not group else None
        height = math.nan if value is None else value
        axes.bar(_place(group, index, len(rows)), height, 0.8 / len(rows), color=f"C{index}", label=label)


def _points(axes: "Axes", group: int, rows: Sequence[Row], values: Sequence[float | None]) -> None:
    for index, value in enumerate(values):
        if value is not None:
            axes.plot(_place(group, index, len(rows)), value, "o", color=f"C{index}", markeredgecolor="black")
