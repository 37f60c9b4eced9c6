import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import main
from extproc.config import parse
from extproc.core.settings import Fault
from extproc.journal import place
from extproc.journal.balancer import balancer
from extproc.journal.lines import BEGINNING
from tests.irregular import IRREGULAR, irregular
from tests.journaled import FLEET, START_S, config, no_fault, write


def fault_of(path: Path) -> str:
    """What keeps `serve` from starting, as `check` says it too."""
    fault = balancer(config(path), START_S, no_fault)
    assert isinstance(fault, Fault), fault
    assert place.fault_of(path) == fault
    return str(fault)


def test_a_folder_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "journal"
    assert fault_of(path) == f"journal.path: wanted a file that can be written, got {path}: No such file or directory"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert fault_of(tmp_path).endswith(f"{tmp_path}: Is a directory")


def test_a_device_is_no_file() -> None:
    assert fault_of(Path("/dev/null")).endswith("/dev/null: Not a regular file")
    assert Path("/dev/null").is_char_device()


def test_two_processes_do_not_write_one_journal(path: Path) -> None:
    with path.open("ab") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        assert str(balancer(config(path), START_S, no_fault)).endswith(f"{path}: another process writes it")
        assert place.fault_of(path) is None, "check a configuration while it serves"
    assert path.read_bytes() == b""


@pytest.mark.parametrize("kind", IRREGULAR)
def test_only_a_regular_file_is_a_journal(path: Path, kind: str) -> None:
    reason = irregular(path, kind)
    assert fault_of(path) == f"journal.path: wanted a file that can be written, got {path}: {reason}"


def test_a_folder_that_cannot_be_written_stops_the_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the file could be: when it is full it is renamed. (Tests may run as root, who may write anywhere.)"""
    write(path, FLEET)
    monkeypatch.setattr(os, "access", lambda folder, mode: (folder, mode) != (path.parent, os.W_OK | os.X_OK))
    assert fault_of(path).endswith(f"{path}: its folder is not writable")


@pytest.mark.parametrize("content", [b"\n", b"{}\n", b"text", b'{"call":"tick","now_s":1}\n', b"\0" * 9, BEGINNING[:9]])
def test_a_file_that_is_no_journal_is_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert fault_of(path).endswith(f"{path}: its first line is not a journal's")
    assert path.read_bytes() == content


def test_a_journal_goes_on_behind_any_other(path: Path) -> None:
    """Also behind one of a version to come, or whose first line was cut."""
    for content in (b"", BEGINNING, BEGINNING + b',"format":2,"more":1}\n{"call":"further"}\n'):
        path.write_bytes(content)
        assert place.fault_of(path) is None
        assert path.read_bytes() == content, "it is only tried"
        write(path, FLEET)
        assert path.read_bytes().startswith(content)
        assert calls_of_last_run(path)[1:] == ["models", "reported", "reported", "reported"]


def calls_of_last_run(path: Path) -> list[str]:
    run = path.read_bytes()
    return [json.loads(line)["call"] for line in run[run.rindex(BEGINNING) :].splitlines()]


def test_trying_makes_no_file(path: Path) -> None:
    assert place.fault_of(path) is None
    assert not path.exists()


def test_check_tries_the_journal(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text("journal: {path: extproc.journal}")
    result = CliRunner().invoke(main, ["check", str(file)])
    assert (result.exit_code, result.stdout) == (0, "OK\n")
    path.write_text("my notes")
    result = CliRunner().invoke(main, ["check", str(file)])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", fault_of(path) + "\n")


def test_settings_are_read_from_the_configuration(tmp_path: Path) -> None:
    read = parse({"journal": {"path": "a/journal", "file_bytes_max": "4MiB", "files_max": 2}}, folder=tmp_path)
    assert not isinstance(read, list), read
    assert read.journal.path == tmp_path / "a/journal"
    assert (read.journal.file_bytes_max, read.journal.files_max) == (4 * 2**20, 2)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"files_max": 1}, "journal.files_max: wanted greater than or equal to 2, got 1"),
        ({"files_max": 101}, "journal.files_max: wanted less than or equal to 100, got 101"),
        ({"file_bytes_max": "1MiB"}, "journal.file_bytes_max: wanted greater than or equal to 4194304, got 1048576"),
        ({"path": ""}, "journal.path: wanted a path, got ''"),
    ],
)
def test_settings_have_bounds(settings: dict[str, Any], fault: str) -> None:
    faults = parse({"journal": settings})
    assert isinstance(faults, list)
    assert [str(one) for one in faults] == [fault]
