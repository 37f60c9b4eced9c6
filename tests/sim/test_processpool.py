import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from extproc.sim import processpool

PROGRAM = """
import signal, time
from extproc.sim import processpool

def work():
    print("at work", flush=True)
    time.sleep(3600)

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with processpool.of(2) as pool:
        for one in [pool.submit(work) for _ in range(5)]:
            one.result()
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program whose two processes are at work, each with its standard output."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": "."},
    ) as program:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(2)] == ["at work\n"] * 2
        yield program
        program.kill()


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_processes_end_with_their_parent_in_the_midst_of_their_work(
    busy: subprocess.Popen[str], number: signal.Signals, status: int
) -> None:
    busy.send_signal(number)
    out, err = busy.communicate(timeout=60)  # the end of the output: nobody who could write there is left
    assert (out, busy.returncode) == ("", status)
    assert number is signal.SIGKILL or "leaked" not in err


def test_an_error_ends_them_too_and_leaves_signals_as_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    made: list[ProcessPoolExecutor] = []

    def fail() -> None:
        with processpool.of(1) as pool:
            made.append(pool)
            pool.submit(divmod, 1, 0).result()

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    with pytest.raises(RuntimeError, match="after shutdown"):
        made[0].submit(divmod, 1, 1)
