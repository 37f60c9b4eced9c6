"""Starts by a fork are what starts by the command are."""

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from extproc.children import Child, ourselves
from tests.forked import forking

EMULATE = ourselves("emulate", "--listen", "127.0.0.1:0", "--name", "gpu-1", "--model", "m")


def parent_of(pid: int) -> int:
    found = re.search(r"^PPid:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


@pytest.mark.parametrize("arguments", [["serve", "--config", "faulty.yaml"], ["agent"], ["emulate", "--no-such"]])
async def test_it_says_the_same_and_ends_with_the_same_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.yaml").write_text("drain_s: -1")
    forked = await Child.start("forked", ourselves(*arguments), tmp_path)
    assert parent_of(forked.pid) != os.getpid()
    plain = await asyncio.to_thread(
        subprocess.run, ourselves(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert (await forked.ended(), forked.log.read_text()) == (plain.returncode, plain.stdout)
    assert plain.stdout


async def test_it_has_a_session_of_its_own_and_ends_by_signals(tmp_path: Path) -> None:
    child = await Child.start("engine", EMULATE, tmp_path)
    await child.logged("listening", within_s=30)
    assert os.getsid(child.pid) == child.pid
    assert await child.stop() == 0
    child = await Child.start("engine", EMULATE, tmp_path)
    assert child.running
    assert await child.kill() == -signal.SIGKILL
    assert not child.running


async def test_in_another_environment_it_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "INFO")
    child = await Child.start("engine", EMULATE, tmp_path)
    assert parent_of(child.pid) == os.getpid()
    await child.kill()


async def test_none_outlives_the_server(tmp_path: Path) -> None:
    with forking():
        child = await Child.start("engine", EMULATE, tmp_path)
        await child.logged("listening", within_s=30)
        os.kill(parent_of(child.pid), signal.SIGKILL)
        assert await child.ended() == -signal.SIGKILL
        with pytest.raises(OSError, match="Broken pipe"):
            await Child.start("engine", EMULATE, tmp_path)
