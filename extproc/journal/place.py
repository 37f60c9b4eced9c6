"""Where a journal is written: `serve` appends to what is a journal already, and to nothing else."""

import contextlib
import errno
import os
from io import FileIO
from pathlib import Path

from extproc.core.settings import Fault
from extproc.journal.lines import BEGINNING
from extproc.regularfile import opener


def fault_of(path: Path) -> Fault | None:
    """What would keep `serve` from writing a journal there. Nothing is written; another `serve` may be writing it."""
    folder = path.parent
    try:
        os.scandir(folder).close()
        if not os.access(folder, os.W_OK | os.X_OK):  # full files are renamed
            return unwritable(path, PermissionError(errno.EACCES, "its folder is not writable"))
        with contextlib.suppress(FileNotFoundError):  # it will be made
            opened(path, "r+").close()
    except (OSError, ValueError) as error:
        return unwritable(path, error)
    return None


def opened(path: Path, mode: str) -> FileIO:
    """The file, if it is a journal or empty. Raises `OSError`, and `ValueError` for what is no name of a file."""
    file = FileIO(path, mode, opener=opener)
    if os.pread(file.fileno(), len(BEGINNING), 0) not in (b"", BEGINNING):
        file.close()
        raise OSError(errno.EINVAL, "its first line is not a journal's", str(path))
    return file


def unwritable(path: Path, error: OSError | ValueError) -> Fault:
    """The fault of the configuration that the error is."""
    reason = getattr(error, "strerror", None) or str(error)
    return Fault("journal.path", "a file that can be written", f"{path}: {reason}")
