"""How requests ended: an entry's reading, and the service over a real gRPC connection."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry, TCPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.accesslog.v3.als_pb2_grpc import AccessLogServiceStub
from hypothesis import given
from hypothesis import strategies as st

from extproc.gateway import accesslog
from extproc.gateway.accesslog import ENTRIES_AT_ONCE, SECONDS_MAX, TOKENS_MAX, AccessLog, AnswerEnded, read, register
from extproc.ops.metrics import Metrics
from tests.waiting import until

OURS = {"request_id": "3fa9c1-7", "model": "llama", "tokens": 120, "tokens_exact": True, "node": "gpu-1"}
USAGE = {"prompt_tokens": 121, "completion_tokens": 9}
ENDED = AnswerEnded(
    request_id="3fa9c1-7",
    status=200,
    details="via_upstream",
    flags=(),
    upstream_host="10.0.0.1:8000",
    first_byte_s=0.25,
    duration_s=61.5,
    model="llama",
    counted_tokens=120,
    counted_exactly=True,
    prompt_tokens=121,
    completion_tokens=9,
)


def entry(ours: dict[str, Any] | None = OURS, usage: dict[str, Any] | None = USAGE) -> HTTPAccessLogEntry:
    """What Envoy says of a request that a node answered."""
    made = HTTPAccessLogEntry()
    common = made.common_properties
    for namespace, fields in (("extproc", ours), ("extproc.usage", usage), ("envoy.filters.http.jwt_authn", {"a": 1})):
        if fields is not None:
            common.metadata.filter_metadata[namespace].update(fields)
    common.access_log_type = AccessLogType.DownstreamEnd
    common.upstream_remote_address.socket_address.address = "10.0.0.1"
    common.upstream_remote_address.socket_address.port_value = 8000
    common.time_to_first_upstream_rx_byte.nanos = 250_000_000
    common.duration.seconds, common.duration.nanos = 61, 500_000_000
    made.response.response_code.value = 200
    made.response.response_code_details = "via_upstream"
    return made


def test_an_entry_is_read() -> None:
    assert read(entry()) == ENDED


def test_a_client_that_left_and_a_request_that_no_node_saw_leave_fields_empty() -> None:
    made = HTTPAccessLogEntry()
    made.common_properties.metadata.filter_metadata["extproc"].update({"request_id": "a-1"})
    assert read(made) == AnswerEnded("a-1", 0, "", (), None, None, None, None, None, False, None, None)


def test_an_ipv6_upstream_stands_in_brackets() -> None:
    made = entry()
    made.common_properties.upstream_remote_address.socket_address.address = "fd00::7"
    assert read(made).upstream_host == "[fd00::7]:8000"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "ours",
    [None, {}, {"node": "gpu-1"}, {"request_id": ""}, {"request_id": 7}, {"request_id": "x" * 65}],
    ids=["no metadata", "empty", "no id", "an empty id", "a number for an id", "an id too long"],
)
def test_what_is_not_of_a_request_of_ours_is_not_read(ours: dict[str, Any] | None) -> None:
    assert read(entry(ours)) is None


@pytest.mark.parametrize("kind", sorted(set(AccessLogType.values()) - {AccessLogType.NotSet}))
def test_only_the_end_of_a_request_is_read(kind: int) -> None:
    made = entry()
    made.common_properties.access_log_type = kind
    assert (read(made) is not None) == (kind == AccessLogType.DownstreamEnd)


def test_an_envoy_that_does_not_name_its_entries_is_read() -> None:
    made = entry()
    made.common_properties.access_log_type = AccessLogType.NotSet
    assert read(made) == ENDED


@pytest.mark.parametrize(
    "told", [-1, -0.5, 1.5, 1e300, math.inf, -math.inf, math.nan, TOKENS_MAX + 1, "7", True, None, {}, []]
)
def test_a_count_that_cannot_be_true_is_not_known(told: Any) -> None:
    ended = read(entry(OURS | {"tokens": told}, {"prompt_tokens": told, "completion_tokens": told}))
    assert ended is not None
    assert (ended.counted_tokens, ended.prompt_tokens, ended.completion_tokens) == (None, None, None)


@pytest.mark.parametrize("told", [0, 1, TOKENS_MAX])
def test_every_count_that_can_be_true_is_taken(told: int) -> None:
    ended = read(entry(OURS | {"tokens": told}, {"prompt_tokens": told, "completion_tokens": told}))
    assert ended is not None
    assert (ended.counted_tokens, ended.prompt_tokens, ended.completion_tokens) == (told, told, told)


@pytest.mark.parametrize("told", [False, "true", 1, None])
def test_only_what_is_said_to_be_exact_was_counted_exactly(told: Any) -> None:
    assert read(entry(OURS | {"tokens_exact": told})).counted_exactly is False  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("told", "model"),
    [("m" * 256, "m" * 256), ("m" * 257, None), ("", None), (7, None), (None, None), ({"a": "b"}, None)],
)
def test_a_models_name_is_taken_whole_or_not_at_all(told: Any, model: str | None) -> None:
    assert read(entry(OURS | {"model": told})).model == model  # type: ignore[union-attr]


def test_every_flag_of_envoys_is_told_by_its_name() -> None:
    made = entry()
    flags = made.common_properties.response_flags
    flags.unauthorized_details.reason = 1  # the one that is no flag
    names = [field.name for field in flags.DESCRIPTOR.fields if field.name != "unauthorized_details"]
    for name in names:
        setattr(flags, name, True)
    assert sorted(read(made).flags) == sorted(names)  # type: ignore[union-attr]


@pytest.mark.parametrize(("told", "status"), [(99, 0), (100, 100), (599, 599), (600, 0)])
def test_a_status_that_http_does_not_have_is_none(told: int, status: int) -> None:
    made = entry()
    made.response.response_code.value = told
    assert read(made).status == status  # type: ignore[union-attr]


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(
    ours=st.fixed_dictionaries(
        {"request_id": st.just("a-1") | VALUES}, optional={"model": VALUES, "tokens": VALUES, "tokens_exact": VALUES}
    ),
    usage=st.fixed_dictionaries({}, optional={"prompt_tokens": VALUES, "completion_tokens": VALUES}),
    seconds=st.integers(-(2**63), 2**63 - 1),
    nanos=st.integers(-(2**31), 2**31 - 1),
    status=st.integers(0, 2**32 - 1),
    port=st.integers(0, 2**32 - 1),
    text=st.text(max_size=300) | st.just("x" * 300),
)
def test_whatever_an_entry_says_its_value_is_within_bounds(
    ours: dict[str, Any], usage: dict[str, Any], seconds: int, nanos: int, status: int, port: int, text: str
) -> None:
    made = entry(ours, usage)
    common = made.common_properties
    common.duration.seconds, common.duration.nanos = seconds, nanos
    common.time_to_first_upstream_rx_byte.seconds, common.time_to_first_upstream_rx_byte.nanos = seconds, nanos
    common.upstream_remote_address.socket_address.address = text
    common.upstream_remote_address.socket_address.port_value = port
    made.response.response_code.value = status
    made.response.response_code_details = text
    ended = read(made)
    if ended is None:
        return
    assert 0 < len(ended.request_id) <= 64
    assert ended.status == 0 or 100 <= ended.status <= 599
    assert len(ended.details) <= 128
    assert ended.upstream_host is None or len(ended.upstream_host) <= 150
    assert ended.model is None or 0 < len(ended.model) <= 256
    for seconds_told in (ended.first_byte_s, ended.duration_s):
        assert seconds_told is None or 0 <= seconds_told <= SECONDS_MAX
    for tokens in (ended.counted_tokens, ended.prompt_tokens, ended.completion_tokens):
        assert tokens is None or (type(tokens) is int and 0 <= tokens <= TOKENS_MAX)


@dataclass(frozen=True)
class Taken:
    """A running service, an Envoy's connection to it, and what came of both."""

    access_log: AccessLog
    stub: Any
    ended: list[AnswerEnded]
    metrics: Metrics

    def metric(self, line: str) -> bool:
        return line in self.metrics.page(()).decode().splitlines()


@asynccontextmanager
async def taken() -> AsyncIterator[Taken]:
    """Of an answer with status 418 the service's owner makes a fault."""
    ended: list[AnswerEnded] = []
    metrics = Metrics()

    def take(one: AnswerEnded) -> None:
        if one.status == 418:
            msg = "a fault of ours"
            raise RuntimeError(msg)
        ended.append(one)

    access_log = AccessLog(take, metrics)
    server = grpc.aio.server()
    register(server, access_log)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Taken(access_log, AccessLogServiceStub(channel), ended, metrics)
    finally:
        await server.stop(None)


def message(*entries: HTTPAccessLogEntry) -> StreamAccessLogsMessage:
    return StreamAccessLogsMessage(http_logs={"log_entry": entries})


async def test_each_entry_of_each_message_is_told_in_order() -> None:
    async with taken() as envoy:
        call = envoy.stub.StreamAccessLogs()
        for first in (1, 3):
            await call.write(message(*(entry({"request_id": f"a-{number}"}) for number in (first, first + 1))))
        await until(lambda: len(envoy.ended) == 4)
        assert [one.request_id for one in envoy.ended] == ["a-1", "a-2", "a-3", "a-4"]
        await call.done_writing()
        assert await call == StreamAccessLogsResponse()


async def test_what_is_not_ours_is_counted_and_the_rest_is_told() -> None:
    async with taken() as envoy:
        call = envoy.stub.StreamAccessLogs()
        await call.write(StreamAccessLogsMessage())
        await call.write(StreamAccessLogsMessage(tcp_logs={"log_entry": [TCPAccessLogEntry()]}))
        await call.write(message(entry(None), entry(), HTTPAccessLogEntry()))
        await until(lambda: envoy.metric('extproc_access_log_entries_total{verdict="ignored"} 2.0'))
        assert envoy.ended == [ENDED]
        call.cancel()


async def test_entries_beyond_the_bound_of_a_message_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesslog, "ENTRIES_MAX", 5)
    async with taken() as envoy:
        call = envoy.stub.StreamAccessLogs()
        await call.write(message(*[entry()] * 8))
        await until(lambda: len(envoy.ended) == 5)
        assert envoy.metric('extproc_access_log_entries_total{verdict="ignored"} 3.0')
        call.cancel()


async def test_a_long_message_holds_up_nobody() -> None:
    async with taken() as envoy:
        turns: list[int] = []

        async def take_turns() -> None:
            while len(envoy.ended) < 2000:
                turns.append(len(envoy.ended))
                await asyncio.sleep(0)

        taking_turns = asyncio.create_task(take_turns())
        call = envoy.stub.StreamAccessLogs()
        await call.write(message(*[entry()] * 2000))
        await taking_turns
        assert len(set(turns)) >= 2000 / ENTRIES_AT_ONCE
        call.cancel()


async def test_a_fault_of_ours_loses_one_entry_and_not_the_stream() -> None:
    broken = entry()
    broken.response.response_code.value = 418
    async with taken() as envoy:
        call = envoy.stub.StreamAccessLogs()
        await call.write(message(broken, entry()))
        await call.write(message(entry()))
        await until(lambda: len(envoy.ended) == 2)
        assert envoy.metric('extproc_errors_total{where="access_log"} 1.0')
        call.cancel()


async def test_a_stream_that_breaks_off_is_forgotten() -> None:
    async with taken() as envoy:
        call = envoy.stub.StreamAccessLogs()
        await call.write(message(entry()))
        await until(lambda: envoy.access_log.streams_open == 1)
        call.cancel()
        await until(lambda: envoy.access_log.streams_open == 0)


async def test_streams_beyond_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesslog, "STREAMS_MAX", 1)
    async with taken() as envoy:
        first = envoy.stub.StreamAccessLogs()
        await first.write(message(entry()))
        await until(lambda: envoy.ended)
        second = envoy.stub.StreamAccessLogs()
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.write(message(entry()))
        await until(lambda: len(envoy.ended) == 2)
        first.cancel()


async def test_a_drain_ends_every_stream_well_and_takes_no_new_one() -> None:
    async with taken() as envoy:
        call = envoy.stub.StreamAccessLogs()
        await call.write(message(entry()))
        await until(lambda: envoy.ended)
        envoy.access_log.drain()
        assert await call.code() is grpc.StatusCode.OK
        late = envoy.stub.StreamAccessLogs()
        assert await late.code() is grpc.StatusCode.UNAVAILABLE
        assert envoy.access_log.streams_open == 0
