"""Logs: events with keys and values, on stderr; JSON for machines, columns for people."""

import atexit
import contextlib
import enum
import logging
import queue
import sys
import threading
from typing import TextIO, cast

import structlog


class LogFormat(enum.Enum):
    """How a log line looks."""

    AUTO = "auto"
    """Text on a terminal, JSON elsewhere."""
    JSON = "json"
    TEXT = "text"


LINES_WAITING_MAX = 10_000
"""Lines that wait for stderr; further ones are lost."""
_LAST_LINES_S = 1.0
"""How long the last lines may take at the end of the process."""


class _Stderr:
    """stderr, which may be closed (then it is `None`), on a full disk, or a pipe that nobody reads.

    A thread writes, so that no request waits for a log. Lines that cannot be written are lost, and nothing else is.
    """

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_WAITING_MAX)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def write(self, text: str) -> int:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(text)
        return len(text)

    def flush(self) -> None:
        """The thread does that."""

    def _write(self) -> None:
        line = ""
        while (text := self._lines.get()) is not None:
            line += text
            if not line.endswith("\n"):
                continue  # its end comes by itself; other processes may write to the same file between
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(line)
                sys.stderr.flush()
            line = ""

    def _end(self) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_LAST_LINES_S)


def _columns(*, colours: bool) -> structlog.dev.ConsoleRenderer:
    if colours:
        return structlog.dev.ConsoleRenderer()
    # The default draws tracebacks with colours and frames, whatever `colors` says.
    return structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)


def configure(log_format: LogFormat, level: str) -> None:
    """Set up structlog for this process. `level` is one of debug, info, warning and error."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    as_text = on_terminal if log_format is LogFormat.AUTO else log_format is LogFormat.TEXT
    renderer = _columns(colours=on_terminal) if as_text else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if as_text else [structlog.processors.dict_tracebacks]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
    )
