"""What stands in files that are replaced while we run: certificates and tokens."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from extproc.core.settings import Fault
from extproc.regularfile import open_regular

FILE_BYTES_MAX = 1024 * 1024
"""Longer files are refused."""
LOOK_INTERVAL_S = 1.0
"""Files are looked at no more often."""

Content = TypeVar("Content")


class Reloaded(Generic[Content]):
    """What `read` makes of some files, made anew when one of them changes. Any thread may ask for it.

    Files are looked at when somebody asks, so an idle port costs nothing. Content with faults is told to `broken` once,
    and what stood there before goes on serving.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], Content | list[Fault]],
        clock: Callable[[], float],
        *,
        renewed: Callable[[], None],
        broken: Callable[[list[Fault]], None],
    ) -> None:
        """Read the files. Raises `FilesError` where they have faults. `clock` is `time.monotonic` or the like."""
        self._paths = paths
        self._read = read
        self._clock = clock
        self._renewed = renewed
        self._broken = broken
        self._lock = threading.Lock()
        self._looked_s = clock()
        self._seen = self._stamps()
        content = read()
        if isinstance(content, list):
            raise FilesError(content)
        self._content = content

    def latest(self) -> Content:
        """The content, at most `LOOK_INTERVAL_S` old; the very same object while nothing has changed."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._looked_s >= LOOK_INTERVAL_S:
                self._looked_s = now_s
                self._look()
            return self._content

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps == self._seen:
            return
        content = self._read()
        if self._stamps() != stamps:
            return  # somebody is writing: half of it may be old, so the next look decides
        self._seen = stamps
        if isinstance(content, list):
            self._broken(content)
        else:
            self._content = content
            self._renewed()

    def _stamps(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self._paths]


class FilesError(Exception):
    """Files cannot be used, for these reasons."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def content_of(path: Path, setting: str, wanted: str) -> bytes | Fault:
    """A regular file's bytes, up to `FILE_BYTES_MAX`; or the fault of the setting that names it."""
    try:
        with open_regular(path) as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        return Fault(setting, wanted, f"{path}: {error.strerror}")
    if len(content) > FILE_BYTES_MAX:
        return Fault(setting, wanted, f"{path}: more than {FILE_BYTES_MAX} bytes")
    return content


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116 - of what a symbolic link leads to, which is what mounted secrets replace
    except (OSError, ValueError):
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
