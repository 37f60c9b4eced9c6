"""Bodies that are too long, too many or too slow, on a real Envoy and a real serve."""

import json

from tests.e2e.conftest import MIB, System
from tests.e2e.outcomes import HELLO, ready_node
from tests.e2e.rawhttp import announce, connect, head, response_of
from tests.e2e.reporter import Reporter
from tests.waiting import until


async def test_a_body_over_the_limit_is_refused_before_it_is_sent(agentless_system: System, reporter: Reporter) -> None:
    await ready_node(agentless_system, reporter)
    status, headers, body = await announce(agentless_system.envoy, 32 * MIB + 1)
    assert (status, headers["content-type"]) == (413, "application/json")
    assert json.loads(body)["error"]["code"] == "request_too_large"
    assert "33554432 bytes" in json.loads(body)["error"]["message"]


async def test_a_body_of_unknown_length_is_refused_at_the_limit(agentless_system: System, reporter: Reporter) -> None:
    await ready_node(agentless_system, reporter)
    reader, writer = await connect(agentless_system.envoy)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
        for _ in range(34):
            writer.write(chunk)
        status, headers, body = await response_of(reader)
    finally:
        writer.transport.abort()
    assert (status, headers["content-type"]) == (413, "application/json")
    assert json.loads(body)["error"]["code"] == "request_too_large"


async def test_bodies_over_their_share_of_memory_are_refused_before_they_are_sent(
    agentless_system: System, reporter: Reporter
) -> None:
    await ready_node(agentless_system, reporter)
    _, holding = await connect(agentless_system.envoy)
    try:
        holding.write(head(30 * MIB) + b" ")

        async def refused() -> bool:
            status, headers, body = await announce(agentless_system.envoy, 20 * MIB)
            if status == 429:
                assert int(headers["retry-after"]) >= 1
                assert json.loads(body)["error"]["type"] == "rate_limit_error"
            return status == 429

        await until(refused)
        await ready_node(agentless_system, reporter)
        assert (await agentless_system.ask(HELLO)).served, "small ones still fit"
    finally:
        holding.transport.abort()

    async def released() -> bool:
        status, _, _ = await announce(agentless_system.envoy, 20 * MIB, wait_s=0.2)
        return status != 429

    await until(released)


async def test_an_upload_that_takes_too_long_is_ended_and_gives_its_share_back(
    agentless_system: System, reporter: Reporter
) -> None:
    await ready_node(agentless_system, reporter)
    reader, slow = await connect(agentless_system.envoy)
    try:
        slow.write(head(30 * MIB) + b" ")
        status, _, _ = await response_of(reader)
        assert status == 408
    finally:
        slow.transport.abort()

    async def released() -> bool:
        status, _, _ = await announce(agentless_system.envoy, 30 * MIB, wait_s=0.2)
        return status == 0

    await until(released)
