"""The signals as a picture, one panel each. Needs matplotlib, which the extra `plot` brings."""

from pathlib import Path
from statistics import median
from typing import Final

from extproc.correlate.gather import Gathered
from extproc.correlate.ranks import groups
from extproc.correlate.result import Correlated, pairs_of

POINTS_MAX: Final = 3000
"""Requests drawn in a panel: of more, every so manieth."""
_COLUMNS: Final = 3
_SKEW_MAX: Final = 6
"""Where the highest value is more than so many medians, its axis is logarithmic from the median on."""


def draw(found: Gathered, correlated: Correlated, file: Path) -> None:
    """Each signal that changed against the time to the first token. Raises `OSError` if it cannot write."""
    from matplotlib import rc_context  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    rows = [row for row in correlated.rows if row.rho is not None]
    lines = max(1, -(-len(rows) // _COLUMNS))
    figure = Figure(figsize=(4 * _COLUMNS, 2.9 * lines + 0.7), layout="constrained")
    panels = list(figure.subplots(lines, _COLUMNS, squeeze=False).flat)
    for axes, row in zip(panels, rows, strict=False):
        values, ttft_s, _ = pairs_of(found, row.signal)
        every = -(-len(values) // POINTS_MAX)
        axes.plot(values[::every], ttft_s[::every], ".", markersize=2, alpha=0.4)
        middles = [median(values[place] for place in group) for group in groups(values)]
        axes.plot(middles, row.ttft_s_by_fifth, "o-", color="black", markersize=4, linewidth=1)
        best, beside = (row.rho, "") if row.rho_beside is None else (row.rho_beside, " beside its size")
        assert best is not None
        axes.set_title(f"{row.signal}: {row.says.value}, ρ{beside} {best.value:+.2f}", fontsize=9)
        axes.set_xlabel(row.text, fontsize=8)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        if (middle := median(values)) > 0 and max(values) > _SKEW_MAX * middle:
            axes.set_xscale("symlog", linthresh=middle)
            axes.set_xlim(left=-0.1 * middle)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(labelsize=7)
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    figure.supylabel("TTFT, s")
    figure.suptitle(
        f"{correlated.requests} requests: what was known of their nodes, and their first tokens (lines: medians)",
        fontsize=11,
    )
    # Without the date of today, and with names that are not drawn by lot, the same journal is the same file.
    with rc_context({"svg.hashsalt": "extproc"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
