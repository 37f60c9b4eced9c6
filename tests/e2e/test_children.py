"""Child processes end with us, and say why they ended before."""

import asyncio
import sys
from pathlib import Path

import pytest

from extproc.children import Child, ChildFailedError
from tests.waiting import until


async def python(folder: Path, program: str, name: str = "child") -> Child:
    return await Child.start(name, [sys.executable, "-u", "-c", program], folder)


async def test_a_child_that_dies_at_its_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    child = await python(tmp_path, "print('no such file'); raise SystemExit(3)")
    with pytest.raises(ChildFailedError, match=r"(?s)child ended with status 3.*no such file"):
        await child.logged("listening", within_s=10)


async def test_a_child_that_says_nothing_in_time_is_reported(tmp_path: Path) -> None:
    child = await python(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(ChildFailedError, match="did not log 'listening'"):
        await child.logged("listening", within_s=0.1)
    await child.kill()


async def test_what_a_child_of_the_same_name_logged_before_is_not_believed(tmp_path: Path) -> None:
    first = await python(tmp_path, "print('listening on 1')")
    assert await first.ended() == 0
    second = await python(tmp_path, "print('listening on 2')")
    assert (await second.logged(r"listening on (\d)", within_s=10))[1] == "2"
    assert await second.ended() == 0
    assert first.log.read_text() == "listening on 1\nlistening on 2\n"


async def test_a_child_that_does_not_want_to_end_is_ended(tmp_path: Path) -> None:
    child = await python(
        tmp_path, "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"
    )
    await child.logged("up", within_s=10)
    assert await child.stop(within_s=0.1) == -9


async def test_a_child_ends_also_when_waiting_for_its_end_is_given_up(tmp_path: Path) -> None:
    child = await python(
        tmp_path, "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"
    )
    await child.logged("up", within_s=10)
    stopping = asyncio.create_task(child.stop(within_s=60))
    await asyncio.sleep(0)
    stopping.cancel()
    assert await child.ended() == -9
    assert not child.running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
async def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from extproc.children import Child
async def main():
    child = await Child.start("grandchild", [sys.executable, "-c", "import time; time.sleep(60)"], Path(sys.argv[1]))
    print("grandchild", child.pid)
    await child.ended()
asyncio.run(main())
"""
    parent = await Child.start("parent", [sys.executable, "-u", "-c", program, str(tmp_path)], tmp_path)
    grandchild = (await parent.logged(r"grandchild (\d+)", within_s=10))[1]
    assert alive(grandchild)
    await parent.kill()
    await until(lambda: not alive(grandchild))


def alive(pid: str) -> bool:
    status = Path("/proc", pid, "status")
    # Whoever inherits an orphan may leave it unburied.
    return status.exists() and "(zombie)" not in status.read_text()
