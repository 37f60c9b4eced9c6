"""Standard output that takes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journaled import FLEET, routes, write
from tests.tokens.bpe import train

SIMULATE = ("simulate", "--trace", "generated:conv", "--nodes", "1", "--requests", "10", "--jobs", "1")
COMMANDS = [
    ("--help",),
    ("check", "a.yaml"),
    ("count", "--tokenizer", "t.json", "a.yaml"),
    ("count", "--tokenizer", "t.json", "--json", "a.yaml"),
    ("replay", "journal"),
    ("replay", "journal", "--json"),
    SIMULATE,
    (*SIMULATE, "--json"),
    ("plan", "--trace", "generated:conv", "--requests", "10", "--jobs", "1"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text("{}")
    train(tmp_path / "t.json")
    write(tmp_path / "journal", FLEET + routes(2))
    return tmp_path


def run(folder: Path, command: tuple[str, ...], out: int) -> subprocess.CompletedProcess[str]:
    ours = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "extproc", *command],
        cwd=folder,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        env=ours,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_written_is_one_line_and_status_1(folder: Path, command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = run(folder, command, full.fileno())
    said = ran.stderr.splitlines()
    assert said[-1] == "standard output: wanted room to write to, got No space left on device"
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert len(said) == 1 or command[0] in ("simulate", "plan")
    assert ran.returncode == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_that_nobody_reads_is_no_news(folder: Path, command: tuple[str, ...]) -> None:
    read, written = os.pipe()
    os.close(read)
    ran = run(folder, command, written)
    os.close(written)
    assert ran.returncode == 1
    assert not ran.stderr or command[0] in ("simulate", "plan")
    assert "rror" not in ran.stderr
