"""Do Envoy's timeouts let requests wait for as long as the configuration says?

Tried with Envoy 1.40, each alone at 1 s, with requests that the external processor held for 2 s:

    ends the request               HCM's stream_idle_timeout (504), unless the route has an idle_timeout of its own;
                                   HCM's and a route's max_stream_duration (504), a route's own value coming first
    breaks the processor's stream  message_timeout (504; with failure_mode_allow the request goes on without a choice),
                                   unless the processor asks for more time and max_message_timeout allows that;
                                   max_stream_duration of the processor's cluster (500; likewise)
    does nothing to it             a route's timeout, flush_timeout and those of its retries; grpc_service.timeout;
                                   request_timeout, for bodies are complete when they are held, and what has no body
                                   never waits; request_headers_timeout; the idle_timeout and
                                   max_connection_duration of either side's connections

What Envoy is told by xDS is seen in a dump of its configuration, not in its bootstrap.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from extproc.address import Address
from extproc.core.admissionsettings import PriorityClass
from extproc.core.settings import Fault, shown
from extproc.envoycheck import processors
from extproc.envoycheck.file import At, seconds_of
from extproc.envoycheck.processors import Processors, is_asked, processors_of, routes_of, tables_of

MARGIN_MS: Final = 1000
"""Envoy's timers run while a request is on its way to us, and the answer on its way back, on a busy machine."""
MESSAGE_TIMEOUT_S: Final = 0.2
STREAM_IDLE_TIMEOUT_S: Final = 300.0
"""Envoy's defaults. The other timeouts are off where they are absent."""

PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


class Hold(msgspec.Struct, frozen=True):
    """For how long Envoy must be able to hold a request."""

    seconds: float
    """Rounded up to a tenth, margin included."""
    why: str
    counting: "Hold | None" = None
    """The same without the queue."""


def longest_hold(classes: Mapping[str, PriorityClass], token_budget_ms: float) -> Hold:
    """Of any request: the wait of the class that waits longest, and the counting of tokens."""
    name = max(classes, key=lambda one: classes[one].queue_ms_max)
    queue_ms = classes[name].queue_ms_max
    counting = Hold(_tenths(token_budget_ms + MARGIN_MS), f"counting tokens takes up to {token_budget_ms / 1000:g} s")
    if not queue_ms:
        return counting
    seconds = _tenths(queue_ms + token_budget_ms + MARGIN_MS)
    return Hold(seconds, f"class {name} waits up to {queue_ms / 1000:g} s", counting)


def _tenths(milliseconds: float) -> float:
    return math.ceil(milliseconds / 100) / 10


def faults_in_file(path: Path, hold: Hold, processor: Address) -> list[Fault]:
    """`faults_in_bootstrap` of a file in YAML or JSON, or what keeps it from being read."""
    return processors.faults_in_file(path, processor, partial(faults_in, hold=hold))


def faults_in_bootstrap(bootstrap: object, hold: Hold, processor: Address) -> list[Fault]:
    """Each timeout of a bootstrap that would end a request before it has waited for so long. Never raises."""
    found = processors_of(bootstrap, processor)
    return [found] if isinstance(found, Fault) else faults_in(found, hold)


def faults_in(found: Processors, hold: Hold) -> list[Fault]:
    """The same where it is known which filters are ours."""
    faults = [_message_fault(one, hold) for one in found.filters]
    for one in found.asking:
        faults += _manager_faults(one.manager, one.http_filters, hold)
    for cluster in found.their_clusters():
        options = [cluster, *cluster.of("typed_extension_protocol_options").typed(PROTOCOL_OPTIONS)]
        faults += [_timeout(one.of("common_http_protocol_options", "max_stream_duration"), hold) for one in options]
    return [fault for fault in faults if fault is not None]


def _message_fault(http_filter: At, hold: Hold) -> Fault | None:
    """Of one filter. `serve` asks for more time for who waits, which Envoy hears up to `max_message_timeout`."""
    timeout, longer = http_filter.of("message_timeout"), http_filter.of("max_message_timeout")
    # At 0 Envoy waits for nothing.
    fault = _timeout(timeout, hold, MESSAGE_TIMEOUT_S, zero_is_off=False)
    if fault is None or longer.value is None:
        return fault
    may_ask = _timeout(longer, hold, zero_is_off=False)
    return may_ask or _timeout(timeout, hold.counting or hold, MESSAGE_TIMEOUT_S, zero_is_off=False)


def _manager_faults(manager: At, http_filters: list[At], hold: Hold) -> Iterator[Fault | None]:
    """Of one connection manager and its routes. Its own values hold for routes that have none."""
    tables = tables_of(manager)
    idle_inherited = duration_inherited = not tables  # routes that the file does not tell are taken to have none
    for found in (found for table in tables for found in routes_of(table)):
        if not any(is_asked(http_filter, found.configs) for http_filter in http_filters):
            continue
        route = found.route
        idle = route.of("route", "idle_timeout")
        duration = route.of("route", "max_stream_duration", "max_stream_duration")
        idle_inherited |= idle.value is None
        duration_inherited |= duration.value is None
        yield _timeout(idle, hold)
        yield _timeout(duration, hold)
    if idle_inherited:
        yield _timeout(manager.of("stream_idle_timeout"), hold, STREAM_IDLE_TIMEOUT_S)
    if duration_inherited:
        yield _timeout(manager.of("common_http_protocol_options", "max_stream_duration"), hold)


def _timeout(at: At, hold: Hold, default_s: float = 0.0, *, zero_is_off: bool = True) -> Fault | None:
    seconds = default_s if at.value is None else seconds_of(at.value)
    if seconds is None:
        return Fault(at.path, "a duration as 10s or 0.5s", shown(at.value))
    if seconds >= hold.seconds or (seconds == 0 and zero_is_off):
        return None
    wanted = f"at least {hold.seconds:g}s{' or 0s' if zero_is_off else ''} ({hold.why})"
    return Fault(at.path, wanted, f"{seconds:g}s" if at.value is not None else f"nothing, so {seconds:g}s")
