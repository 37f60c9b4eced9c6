"""A journal's files: a thread of their own writes them, so that no request waits for a disk.

The file that is written has the journal's name; a full one becomes `.1`, that one `.2` and so on, and the oldest goes.
A fault never reaches who writes. What cannot be written is lost, and a line says how many lines were, as soon as
writing succeeds again; what waits for a slow disk is bounded likewise. A file that somebody moved away, removed or
truncated is begun anew.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from io import FileIO
from logging.handlers import RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

import structlog

from extproc.journal import place
from extproc.journal.lines import Lost, encode

log = structlog.get_logger()

WAITING_BYTES_MAX: Final = 8 * 1024 * 1024
"""What may wait for the disk; what comes then is lost."""
CLOSE_S: Final = 5.0
"""How long the last lines may take at the end."""
LOG_INTERVAL_S: Final = 60.0
"""Faults are counted each, and logged once in this time."""


class Chunk(NamedTuple):
    """Some lines, each with its end."""

    text: bytes
    lines: int
    """How many these are."""
    names: bytes
    """Lines that explain the numbers which these lines may use. Written before them where a file begins, or where
    some were lost."""
    lost: int = 0
    """Lines that were lost before these."""


class JournalFile:
    """Takes chunks and writes them, until it is closed. Its methods are for one thread.

    `head` makes the first line of a file, without its end, by the number of the part; `on_fault` is called for each
    fault, from any thread. Raises `OSError` where the first file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        head: Callable[[int], bytes],
        on_fault: Callable[[], None],
        *,
        file_bytes_max: int,
        files_max: int,
    ) -> None:
        assert files_max > 1, "a full file must have a place to go"
        # Only what shifts the names: its own writing would format, and flush, each line for itself.
        self._shifter = RotatingFileHandler(path, mode="ab", backupCount=files_max - 1, delay=True)
        self._path = Path(self._shifter.baseFilename)
        self._head = head
        self._on_fault = on_fault
        self._file_bytes_max = file_bytes_max
        self._file: FileIO | None = None
        self._size = 0
        self._begun = False
        """Whether the file has its first line."""
        self._part = 0
        self._lost = 0
        """Lines lost since the last that was written; the thread's, as all above."""
        self._dropped = 0
        self._put_bytes = 0
        self._done_bytes = 0
        self._logged_s = float("-inf")
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        try:
            self._append(Chunk(b"", 0, b""))
        except OSError:
            self._close()
            raise
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """What was put and is neither written nor lost yet."""
        return self._put_bytes - self._done_bytes  # each has one thread that changes it

    def put(self, chunk: Chunk) -> None:
        """Have some lines written. Never waits and never raises."""
        if self.waiting_bytes + len(chunk.text) > WAITING_BYTES_MAX:
            self._dropped += chunk.lines
            self.complain("the disk is too slow")
            return
        self._put_bytes += len(chunk.text)
        self._chunks.put(chunk._replace(lost=chunk.lost + self._dropped))
        self._dropped = 0

    def close(self) -> None:
        """Write what waits, for `CLOSE_S` at most."""
        self._chunks.put(None)
        self._thread.join(CLOSE_S)

    def complain(self, reason: str) -> None:
        """Count a fault; log it if none was lately."""
        self._on_fault()
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            log.warning("lines of the journal lost", path=str(self._path), reason=reason)

    def _run(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            self._lost += chunk.lost
            try:
                self._append(chunk)
            except OSError as error:
                self._lost += chunk.lines
                self._close()
                self.complain(str(error))
            self._done_bytes += len(chunk.text)
        self._close()

    def _append(self, chunk: Chunk) -> None:
        file = self._open() if self._file is None or self._gone(self._file) else self._file
        content = self._content(chunk)
        if self._size and self._size + len(content) > self._file_bytes_max:
            self._close()
            self._shifter.doRollover()
            file = self._open()
            content = self._content(chunk)
        self._write(file, content)
        if not self._begun:
            self._begun = True
            self._part += 1
        self._lost = 0

    def _content(self, chunk: Chunk) -> bytes:
        parts = []
        if not self._begun:
            parts += [self._head(self._part), b"\n"]
        if self._lost:
            parts += [encode(Lost(self._lost)), b"\n"]
        return b"".join([*parts, chunk.names if parts else b"", chunk.text])

    def _gone(self, file: FileIO) -> bool:
        ours = os.fstat(file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(ours, there) or there.st_size < self._size

    def _open(self) -> FileIO:
        self._close()
        self._begun = False
        file = self._file = place.opened(self._path, "a+")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another process writes it", str(self._path)) from None
        self._size = os.fstat(file.fileno()).st_size
        if self._size and os.pread(file.fileno(), 1, self._size - 1) != b"\n":
            self._write(file, b"\n")  # whoever wrote the last line did not come to its end
        return file

    def _write(self, file: FileIO, content: bytes) -> None:
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(self._size)  # no half of a line stays
            raise
        self._size += len(content)

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
