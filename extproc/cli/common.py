"""What commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from extproc.core.settings import Fault

CONFIG_FILE = click.Path(dir_okay=False, path_type=Path)


def logged(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that runs until it is stopped the options of its log."""
    for option in (
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            show_default=True,
            help="The least that is logged.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["auto", "json", "text"]),
            default="auto",
            show_default=True,
            help="auto: text on a terminal, JSON elsewhere. Logs go to stderr.",
        ),
    ):
        command = option(command)
    return command


def refuse(faults: Iterable[Fault]) -> NoReturn:
    """Tell each fault in a line of stderr, and end with status 1."""
    for fault in faults:
        click.echo(str(fault), err=True)
    sys.exit(1)
