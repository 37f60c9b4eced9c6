import asyncio
import gc
import json
import logging
import random
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from extproc.config import ServeLimits
from extproc.core.request import TokenCount
from extproc.gateway import codec
from extproc.gateway.actions import Actions
from extproc.gateway.conversation import SetDestination
from extproc.gateway.routepolicy import KEY
from tests.core.fleet import snapshot
from tests.gateway.talk import chat
from tests.gateway.wire import ask, body, destination, end, head, metadata, response_trailers, wire
from tests.waiting import until

HOST = snapshot("a").host
LONG = chat("x" * 2000)
"""Counted off the loop."""


async def test_a_request_is_routed_and_its_node_is_busy_until_the_stream_ends() -> None:
    async with wire() as envoy:
        call = envoy.open()
        reply = await ask(call, head(content_length=len(chat())))
        assert reply.WhichOneof("response") == "request_headers"
        assert destination(reply) is None
        assert envoy.processor._budget.bytes_reserved == len(chat())
        reply = await ask(call, body(chat()))
        assert destination(reply) == HOST
        assert metadata(reply)["node"] == "a"
        assert (envoy.processor.streams_open, envoy.processor._budget.bytes_reserved) == (1, 0)
        assert envoy.balancer.requests_open == 1
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)
        assert envoy.metric('extproc_decisions_total{outcome="chosen",phase="decode"} 1.0')
        assert envoy.metric("extproc_streams_open 0.0")
        assert envoy.metric("extproc_body_bytes_held 0.0")


async def test_a_request_without_a_body_is_routed_at_its_headers() -> None:
    async with wire() as envoy:
        call = envoy.open()
        assert destination(await ask(call, head("/v1/models", method="GET", end_of_stream=True))) == HOST
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_what_envoy_says_of_the_response_is_acknowledged() -> None:
    async with wire() as envoy:
        call = envoy.open()
        reply = await ask(call, head(), body(chat()), response_trailers())
        assert reply.WhichOneof("response") == "response_trailers"
        reply = await ask(call, ProcessingRequest())
        assert reply == ProcessingResponse()
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_each_stream_has_the_policy_of_its_own_metadata() -> None:
    async with wire() as envoy:
        for values, policy, fault in (
            ([], "default", None),
            (["batch"], "batch", None),
            (["nobody", "batch"], "batch", None),
            (['{"limits": {"kv_usage_max": "0.5"}}'], "inline", None),
            (["nobody"], "default", "wanted a policy of the configuration, or one as a JSON object, got 'nobody'"),
        ):
            call = envoy.open([(KEY, value) for value in values])
            told = metadata(await ask(call, head(), body(chat())))
            assert (told["policy"], told.get("x-extproc-policy-error")) == (policy, fault)
            await end(call)
        assert envoy.metric("extproc_policy_faults_total 1.0")


async def test_a_refusal_is_an_immediate_response() -> None:
    async with wire() as envoy:
        call = envoy.open()
        reply = await ask(call, head(), body(chat(model="nobody")))
        assert reply.immediate_response.status.code == 404
        assert reply.immediate_response.details == "extproc_model_not_found"
        assert json.loads(reply.immediate_response.body)["error"]["param"] == "model"
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)
        assert envoy.metric('extproc_responses_total{code="model_not_found"} 1.0')


async def test_a_count_that_takes_time_holds_up_nobody_else() -> None:
    async with wire() as envoy:
        short = chat("x" * (1000 - len(chat(""))))
        await ask(envoy.open(), head(), body(short))
        envoy.counter.gate.clear()
        call = envoy.open()
        await ask(call, head())
        await call.write(body(short + b" "))
        await until(lambda: envoy.counter.waiting == 1)
        assert destination(await ask(envoy.open(), head(), body(chat()))) == HOST, "others are not held up"
        envoy.counter.gate.set()
        assert destination(await call.read()) == HOST


async def test_a_count_that_comes_after_the_decision_reaches_the_ledger() -> None:
    async with wire(snapshot("a")) as envoy:
        call = envoy.open()
        await ask(call, head(), body(chat()))
        assert envoy.counter.late is not None
        envoy.counter.late(TokenCount(320, exact=True))
        (view,) = envoy.balancer.views()
        assert view.own.prefill_tokens == 320
        assert await end(call) is grpc.StatusCode.OK
        envoy.counter.late(TokenCount(640, exact=True))
        await until(envoy.idle)


@pytest.mark.parametrize("stage", ["opened", "headers", "counting", "decided", "response"])
async def test_a_client_that_hangs_up_leaves_nothing_behind(stage: str, caplog: pytest.LogCaptureFixture) -> None:
    async with wire() as envoy:
        call = envoy.open()
        if stage != "opened":
            await ask(call, head(content_length=len(LONG)))
        if stage == "counting":
            envoy.counter.gate.clear()
            await call.write(body(LONG))
            await until(lambda: envoy.counter.waiting == 1)
        if stage in ("decided", "response"):
            assert destination(await ask(call, body(LONG))) == HOST
        if stage == "response":
            await ask(call, response_trailers())
        await until(lambda: envoy.processor.streams_open == 1)
        call.cancel()
        await until(envoy.idle)
        assert envoy.counter.waiting == 0
        assert destination(await ask(envoy.open(), head(), body(chat()))) == HOST
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_draining_ends_decided_streams_with_ok_and_answers_the_others_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with wire() as envoy:
        decided = [envoy.open() for _ in range(20)]
        for call in decided:
            assert destination(await ask(call, head(), body(chat()))) == HOST
        begun = envoy.open()
        await ask(begun, head())
        envoy.counter.gate.clear()
        counting = envoy.open()
        await ask(counting, head())
        await counting.write(body(LONG))
        await until(lambda: envoy.counter.waiting == 1)

        envoy.processor.drain()
        for call in decided:
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        await until(lambda: envoy.processor.streams_open == 2)
        refused = envoy.open()
        assert await refused.code() is grpc.StatusCode.UNAVAILABLE

        stopping = asyncio.ensure_future(envoy.server.stop(60))
        assert destination(await ask(begun, body(chat()))) == HOST
        envoy.counter.gate.set()
        assert destination(await counting.read()) == HOST
        for call in (begun, counting):
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        await asyncio.wait_for(stopping, 10)
        assert envoy.idle()
    gc.collect()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_draining_ends_a_stream_whose_response_already_began() -> None:
    async with wire() as envoy:
        call = envoy.open()
        await ask(call, head(), body(chat()), response_trailers())
        envoy.processor.drain()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


def broken(*_: Any, **__: Any) -> Any:
    msg = "broken for the test"
    raise RuntimeError(msg)


async def served_all_the_same(envoy: Any, where: str) -> dict[str, Any]:
    """One inference request; the metadata of its reply."""
    call = envoy.open()
    reply = await ask(call, head(content_length=len(chat())), body(chat()))
    assert await end(call) is grpc.StatusCode.OK
    await until(envoy.idle)
    assert envoy.metric(f'extproc_errors_total{{where="{where}"}} 1.0')
    assert reply.WhichOneof("response") == "request_body"
    return {"destination": destination(reply)} | metadata(reply)


async def test_a_counter_that_raises_leaves_the_request_to_the_fallback() -> None:
    async with wire() as envoy:
        envoy.counter.fails = True
        told = await served_all_the_same(envoy, "answer")
        assert (told["destination"], told["outcome"]) == (HOST, "uninspected")
        assert envoy.metric('extproc_decisions_total{outcome="uninspected",phase="none"} 1.0')
        assert envoy.metric('extproc_node_requests_total{node="a"} 1.0')


@pytest.mark.parametrize("place", ["extproc.gateway.openai.parse", "extproc.core.balancer.Balancer.route"])
async def test_an_error_while_reading_or_choosing_leaves_the_request_to_the_fallback(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire() as envoy:
        monkeypatch.setattr(place, broken)
        told = await served_all_the_same(envoy, "answer")
        assert (told["destination"], told["outcome"]) == (HOST, "uninspected")


async def test_an_error_in_a_metric_changes_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire() as envoy:
        monkeypatch.setattr("extproc.ops.requestmetrics.RequestMetrics.decided", broken)
        told = await served_all_the_same(envoy, "metrics")
        assert (told["destination"], told["outcome"]) == (HOST, "chosen")


async def test_a_decision_whose_reply_failed_at_first_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata_of = Actions._metadata

    def fails_once(*arguments: Any) -> Any:
        monkeypatch.setattr(Actions, "_metadata", metadata_of)
        return broken()

    async with wire() as envoy:
        monkeypatch.setattr(Actions, "_metadata", fails_once)
        told = await served_all_the_same(envoy, "answer")
        assert (told["destination"], told["outcome"]) == (HOST, "chosen")
        assert envoy.metric('extproc_decisions_total{outcome="chosen",phase="decode"} 1.0')
        assert envoy.metric('extproc_node_requests_total{node="a"} 1.0')


async def test_an_error_in_the_policies_leaves_the_default_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire() as envoy:
        monkeypatch.setattr("extproc.gateway.routepolicy.RoutePolicies.of", broken)
        told = await served_all_the_same(envoy, "policies")
        assert (told["destination"], told["policy"]) == (HOST, "default")
        assert told["x-extproc-policy-error"] == "could not be read"


async def test_an_error_while_writing_the_reply_lets_the_request_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    reply_of = codec.reply_of

    def only_acknowledges(action: Any, kind: str | None) -> ProcessingResponse:
        return broken() if isinstance(action, SetDestination) else reply_of(action, kind)

    async with wire() as envoy:
        monkeypatch.setattr("extproc.gateway.codec.reply_of", only_acknowledges)
        assert await served_all_the_same(envoy, "reply") == {"destination": None}


async def test_when_the_fallback_fails_too_the_request_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire() as envoy:
        envoy.counter.fails = True
        monkeypatch.setattr("extproc.core.balancer.Balancer.route_uninspected", broken)
        assert await served_all_the_same(envoy, "recovery") == {"destination": None}
        assert envoy.metric('extproc_errors_total{where="answer"} 1.0')


async def test_hundreds_of_streams_with_every_fate_leave_nothing_behind() -> None:
    fate = random.Random(1)
    limits = ServeLimits(body_bytes_max=50_000, body_bytes_total_max=200_000, body_claim_bytes_min=0)
    async with wire(snapshot("a"), snapshot("b"), limits=limits) as envoy:

        async def one() -> None:
            call = envoy.open()
            data = chat("x" * fate.choice([10, 900, 5000, 40_000]))
            claim = fate.choice([None, 0, len(data), 5 * len(data)])
            messages = fate.choice(
                [[], [head(content_length=claim)], [head(content_length=claim), body(data)], [body(data)], [head("/x")]]
            )
            try:
                for message in messages:
                    await call.write(message)
                    if fate.random() < 0.8:
                        await call.read()
                if fate.random() < 0.5:
                    await end(call)
                else:
                    call.cancel()
            except (asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError, AssertionError):
                call.cancel()

        await asyncio.gather(*(one() for _ in range(300)))
        await until(envoy.idle)
        assert envoy.metric("extproc_streams_open 0.0")
        assert "extproc_errors_total{" not in envoy.metrics.page(()).decode()
