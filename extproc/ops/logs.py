"""Logs: events with keys and values, on stderr; JSON for machines, columns for people."""

import enum
import logging
import sys

import structlog


class LogFormat(enum.Enum):
    """How a log line looks."""

    AUTO = "auto"
    """Text on a terminal, JSON elsewhere."""
    JSON = "json"
    TEXT = "text"


def configure(log_format: LogFormat, level: str) -> None:
    """Set up structlog for this process. `level` is one of debug, info, warning and error."""
    as_text = sys.stderr.isatty() if log_format is LogFormat.AUTO else log_format is LogFormat.TEXT
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
