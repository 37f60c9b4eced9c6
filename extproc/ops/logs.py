"""Logs: events with keys and values, on stderr; JSON for machines, columns for people."""

import contextlib
import enum
import logging
import sys
from typing import TextIO, cast

import structlog


class LogFormat(enum.Enum):
    """How a log line looks."""

    AUTO = "auto"
    """Text on a terminal, JSON elsewhere."""
    JSON = "json"
    TEXT = "text"


class _Stderr:
    """stderr, which may be closed (then it is `None`) or on a full disk: lines are lost, and nothing else is."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


def configure(log_format: LogFormat, level: str) -> None:
    """Set up structlog for this process. `level` is one of debug, info, warning and error."""
    as_text = (
        (sys.stderr is not None and sys.stderr.isatty())
        if log_format is LogFormat.AUTO
        else log_format is LogFormat.TEXT
    )
    renderer = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
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
        cache_logger_on_first_use=True,
    )
