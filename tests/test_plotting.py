import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from extproc import cli, plotting
from tests.comparisonrows import compared, row


def simulate(*arguments: str) -> Result:
    small = ("simulate", "--trace", "generated:conv", "--nodes", "2", "--requests", "40", "--jobs", "1")
    return CliRunner().invoke(cli.main, (*small, "--strategy", "random", *arguments))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_comparison_is_drawn(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"picture{suffix}"
    rows = (
        row("random"),
        row("lmetric", ttft_p99_s=None),
        row("random", 0.9),
        row("lmetric", 0.9, slowdown=None, ttft_p90_s=None),
    )
    assert plotting.checked(file) is None
    plotting.draw(compared(*rows), "a title", file)
    if suffix == ".svg":
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    else:
        assert file.read_bytes().startswith(b"\x89PNG")
    again = tmp_path / f"again{suffix}"
    plotting.draw(compared(*rows), "a title", again)
    assert again.read_bytes() == file.read_bytes()


def test_the_command_draws(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    assert simulate("--plot", str(file)).exit_code == 0
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", ["picture.pdf", "picture", "none/picture.png", "x" * 300 + ".png"])
def test_where_nothing_can_be_drawn_is_said_before_the_work(tmp_path: Path, name: str) -> None:
    result = simulate("--plot", str(tmp_path / name))
    assert result.exit_code == 1
    assert result.stderr.startswith("--plot: wanted a file")


def test_without_matplotlib_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    fault = plotting.checked(tmp_path / "picture.png")
    assert str(fault) == "--plot: wanted matplotlib: pip install matplotlib, got no such module"


def test_a_pipe_is_not_drawn_into(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    os.mkfifo(file)
    result = simulate("--plot", str(file))
    assert (result.exit_code, result.stderr) == (1, f"--plot: wanted a regular file, got {str(file)[:80]}\n")


def test_what_cannot_be_written_after_all_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    file.symlink_to(tmp_path / "none" / "picture.svg")
    result = simulate("--plot", str(file))
    assert result.exit_code == 1
    assert result.stderr.endswith("--plot: wanted a file that can be written, got No such file or directory\n")
