"""Requests that wait for room, over real gRPC: served when there is some, turned away, or given up by their clients."""

import asyncio
import contextlib
import gc
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from extproc.config import ServeLimits
from extproc.core.admissionsettings import PriorityClass
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.request import TokenCount
from extproc.gateway.routepolicy import KEY
from tests.core.fleet import MODEL, snapshot
from tests.gateway.talk import chat
from tests.gateway.wire import Call, Wire, answer, ask, body, destination, end, head, metadata, wire
from tests.waiting import until

HOST = snapshot("a").host
FULL = snapshot("a", requests_waiting=100, kv_blocks_total=None, kv_blocks_available=None)
ROOM = snapshot("a", kv_blocks_total=None, kv_blocks_available=None)
ONE_PLACE = snapshot("a", requests_waiting=99, kv_blocks_total=None, kv_blocks_available=None)
CLASSES = {
    "standard": PriorityClass(),
    "patient": PriorityClass(queue_ms_max=600_000, queue_requests_max=2000),
    "short": PriorityClass(queue_ms_max=50),
}
ALIASED = policy_from_mapping({"name": "aliased", "priority": "patient", "aliases": {"fast": MODEL}})
assert isinstance(ALIASED, RoutingPolicy)
POLICIES = (*(RoutingPolicy(name=name, priority=name) for name in CLASSES), ALIASED)
LONG = chat("x" * 2000)
"""Counted off the loop."""


@contextlib.asynccontextmanager
async def gate(*, limits: ServeLimits | None = None) -> AsyncIterator[Wire]:
    """A server whose one node has no room."""
    limits = limits or ServeLimits(body_bytes_max=100_000, body_bytes_total_max=10_000_000, body_claim_bytes_min=0)
    async with wire(FULL, limits=limits, classes=CLASSES, policies=POLICIES) as envoy:
        yield envoy


async def asked(envoy: Wire, policy: str = "patient", data: bytes = chat()) -> Call:
    """A stream on which all was said; the reply to the body has not come."""
    call = envoy.open([(KEY, policy)])
    await ask(call, head(content_length=len(data)))
    await call.write(body(data))
    return call


def wait(envoy: Wire, count: int, policy: str = "patient") -> Any:
    """Until so many wait."""
    return until(lambda: envoy.balancer.waiting[policy][0] == count)


def error_of(reply: Any) -> tuple[int, str]:
    return reply.immediate_response.status.code, json.loads(reply.immediate_response.body)["error"]["code"]


async def test_a_request_waits_and_goes_when_a_report_shows_room() -> None:
    async with gate() as envoy:
        call = await asked(envoy)
        await wait(envoy, 1)
        assert envoy.metric('extproc_queue_requests{priority="patient"} 1.0')
        assert envoy.metric(f'extproc_queue_body_bytes{{priority="patient"}} {float(len(chat()))}')
        assert envoy.processor._budget.bytes_reserved == len(chat()), "Envoy holds its body"
        envoy.report(ROOM)
        reply = await answer(call)
        assert destination(reply) == HOST
        told = metadata(reply)
        assert (told["priority"], told["outcome"]) == ("patient", "chosen")
        assert told["queued_ms"] >= 0
        assert envoy.metric('extproc_queue_requests{priority="patient"} 0.0')
        assert envoy.metric('extproc_queue_seconds_count{outcome="went",priority="patient"} 1.0')
        assert envoy.metric('extproc_decisions_total{outcome="chosen",phase="decode"} 1.0')
        assert 'outcome="queued"' not in envoy.metrics.page(()).decode(), "what waits is counted when it is decided"
        assert envoy.processor._budget.bytes_reserved == 0
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_while_it_waits_envoy_is_asked_to_have_patience() -> None:
    async with gate() as envoy:
        call = await asked(envoy)
        hold = await call.read()
        assert hold.WhichOneof("response") is None
        assert 600 < hold.override_message_timeout.ToSeconds() <= 601, "its time, and a margin"
        envoy.report(ROOM)
        assert destination(await call.read()) == HOST
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_a_request_goes_when_another_one_ends_without_a_report() -> None:
    async with gate() as envoy:
        envoy.report(ONE_PLACE)
        first = await asked(envoy)
        assert destination(await answer(first)) == HOST
        second, third = await asked(envoy), await asked(envoy)
        await wait(envoy, 2)
        for before, after in ((first, second), (second, third)):
            assert await end(before) is grpc.StatusCode.OK
            assert destination(await answer(after)) == HOST
        assert await end(third) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_its_time_up_a_request_is_429() -> None:
    async with gate() as envoy:
        patient = await asked(envoy)
        call = await asked(envoy, "short")
        reply = await answer(call)
        assert error_of(reply) == (429, "overloaded")
        told = metadata(reply)
        assert (told["priority"], told["outcome"]) == ("short", "overloaded")
        assert 50 <= told["queued_ms"] < 5000
        assert {one.header.key for one in reply.immediate_response.headers.set_headers} == {
            "content-type",
            "retry-after",
        }
        assert await end(call) is grpc.StatusCode.OK
        assert envoy.metric('extproc_queue_seconds_count{outcome="refused",priority="short"} 1.0')
        assert envoy.metric('extproc_responses_total{code="overloaded"} 1.0')
        assert envoy.balancer.waiting["patient"][0] == 1
        patient.cancel()
        await until(envoy.idle)


async def test_while_one_waits_others_are_answered() -> None:
    async with gate() as envoy:
        waiting = await asked(envoy)
        await wait(envoy, 1)
        refused = envoy.open([(KEY, "standard")])
        assert error_of(await ask(refused, head(), body(chat()))) == (429, "overloaded")
        poll = envoy.open()
        assert destination(await ask(poll, head("/v1/models", method="GET", end_of_stream=True))) == HOST
        assert envoy.balancer.waiting["patient"][0] == 1
        waiting.cancel()


async def test_a_thousand_clients_that_give_up_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async with gate() as envoy:
        calls = await asyncio.gather(*(asked(envoy) for _ in range(1000)))
        await wait(envoy, 1000)
        assert envoy.processor.streams_open == 1000
        assert envoy.processor._budget.bytes_reserved == 1000 * len(chat())
        for call in calls:
            call.cancel()
        await until(envoy.idle)
        assert envoy.balancer.waiting == dict.fromkeys(CLASSES, (0, 0))
        assert len(envoy.processor._waiting) == 0
        assert envoy.balancer.next_deadline_s is None
        assert envoy.metric("extproc_streams_open 0.0")
        assert envoy.metric("extproc_body_bytes_held 0.0")
        envoy.report(ROOM)
        assert destination(await (await asked(envoy)).read()) == HOST
        assert "extproc_errors_total{" not in envoy.metrics.page(()).decode()
    gc.collect()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_of_many_who_wait_those_who_stay_go_whoever_gives_up_meanwhile() -> None:
    async with gate() as envoy:
        calls = await asyncio.gather(*(asked(envoy) for _ in range(100)))
        await wait(envoy, 100)
        for call in calls[::2]:
            call.cancel()
        envoy.report(ROOM)
        for call in calls[1::2]:
            assert destination(await answer(call)) == HOST
            assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_a_request_that_waits_has_its_alias_in_the_body_and_its_length() -> None:
    async with gate() as envoy:
        data = chat(model="fast")
        call = await asked(envoy, "aliased", data)
        await wait(envoy, 1)
        envoy.report(ROOM)
        reply = await answer(call)
        assert destination(reply) == HOST
        response = reply.request_body.response
        assert json.loads(response.body_mutation.body) == json.loads(data) | {"model": MODEL}
        sent = {one.header.key: one.header.raw_value for one in response.header_mutation.set_headers}
        assert sent["content-length"] == str(len(response.body_mutation.body)).encode()
        assert metadata(reply)["model_asked"] == "fast"


async def test_a_count_that_comes_while_it_waits_reaches_the_queue() -> None:
    async with gate() as envoy:
        call = await asked(envoy)
        await wait(envoy, 1)
        assert envoy.counter.late is not None
        envoy.counter.late(TokenCount(320, exact=True))
        envoy.report(ROOM)
        assert metadata(await answer(call))["tokens"] == 320


async def test_draining_answers_all_who_wait_and_those_that_are_still_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gate() as envoy:
        calls = await asyncio.gather(*(asked(envoy) for _ in range(50)))
        await wait(envoy, 50)
        envoy.counter.gate.clear()
        counting = await asked(envoy, data=LONG)
        await until(lambda: envoy.counter.waiting == 1)

        envoy.processor.drain()
        stopping = asyncio.ensure_future(envoy.server.stop(60))
        for call in calls:
            assert error_of(await answer(call)) == (429, "overloaded")
            assert await answer(call) is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        await until(lambda: envoy.processor.streams_open == 1)
        envoy.counter.gate.set()
        assert error_of(await answer(counting)) == (429, "overloaded")
        assert await counting.code() is grpc.StatusCode.OK
        await asyncio.wait_for(stopping, 10)
        assert envoy.idle()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def broken(*_: Any) -> Any:
    msg = "broken for the test"
    raise RuntimeError(msg)


async def test_an_error_while_looking_sends_all_who_wait_to_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gate() as envoy:
        calls = [await asked(envoy), await asked(envoy, "aliased", chat(model="fast"))]
        await wait(envoy, 2)
        monkeypatch.setattr("extproc.core.balancer.Balancer.admit", broken)
        envoy.report(ROOM)
        for call in calls:
            reply = await answer(call)
            assert destination(reply) == HOST
            assert metadata(reply)["outcome"] == "uninspected"
        assert json.loads(reply.request_body.response.body_mutation.body)["model"] == MODEL
        for call in calls:
            assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)
        page = envoy.metrics.page(()).decode()
        assert 'extproc_errors_total{where="admit"}' in page
        assert 'extproc_errors_total{where="answer"} 2.0' in page
        monkeypatch.undo()
        call = await asked(envoy)
        assert destination(await answer(call)) == HOST


async def test_who_is_gone_before_its_time_is_counted() -> None:
    """Its client left, or Envoy lost patience: only the stream's end is seen."""
    async with gate() as envoy:
        call = await asked(envoy)
        await wait(envoy, 1)
        call.cancel()
        await until(envoy.idle)
        assert envoy.metric('extproc_queue_seconds_count{outcome="gone",priority="patient"} 1.0')
