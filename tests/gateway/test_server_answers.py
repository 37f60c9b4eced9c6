"""What Envoy shows of answers, over a real gRPC connection: first tokens, streams that are left, and what waits."""

from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from extproc.core.balancer import Balancer
from extproc.core.outcome import Answered, Ending
from extproc.gateway.routepolicy import KEY
from tests.core.fleet import snapshot
from tests.gateway.talk import chat
from tests.gateway.wire import (
    LEAVING,
    Call,
    Wire,
    ask,
    body,
    destination,
    end,
    head,
    response_body,
    response_head,
    response_trailers,
    wire,
)
from tests.waiting import until

TOKEN = b'data: {"choices":[{"text":" a"}]}\n\n'


def leaving(envoy: Wire) -> Call:
    return envoy.open([(KEY, LEAVING.name)])


async def answering(call: Call) -> None:
    """A request is chosen for and its answer has begun well."""
    assert destination(await ask(call, head(), body(chat())))
    reply = await ask(call, response_head(200))
    assert reply.WhichOneof("response") == "response_headers"


def prefill_tokens(envoy: Wire) -> int:
    (view,) = envoy.balancer.views()
    return view.own.prefill_tokens


async def ended_by_us(call: Call) -> grpc.StatusCode:
    assert await call.read() is grpc.aio.EOF
    code: grpc.StatusCode = await call.code()
    return code


async def test_a_first_token_is_noted_while_the_stream_goes_on_and_its_end_frees_the_node() -> None:
    async with wire() as envoy:
        call = envoy.open()
        await answering(call)
        assert prefill_tokens(envoy) > 0
        for piece in (b": ping\n\n", TOKEN, TOKEN):
            reply = await ask(call, response_body(piece))
            assert reply.WhichOneof("response") == "response_body"
            assert not reply.response_body.HasField("response"), "the piece goes on as it is"
            assert (prefill_tokens(envoy) == 0) == (piece is TOKEN)
        await ask(call, response_body(b"", end_of_stream=True), response_trailers())
        assert envoy.balancer.requests_open == 1
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_a_stream_that_is_left_ends_well_and_its_request_when_the_log_tells() -> None:
    async with wire() as envoy:
        call = leaving(envoy)
        await answering(call)
        await ask(call, response_body(b": ping\n\n"))
        await call.write(response_body(TOKEN))
        assert await ended_by_us(call) is grpc.StatusCode.OK
        await until(lambda: envoy.processor.streams_open == 0)
        assert (envoy.balancer.requests_open, prefill_tokens(envoy)) == (1, 0)
        (decision,) = envoy.balancer.decisions(1)
        envoy.balancer.answered(Answered(decision.request_id, Ending.SERVED), decision.at_s + 1)
        assert envoy.idle()
        assert "extproc_errors_total{" not in envoy.metrics.page(()).decode()


async def test_no_stream_is_left_while_nobody_would_tell_its_end() -> None:
    async with wire() as envoy:
        envoy.ends[0] = False
        call = leaving(envoy)
        await answering(call)
        await ask(call, response_body(TOKEN), response_body(TOKEN))
        assert prefill_tokens(envoy) == 0
        envoy.ends[0] = True
        await call.write(response_body(TOKEN))
        assert await ended_by_us(call) is grpc.StatusCode.OK
        assert envoy.balancer.requests_open == 1


async def test_an_answer_in_one_piece_is_not_left() -> None:
    async with wire() as envoy:
        call = leaving(envoy)
        await answering(call)
        await ask(call, response_body(b"{}", end_of_stream=True))
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_a_client_that_hangs_up_before_the_first_token_frees_the_node() -> None:
    async with wire() as envoy:
        call = leaving(envoy)
        await answering(call)
        call.cancel()
        await until(envoy.idle)


async def test_draining_ends_streams_of_answers_under_way() -> None:
    async with wire() as envoy:
        calls = [envoy.open(), leaving(envoy)]
        for call in calls:
            await answering(call)
        await ask(calls[0], response_body(TOKEN))
        envoy.processor.drain()
        assert [await ended_by_us(call) for call in calls] == [grpc.StatusCode.OK] * 2
        await until(envoy.idle)


async def test_a_node_that_answers_503_is_out_as_soon_as_its_head_has_come() -> None:
    async with wire(snapshot("a"), snapshot("b")) as envoy:
        hosts = []
        for _ in range(12):
            call = envoy.open()
            host = destination(await ask(call, head(), body(chat())))
            await ask(call, response_head(503 if host == snapshot("a").host else 200))
            await end(call)
            hosts.append(host)
        assert hosts.count(snapshot("a").host) == 1


@pytest.mark.parametrize(
    ("method", "where", "shown"),
    [
        ("answered", "answer", response_head(200)),
        ("first_token", "answer", response_body(TOKEN)),
        ("leave", "leave", response_body(TOKEN)),
    ],
)
async def test_a_fault_of_ours_while_an_answer_passes_is_counted_and_the_answer_goes_on(
    method: str, where: str, shown: ProcessingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        msg = "broken for the test"
        raise RuntimeError(msg)

    async with wire() as envoy:
        call = leaving(envoy)
        await ask(call, head(), body(chat()))
        if method != "answered":
            await ask(call, response_head(200))
        monkeypatch.setattr(Balancer, method, broken)
        reply = await ask(call, shown)
        assert reply.WhichOneof("response") == shown.WhichOneof("request")
        assert envoy.metric(f'extproc_errors_total{{where="{where}"}} 1.0')
        assert envoy.metrics.page(()).decode().count("extproc_errors_total{") == 1
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


class WritesFirst(grpc.aio.ServerInterceptor):
    """Notes each reply once it has been written."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        events = self._events

        class Noting:
            def __init__(self, context: Any) -> None:
                self._context = context

            def __getattr__(self, name: str) -> Any:
                return getattr(self._context, name)

            async def write(self, reply: Any) -> None:
                await self._context.write(reply)
                events.append(str(reply.WhichOneof("response")))

        async def serve(requests: Any, context: Any) -> None:
            await handler.stream_stream(requests, Noting(context))

        return grpc.stream_stream_rpc_method_handler(serve, ProcessingRequest.FromString, handler.response_serializer)


async def test_what_was_put_off_is_done_once_the_decision_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    settle = Balancer.settle

    def noting(balancer: Balancer) -> None:
        events.append("settled")
        settle(balancer)

    async with wire(interceptors=[WritesFirst(events)]) as envoy:
        monkeypatch.setattr(Balancer, "settle", noting)
        call = envoy.open()
        await ask(call, head(), body(chat()))
        await until(lambda: events[-1] == "settled")
        assert events[-2:] == ["request_body", "settled"]
        before = len(events)
        await ask(call, response_head(200), response_body(TOKEN))
        await end(call)
        await until(envoy.idle)
        assert "settled" not in events[before:], "only decisions put anything off"


async def test_a_fault_in_what_was_put_off_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire() as envoy:
        route = envoy.balancer.route

        def broken() -> None:
            msg = "broken for the test"
            raise RuntimeError(msg)

        def routes(*arguments: Any) -> Any:
            decision = route(*arguments)
            monkeypatch.setattr(envoy.balancer, "settle", broken)
            return decision

        monkeypatch.setattr(envoy.balancer, "route", routes)
        call = envoy.open()
        assert destination(await ask(call, head(), body(chat())))
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)
        assert envoy.metric('extproc_errors_total{where="settle"} 1.0')
