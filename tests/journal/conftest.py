from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.journal import place
from tests.journal.writing import Disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "extproc.journal"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Disk]]:
    monkeypatch.setattr(place, "FileIO", Disk)
    Disk.full = False
    Disk.free.set()
    yield Disk
    Disk.free.set()
