"""The limits of its configuration hold."""

import json

import grpc
from grpc_health.v1 import health_pb2

from extproc.app import HEALTH_SERVICES
from extproc.pb import nodes_pb2
from tests.serve.served import Serve, asked, body, snapshot


async def test_streams_over_the_limit_are_refused_and_health_checks_are_not(serve: Serve) -> None:
    served = await serve(limits={"streams_max": 2})
    streams = [served.stream() for _ in range(2)]
    for stream in streams:
        await asked(stream)
    assert await served.stream().code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    healthy = await served.health.Check(health_pb2.HealthCheckRequest(service=HEALTH_SERVICES[1]))
    assert healthy.status == health_pb2.HealthCheckResponse.SERVING, "health checks are no streams"
    await streams[0].done_writing()
    assert await streams[0].code() == grpc.StatusCode.OK
    await asked(served.stream())


async def test_policies_and_their_limits_are_those_of_the_configuration(serve: Serve) -> None:
    served = await serve(policies={"batch": {}}, default_policy="batch", limits={"policy_bytes_max": 64})

    async def policy(value: str | None) -> tuple[str, str]:
        metadata = [] if value is None else [("x-extproc-policy", value)]
        fields = (await asked(served.stream(*metadata))).dynamic_metadata.fields["extproc"].struct_value.fields
        return fields["policy"].string_value, fields["x-extproc-policy-error"].string_value

    assert await policy(None) == ("batch", "")
    assert await policy("default") == ("default", "")
    assert await policy(json.dumps({"name": "x" * 49})) == ("x" * 49, "")
    assert await policy(json.dumps({"name": "x" * 53})) == ("batch", "wanted at most 64 bytes, got 65")


async def test_bodies_up_to_the_limit_are_read_and_longer_ones_get_413(serve: Serve) -> None:
    served = await serve(limits={"body_bytes_max": "5MiB"})  # over gRPC's own limit of 4 MiB
    empty = len(body(prompt="").request_body.body)
    longest = 5 * 1024 * 1024 - empty
    assert (await asked(served.stream(), prompt="a" * longest)).WhichOneof("response") == "request_body"
    refused = await asked(served.stream(), prompt="a" * (longest + 1))
    assert refused.immediate_response.status.code == 413


async def test_agents_are_held_to_the_configured_limits(serve: Serve) -> None:
    limits = {"agent_streams_max": 1, "agent_message_bytes_max": 1024}
    served = await serve(hosts_allowed=["10.0.0.0/8"], limits=limits)
    agent = served.agent()
    await agent.write(snapshot())
    acknowledgement = (await agent.read()).acknowledgement
    assert acknowledgement.verdict == nodes_pb2.Acknowledgement.VERDICT_REFUSED, "127.0.0.1 is not allowed here"
    assert await served.agent().code() == grpc.StatusCode.RESOURCE_EXHAUSTED, "a second agent"
    await agent.write(snapshot("x" * 1024))
    assert await agent.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, "a message that is too long"
    assert (await served.get("/readyz"))[0] == 503
