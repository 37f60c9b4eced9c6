"""What may stand where a file is named, and is none."""

import os
import socket
from pathlib import Path

IRREGULAR = ["pipe", "device", "folder", "socket"]


def irregular(path: Path, kind: str) -> str:
    """Make one; why it is not opened."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
            return "Is a directory"
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        case _:
            raise AssertionError(kind)
    return "Not a regular file"
