"""How the tables look."""

from collections.abc import Sequence

from rich.table import Table


def made(*left: str, right: Sequence[str]) -> Table:
    """A table of names on the left and numbers on the right."""
    table = Table(title_justify="left", caption_justify="left")
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def verdict(aim: str, met: bool, got: str) -> str:
    """An aim and what became of it, as it stands under a table."""
    return f"aim: {aim}: {'[green]met' if met else '[red]missed'}, {got}"
