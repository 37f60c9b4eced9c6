"""Replaying a journal, and changing one."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from extproc import cli
from extproc.replay.drive import run
from extproc.replay.follow import Follower
from extproc.replay.other import Other
from extproc.replay.result import Replayed
from tests.journaled import FLEET, Call, routes

WAIT: list[Call] = [("wait", {"seconds": 2.0})]
LONG: list[Call] = [*FLEET, *(FLEET + routes(3) + WAIT) * 20]
"""60 requests."""


def replayed(path: Path, other: Other | None = None) -> Replayed:
    found = run(path, other, lambda _done, _total: None)
    assert isinstance(found, Replayed), found
    return found


def command(path: Path, *options: str) -> Result:
    result = CliRunner().invoke(cli.main, ["replay", str(path), *options])
    assert not isinstance(result.exception, Exception), result.exception
    return result


@contextmanager
def followers() -> Iterator[list[Follower]]:
    """The balancers that are made meanwhile."""
    made: list[Follower] = []
    keep = Follower.__init__

    def kept(self: Follower, *arguments: Any) -> None:
        made.append(self)
        keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Follower, "__init__", kept)
        yield made


Edit = Callable[[dict[str, Any]], None]


def edited(path: Path, call: str, edit: Edit, which: int = 0) -> int:
    """Change one line; its number."""
    lines = path.read_bytes().splitlines()
    number = [place for place, line in enumerate(lines) if json.loads(line)["call"] == call][which]
    content = json.loads(lines[number])
    edit(content)
    lines[number] = json.dumps(content).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return number + 1
