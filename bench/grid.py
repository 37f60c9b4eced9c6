"""A table of a benchmark, for the terminal and for a document."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.table import Table

NOTHING: Final = "–"
"""What has no figure."""


@dataclass(slots=True)
class Grid:
    """A table for the terminal and for Markdown; the first column stands left, the others right."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rich(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left", caption="\n".join(self.notes), caption_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=not index)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a document."""
        lines = [self.columns, ["---"] + ["--:"] * (len(self.columns) - 1), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return "\n\n".join([f"**{self.title}**", table, *self.notes]) + "\n"
