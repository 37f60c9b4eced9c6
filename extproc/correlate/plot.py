"""The signals as a picture, one panel each. Needs matplotlib, which the extra `plot` brings."""

from pathlib import Path
from typing import Final

from extproc.correlate.gather import Gathered
from extproc.correlate.result import Correlated, pairs_of

POINTS_MAX: Final = 3000
"""Requests drawn in a panel: of more, every so manieth."""
_COLUMNS: Final = 3


def draw(found: Gathered, correlated: Correlated, file: Path) -> None:
    """Each signal that changed against the time to the first token. Raises `OSError` if it cannot write."""
    from matplotlib import rc_context  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    rows = [row for row in correlated.rows if row.rho is not None]
    lines = max(1, -(-len(rows) // _COLUMNS))
    figure = Figure(figsize=(4 * _COLUMNS, 2.8 * lines + 0.6), layout="constrained")
    panels = list(figure.subplots(lines, _COLUMNS, squeeze=False).flat)
    for axes, row in zip(panels, rows, strict=False):
        values, ttft_s, _ = pairs_of(found, row.signal)
        every = -(-len(values) // POINTS_MAX)
        axes.plot(values[::every], ttft_s[::every], ".", markersize=2, alpha=0.4)
        best = row.rho_beside or row.rho
        assert best is not None
        axes.set_title(f"{row.signal}: {row.says.value}, ρ {best.value:+.2f}", fontsize=9)
        axes.set_yscale("log")
        axes.tick_params(labelsize=7)
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    figure.supylabel("TTFT, s")
    figure.suptitle(f"{correlated.requests} requests: what was known of their nodes, and their first tokens")
    # Without the date of today, and with names that are not drawn by lot, the same journal is the same file.
    with rc_context({"svg.hashsalt": "extproc"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
