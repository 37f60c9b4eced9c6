"""How requests ended, in Envoy's words: a gRPC access log, read into values.

Envoy keeps one stream open for each of its threads and sends an entry at each request's end.

Where several processors serve one Envoy, an entry reaches any of them, not always the one that decided; an entry of
before a restart may come after it. So an entry repeats what was counted for it, and ids differ from start to start.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Final

import grpc
import structlog
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogCommon, AccessLogType, HTTPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.accesslog.v3.als_pb2_grpc import add_AccessLogServiceServicer_to_server
from google.protobuf.struct_pb2 import Struct as Fields
from msgspec import Struct

from extproc.address import TcpAddress
from extproc.core.request import MODEL_CHARS_MAX
from extproc.gateway.codec import NAMESPACE
from extproc.ops.metrics import Metrics
from extproc.streams import Waits

log = structlog.get_logger()

USAGE_NAMESPACE: Final = "extproc.usage"
"""Of the dynamic metadata that the bootstrap's filters make of an engine's answer."""
STREAMS_MAX: Final = 4096
"""Envoys' threads that may be connected; further ones are refused."""
ENTRIES_MAX: Final = 20_000
"""Entries of one message; the rest are ignored. Envoy sends each at once, and together those that had to wait: after a
pause of ours there can be one for each request in flight."""
ENTRIES_AT_ONCE: Final = 100
"""Then others have a turn."""
UNREAD_TOLD: Final = 20
"""Ends of requests before it is told that none of them could be read."""
COUNT_MAX: Final = 1_000_000_000
"""Of tokens or answers."""
SECONDS_MAX: Final = 1e8
REQUEST_ID_CHARS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 128

_ENDS = (AccessLogType.NotSet, AccessLogType.DownstreamEnd)
"""An Envoy can be told to log requests while they run, too."""

_Context = grpc.aio.ServicerContext[StreamAccessLogsMessage, StreamAccessLogsResponse]


class AnswerEnded(Struct, frozen=True):
    """One request is over. What is not known is `None`, and so is a number that cannot be true."""

    request_id: str
    """The one that the session put into the dynamic metadata."""
    status: int
    """Of HTTP; 0 where the client left before any answer."""
    details: str
    """Envoy's own words for how it came to that status, as `via_upstream` or `extproc_overloaded`; 128 characters."""
    flags: tuple[str, ...]
    """What Envoy noticed, by the names of its `ResponseFlags`, as `upstream_connection_failure`."""
    upstream_host: str | None
    """Who served or was tried last, as `ip:port`."""
    first_byte_s: float | None
    """From the request's first byte to the first of the upstream's answer: its head, which engines may send before the
    first token."""
    duration_s: float | None
    """From the request's first byte to the answer's last."""
    model: str | None
    """As the request named it; `None` as well for what was no inference request."""
    counted_tokens: int | None
    """Prompt tokens, as the request was routed by them."""
    counted_exactly: bool
    """Whether that is meant to equal `prompt_tokens`."""
    prompt_tokens: int | None
    """By the engine's `usage`. Streams have one only where the client asked for it (`stream_options.include_usage`)."""
    completion_tokens: int | None
    """Of all its answers together."""
    sequences: int = 1
    """Answers that it asked for, at least 1."""
    failed_host: str | None = None
    """The host that was chosen, where Envoy tried it in vain and then another."""
    unheeded: bool = False
    """Envoy went to another host than the chosen one at its first attempt."""
    arm: str = ""
    """The canary's, where its policy has one."""


def read(entry: HTTPAccessLogEntry) -> AnswerEnded | None:
    """What an entry says; `None` where it is not of a request of ours, or the request goes on. Never raises."""
    common = entry.common_properties
    told = common.metadata.filter_metadata
    if common.access_log_type not in _ENDS or NAMESPACE not in told:
        return None
    ours, usage = told[NAMESPACE], told.get(USAGE_NAMESPACE)
    request_id, model = _text(ours, "request_id"), _text(ours, "model")
    if not 0 < len(request_id) <= REQUEST_ID_CHARS_MAX:  # a part of an id would be another id
        return None
    status = entry.response.response_code.value
    chosen, last = _text(ours, "host"), _host(entry)
    elsewhere = chosen != "" and last is not None and last != chosen
    tried_again = elsewhere and common.upstream_request_attempt_count > 1
    return AnswerEnded(
        request_id=request_id,
        status=status if 100 <= status <= 599 else 0,
        details=entry.response.response_code_details[:TEXT_CHARS_MAX],
        flags=tuple(flag.name for flag, value in common.response_flags.ListFields() if value is True),
        upstream_host=last,
        first_byte_s=_seconds(common, "time_to_first_upstream_rx_byte"),
        duration_s=_seconds(common, "duration"),
        model=model if 0 < len(model) <= MODEL_CHARS_MAX else None,
        counted_tokens=_count(ours, "tokens"),
        counted_exactly=ours.fields["tokens_exact"].bool_value if "tokens_exact" in ours.fields else False,
        prompt_tokens=None if usage is None else _count(usage, "prompt_tokens"),
        completion_tokens=None if usage is None else _count(usage, "completion_tokens"),
        sequences=_count(ours, "sequences") or 1,
        failed_host=chosen if tried_again and _is_host(chosen) else None,
        unheeded=elsewhere and not tried_again and _text(ours, "outcome") != "observed",
        arm=_text(ours, "arm")[:TEXT_CHARS_MAX],
    )


def _text(metadata: Fields, key: str) -> str:
    """A string, empty where there is none."""
    return metadata.fields[key].string_value if key in metadata.fields else ""


def _count(metadata: Fields, key: str) -> int | None:
    if key not in metadata.fields:
        return None
    value = metadata.fields[key]
    if value.WhichOneof("kind") != "number_value":
        return None
    number = value.number_value
    return int(number) if 0 <= number <= COUNT_MAX and number.is_integer() else None


def _seconds(common: AccessLogCommon, name: str) -> float | None:
    if not common.HasField(name):
        return None
    duration = getattr(common, name)
    seconds: float = duration.seconds + duration.nanos / 1e9
    return seconds if 0 <= seconds <= SECONDS_MAX else None


def _is_host(text: str) -> bool:
    return 0 < len(text) <= TEXT_CHARS_MAX


def _host(entry: HTTPAccessLogEntry) -> str | None:
    address = entry.common_properties.upstream_remote_address.socket_address
    return str(TcpAddress(address.address[:TEXT_CHARS_MAX], address.port_value)) if address.address else None


class AccessLog:
    """Envoy's `AccessLogService`: tells `ended` of each entry that is of a request of ours.

    A fault of ours, as where `ended` raises, is counted and loses one entry; the stream goes on.
    """

    def __init__(self, ended: Callable[[AnswerEnded], None], metrics: Metrics) -> None:
        self._ended = ended
        self._metrics = metrics
        self._waits = Waits()
        self._draining = False
        self._streams_open = 0
        self._since_s = time.time()
        self._unread: int | None = 0
        """Ends of requests that were told without our metadata; `None` once one was read, or the warning is given."""

    @property
    def streams_open(self) -> int:
        """Envoys' threads that are connected."""
        return self._streams_open

    def drain(self) -> None:
        """End every stream, and take no new ones: an Envoy never ends its own, and a server that stops waits for it."""
        self._draining = True
        self._waits.end()

    async def StreamAccessLogs(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[StreamAccessLogsMessage],  # noqa: ARG002
        context: _Context,
    ) -> StreamAccessLogsResponse:
        """One thread of an Envoy, for as long as it runs."""
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        if self._streams_open >= STREAMS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {STREAMS_MAX} access logs")
        self._streams_open += 1
        try:
            while isinstance(message := await self._waits.read(context), StreamAccessLogsMessage):
                await self._take(message)
        finally:
            self._streams_open -= 1
        return StreamAccessLogsResponse()

    async def _take(self, message: StreamAccessLogsMessage) -> None:
        entries = message.http_logs.log_entry
        self._metrics.answers.ignored(max(0, len(entries) - ENTRIES_MAX))
        for number, entry in enumerate(islice(entries, ENTRIES_MAX), 1):
            if number % ENTRIES_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                ended = read(entry)
                if ended is None:
                    self._metrics.answers.ignored(1)
                    self._not_read(entry)
                else:
                    self._unread = None
                    self._ended(ended)
            except Exception:
                log.exception("error of ours; an access log's entry is lost")
                self._metrics.our_error("access_log")

    def _not_read(self, entry: HTTPAccessLogEntry) -> None:
        """Warn once where nothing of ours comes with the first entries: then no answer is ever counted.

        Requests that began before this process may have gone on without any: Envoy tells of them when they end.
        """
        common = entry.common_properties
        if common.access_log_type not in _ENDS or NAMESPACE in common.metadata.filter_metadata:
            return
        if self._unread is None or common.start_time.seconds < self._since_s:
            return
        self._unread += 1
        if self._unread >= UNREAD_TOLD:
            self._unread = None
            log.warning(
                "Envoy's access log tells nothing of our requests: metadata_options.receiving_namespaces needs extproc",
                entries=UNREAD_TOLD,
            )


def register(server: grpc.aio.Server, access_log: AccessLog) -> None:
    """Let a server for Envoy take access logs too."""
    add_AccessLogServiceServicer_to_server(access_log, server)
