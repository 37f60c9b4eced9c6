import errno
import io
import os
from pathlib import Path

import pytest

from extproc.core.settings import Fault
from extproc.replay import read
from extproc.replay.drive import run
from extproc.replay.read import open_journal
from extproc.replay.result import Replayed
from tests.irregular import IRREGULAR, irregular
from tests.journaled import FLEET, routes, write
from tests.replay.replaying import LONG, command, replayed


def test_progress_is_told_in_bytes(path: Path) -> None:
    write(path, LONG * 10, file_bytes_max=40_000, files_max=9)
    told: list[tuple[int, int]] = []
    assert isinstance(run(path, None, lambda *both: told.append(both)), Replayed)
    size = sum(one.stat().st_size for one in path.parent.iterdir())
    assert told == sorted(told)
    assert told[-1] == (size, size)
    assert len(told) > 2


def test_ten_files_are_read_in_the_order_of_their_numbers(path: Path) -> None:
    write(path, LONG * 3, file_bytes_max=8000, files_max=100)
    (path.parent / f"{path.name}.tmp").write_bytes(b"no journal")
    (path.parent / f"{path.name}.01").write_bytes(b"no journal")
    found = replayed(path)
    assert len(found.files) > 10
    assert (found.identical, found.damaged) == (180, 0)


def test_what_is_no_journal_is_a_fault(tmp_path: Path) -> None:
    for path, reason in [
        (tmp_path / "journal", "No such file or directory"),
        (tmp_path / "no" / "journal", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ]:
        result = command(path)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"{path}: wanted a journal that can be read, got {reason}\n"


@pytest.mark.parametrize("suffix", ["", ".1"])
@pytest.mark.parametrize("kind", IRREGULAR)
def test_what_is_no_regular_file_is_a_fault_at_once(path: Path, suffix: str, kind: str) -> None:
    write(path, FLEET + routes(1))
    one = path.with_name(path.name + suffix)
    one.unlink(missing_ok=True)
    reason = irregular(one, kind)
    assert command(path).stderr == f"{one}: wanted a journal that can be read, got {reason}\n"


def test_what_is_written_meanwhile_is_not_read(path: Path) -> None:
    write(path, FLEET + routes(2))
    journal = open_journal(path)
    assert not isinstance(journal, Fault)
    count = len(path.read_bytes().splitlines())
    with path.open("ab") as file:
        file.write(b'{"call":"tick","now_s":9000}\n')
    path.rename(path.with_suffix(".1"))
    assert len(list(journal)) == count


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize("inside_a_line", [False, True])
def test_a_file_that_becomes_shorter_while_it_is_read_is_damage(path: Path, files: int, inside_a_line: bool) -> None:
    write(path, LONG * 10, file_bytes_max=2**26 if files == 1 else 100_000, files_max=4)
    oldest = path if files == 1 else path.with_name(f"{path.name}.{files - 1}")
    content = oldest.read_bytes()
    length = content.index(b"\n", len(content) // 3) + 1 + 9 * inside_a_line

    def cut(_done: int, _total: int) -> None:
        os.truncate(oldest, length)

    found = run(path, None, cut)
    assert isinstance(found, Replayed)
    assert len(found.files) == files
    told = [str(one) for one in found.damage if "became shorter" in str(one)]
    assert len(told) == 1
    assert told[0].endswith(
        f"wanted a file of {len(content)} bytes, got {length} bytes: it became shorter while it was read"
    )
    assert found.damaged == 1 + inside_a_line
    assert not found.good
    assert found.identical < 600


def test_a_file_that_cannot_be_read_to_its_end_is_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, LONG)

    class Failing(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 5000:
                raise OSError(errno.EIO, "Input/output error")
            return super().readline(size)

    monkeypatch.setattr(read, "open_regular", lambda one: Failing(one.read_bytes()))
    found = replayed(path)
    assert [str(one).partition(": ")[2] for one in found.damage] == ["wanted a readable file, got Input/output error"]
    assert (found.cut, found.good) == (0, False)
