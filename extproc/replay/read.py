"""Reading a journal that may be damaged or hostile: each line is one of `journal.lines`, or a fault that says where."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from extproc.core.settings import Fault, shown
from extproc.journal.lines import FORMAT, LINE_BYTES_MAX, Head, Line, decode
from extproc.regularfile import open_regular
from extproc.replay.bounds import beyond_bounds, fault_of

FILES_MAX: Final = 1000
"""Files of one rotation."""


class OtherFormat(Struct, frozen=True):
    """A first line, as far as all formats have it; what follows it cannot be read here."""

    call: Literal["journal"]
    format: int
    version: str = "?"
    """Of extproc."""


class Unread(Struct, frozen=True):
    """The rest of a file could not be read: unlike a line at a run's end, no crash of the writer explains it."""

    fault: Fault


_any_head: Final = msgspec.json.Decoder(OtherFormat)


class Read(NamedTuple):
    """One line, and where it stood."""

    where: str
    """File and number of the line, from 1."""
    line: Line | OtherFormat | Fault | Unread
    bytes_read: int
    """Of all files so far."""


class JournalReader:
    """The lines of one rotation's files, oldest first. Files stay open, so that none is missed while they shift."""

    def __init__(self, files: list[tuple[Path, BinaryIO]], stack: ExitStack) -> None:
        self._files = files
        self._stack = stack
        self._sizes = [path_file[1].seek(0, 2) for path_file in files]
        self.bytes_total = sum(self._sizes)
        """Of all files when they were opened; what is written later is not read."""

    @property
    def files(self) -> tuple[str, ...]:
        """Their paths."""
        return tuple(str(path) for path, _ in self._files)

    def __iter__(self) -> Iterator[Read]:
        with self._stack:
            before = 0
            for (path, file), size in zip(self._files, self._sizes, strict=True):
                file.seek(0)
                yield from _lines(path, file, size, before)
                before += size


def open_journal(path: Path) -> JournalReader | Fault:
    """A journal by the name of its newest file, with the older ones beside it."""
    try:
        numbered = [
            (int(found[1]), one)
            for one in path.parent.iterdir()
            if (found := re.fullmatch(re.escape(path.name) + r"\.([1-9][0-9]{0,3})", one.name))
        ]
        paths = [one for _, one in sorted(numbered, reverse=True)[-FILES_MAX:]]
        if path.exists() or not paths:
            paths.append(path)
    except (OSError, ValueError) as error:
        return _unopened(path, error)
    stack = ExitStack()
    files = []
    for one in paths:
        try:
            files.append((one, stack.enter_context(open_regular(one))))
        except OSError as error:
            stack.close()
            return _unopened(one, error)
    return JournalReader(files, stack)


def _unopened(path: Path, error: OSError | ValueError) -> Fault:
    return Fault(str(path), "a journal that can be read", getattr(error, "strerror", None) or str(error))


def _lines(path: Path, file: BinaryIO, size: int, before: int) -> Iterator[Read]:
    number, position = 0, 0
    while position < size:
        number += 1
        where = f"{path.name}:{number}"
        try:
            raw = file.readline(LINE_BYTES_MAX + 1)
            long = len(raw) > LINE_BYTES_MAX
            position += len(raw)
            while long and not raw.endswith(b"\n"):
                raw = file.readline(LINE_BYTES_MAX)
                position += len(raw)
                if not raw:
                    break
        except OSError as error:
            fault = Fault(where, "a readable file", error.strerror or str(error))
            yield Read(where, Unread(fault), before + size)
            return
        if not raw:
            got = f"{position} bytes: it became shorter while it was read"
            yield Read(where, Unread(Fault(where, f"a file of {size} bytes", got)), before + size)
            return
        if long:
            yield Read(where, Fault(where, f"at most {LINE_BYTES_MAX} bytes", "more"), before + position)
        elif not raw.isspace():
            yield Read(where, _line(where, raw), before + position)


def _line(where: str, raw: bytes) -> Line | OtherFormat | Fault:
    try:
        line = decode(raw)
    except msgspec.ValidationError as error:
        return _other_format(raw) or fault_of(where, error)
    except (ValueError, RecursionError) as error:
        return Fault(where, "a line of JSON", f"{error}: {shown(raw)}")
    if isinstance(line, Head) and line.format != FORMAT:
        return _any_head.decode(raw)
    return beyond_bounds(where, line) or line


def _other_format(raw: bytes) -> OtherFormat | None:
    try:
        head = _any_head.decode(raw)
    except (ValueError, RecursionError):
        return None
    return None if head.format == FORMAT else head
