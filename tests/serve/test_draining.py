"""How it ends."""

import signal

import grpc
from grpc_health.v1 import health_pb2

from extproc.app import HEALTH_SERVICES
from tests.serve.served import Serve, asked, body, headers, reported

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_sigterm_lets_decided_streams_go_with_ok_and_ends_with_status_0(serve: Serve) -> None:
    served = await serve()
    streams = [served.stream() for _ in range(3)]
    for stream in streams:
        await asked(stream)
    agent = await reported(served)
    served.child.signal(signal.SIGTERM)
    assert [await stream.code() for stream in streams] == [grpc.StatusCode.OK] * 3
    assert await agent.code() == grpc.StatusCode.OK
    assert await served.child.ended() == 0


async def test_while_it_drains_new_streams_are_refused_and_open_ones_are_decided(serve: Serve) -> None:
    served = await serve(drain_s=60)
    undecided = served.stream()
    await undecided.write(headers())
    await undecided.read()
    watch = served.health.Watch(health_pb2.HealthCheckRequest(service=HEALTH_SERVICES[1]))
    assert (await watch.read()).status == SERVING

    served.child.signal(signal.SIGTERM)
    assert (await watch.read()).status == NOT_SERVING
    assert await served.get("/readyz") == (503, {"ready": False, "reason": "draining"})
    refused = served.stream()
    assert await refused.code() == grpc.StatusCode.UNAVAILABLE
    await undecided.write(body())
    assert (await undecided.read()).WhichOneof("response") == "request_body"
    assert await undecided.code() == grpc.StatusCode.OK
    watch.cancel()
    assert await served.child.ended() == 0


async def test_streams_that_stay_undecided_are_cut_off_after_drain_s(serve: Serve) -> None:
    served = await serve(drain_s=0.1)
    undecided = served.stream()
    await undecided.write(headers())
    await undecided.read()
    served.child.signal(signal.SIGINT)
    assert await undecided.code() != grpc.StatusCode.OK
    assert await served.child.ended() == 0


async def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    served = await serve(drain_s=600)
    undecided = served.stream()
    await undecided.write(headers())
    await undecided.read()
    served.child.signal(signal.SIGTERM)
    await served.child.logged('"draining"', within_s=30)
    served.child.signal(signal.SIGTERM)
    assert await served.child.ended() == 128 + signal.SIGTERM
