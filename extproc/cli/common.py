"""What commands share."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

if TYPE_CHECKING:
    from extproc.core.settings import Fault

CONFIG_FILE = click.Path(dir_okay=False, path_type=Path)


_UNWRITTEN: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to a file may fail with, and nothing that is asked of a network."""


class Commands(click.Group):
    """All commands. What cannot be written to standard output is told in a line, and ends with status 1.

    Files that commands name have faults of their own, and a pipe that nobody reads any more is no news: click ends then
    with status 1 and without a word.
    """

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command."""
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            if error.errno not in _UNWRITTEN or error.filename is not None:
                raise
            from extproc.core.settings import Fault

            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left of it fails no second time
            refuse([Fault("standard output", "room to write to", error.strerror or str(error))])


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


def let_grpc_log_errors_only() -> None:
    """For gRPC's core, which reads this once and otherwise writes a line of its own for each handshake that fails."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
