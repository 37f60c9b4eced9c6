"""The access log's service over a real gRPC connection."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry, TCPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.accesslog.v3.als_pb2_grpc import AccessLogServiceStub

from extproc.config import ServeLimits
from extproc.gateway import accesslog
from extproc.gateway.accesslog import ENTRIES_AT_ONCE, UNREAD_TOLD, AccessLog, AnswerEnded, register
from extproc.gateway.server import grpc_options
from extproc.ops.metrics import Metrics
from extproc.sizes import KIB
from tests.gateway.entries import ENDED, entry
from tests.waiting import until

ROOT = Path(__file__).parents[2]


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
    server = grpc.aio.server(options=grpc_options(ServeLimits(body_bytes_max=KIB)))
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


def begun(made: HTTPAccessLogEntry, seconds: float = 1e6) -> HTTPAccessLogEntry:
    """The entry, of a request that began so long after now."""
    made.common_properties.start_time.seconds = int(time.time() + seconds)
    return made


def running(made: HTTPAccessLogEntry) -> HTTPAccessLogEntry:
    made.common_properties.access_log_type = AccessLogType.DownstreamPeriodic
    return made


UNREAD = [begun(entry(None)) for _ in range(UNREAD_TOLD)]


@pytest.mark.parametrize(
    ("entries", "warnings"),
    [
        (UNREAD, 1),
        (UNREAD * 3, 1),
        (UNREAD[1:], 0),
        ([*UNREAD[1:], entry(), *UNREAD], 0),
        ([entry(), *UNREAD], 0),
        ([begun(entry(None), -60)] * 50, 0),
        ([running(begun(entry(None)))] * 50, 0),
        ([begun(entry({}))] * 50, 0),
    ],
    ids=["none read", "thrice", "too few", "one late", "one early", "began before us", "not ended", "ours is there"],
)
async def test_it_is_told_once_where_the_first_entries_are_all_without_our_metadata(
    entries: list[HTTPAccessLogEntry], warnings: int
) -> None:
    with structlog.testing.capture_logs() as logged:
        async with taken() as envoy:
            call = envoy.stub.StreamAccessLogs()
            await call.write(message(*entries))
            await call.done_writing()
            await call
    told = [one["event"] for one in logged if one["log_level"] == "warning"]
    assert len(told) == warnings
    assert all("receiving_namespaces needs extproc" in one for one in told)


async def test_a_message_as_long_as_envoy_makes_them_is_read_however_short_bodies_are_kept() -> None:
    (ends,) = re.findall(r"buffer_size_bytes: ([1-9][0-9]*)", (ROOT / "envoy/bootstrap.yaml").read_text())
    long = entry()
    long.request.user_agent = "x" * 60 * KIB  # all headers of a request have so much, by Envoy's default
    async with taken() as envoy:
        call = envoy.stub.StreamAccessLogs()
        gathered = message(*[long] * (int(ends) // long.ByteSize() + 2))
        assert gathered.ByteSize() > int(ends)
        await call.write(gathered)
        await until(lambda: len(envoy.ended) == len(gathered.http_logs.log_entry))
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
