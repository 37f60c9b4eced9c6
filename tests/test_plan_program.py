"""`extproc plan` as it is run: its processes, signals and exit status."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until

SMALL = ("--trace", "generated:conv", "--requests", "40")
PROGRAM = """
import click
from extproc.cli.common import Commands
from extproc.cli.planning import plan

main = Commands(commands=[plan])

if __name__ == "__main__":
    main()
"""


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    root = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "program.py", "plan", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": root},
    )


def test_the_program_answers_with_processes_and_its_status(tmp_path: Path) -> None:
    answers = []
    for jobs in ("1", "2"):
        with started(tmp_path, *SMALL, "--jobs", jobs, "--json") as program:
            out, err = program.communicate(timeout=60)
        assert program.returncode == 0, err
        answers.append(json.loads(out))
    assert answers[0] == answers[1]
    with started(tmp_path, *SMALL, "--ttft", "1ms", "--nodes-max", "1") as program:
        out, err = program.communicate(timeout=60)
    assert program.returncode == 1, err
    assert "Not even 1 node would be enough" in out


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)])
async def test_a_signal_ends_the_program_and_its_processes(tmp_path: Path, number: signal.Signals, status: int) -> None:
    busy = ("--trace", "generated:conv", "--requests", "100000", "--jobs", "2", "--nodes-max", "1024")
    with started(tmp_path, *busy) as program:
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
        await until(children.read_text, within_s=60)
        program.send_signal(number)
        out, err = program.communicate(timeout=60)  # the end of the output: nobody who could write there is left
    assert err.startswith("up to 1,024 nodes for 100,000 requests")
    assert (out, program.returncode) == ("", status)
