"""Opening a file that somebody named: a pipe that nobody writes, a device or a folder is refused."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

NOT_REGULAR = "Not a regular file"


def open_regular(path: Path) -> BinaryIO:
    """The file, to be read. Never waits for a pipe's other end.

    Raises `OSError`, whose `strerror` says why, for what is no regular file, cannot be opened or is no name of a file.
    """
    try:
        return open(path, "rb", opener=opener)
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, str(error), str(path)) from None


def opener(path: str, flags: int) -> int:
    """The `opener` of `open` and `FileIO` for regular files only. Raises `OSError`."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nobody reads
            raise OSError(errno.EINVAL, NOT_REGULAR, path) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, NOT_REGULAR, path)
