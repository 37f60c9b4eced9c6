"""A journal that is being written, and what stands in it."""

import errno
import json
import os
import threading
from io import FileIO
from pathlib import Path
from typing import Any

from extproc.journal.balancer import JournaledBalancer, balancer
from tests.journaled import START_S, config
from tests.waiting import until

NOW_S = START_S + 60


def lines_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def calls_of(path: Path) -> list[str]:
    return [line["call"] for line in lines_of(path)]


class Faults:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


class Disk(FileIO):
    """A file that takes half of what is to be written, or nothing until it may."""

    full = False
    free = threading.Event()

    def write(self, content: Any, /) -> int:
        assert Disk.free.wait(30), "nobody let it go"
        if Disk.full:
            super().write(bytes(content[: len(content) // 2]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


def start(path: Path, faults: Faults) -> JournaledBalancer:
    one = balancer(config(path), START_S, faults)
    assert isinstance(one, JournaledBalancer)
    return one


async def flushed(one: JournaledBalancer, now_s: float) -> None:
    """Everything that was called so far, and a tick more, is written or lost."""
    one.tick(now_s)
    await until(lambda: one.unwritten_bytes == 0)
