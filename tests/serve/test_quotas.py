"""What a tenant may use, over the wire."""

import json
from typing import Any

from envoy.config.core.v3.base_pb2 import HeaderValue

from tests.serve.served import Serve, Served, body, headers, reported
from tests.waiting import until

SETTINGS: dict[str, Any] = {
    "nodes": {"report_interval_s": 0.01, "fresh_s": 60, "stale_s": 60},
    "policies": {"default": {"tenant_header": "x-tenant"}},
    "rates": {"output_tokens": 100},
    "quotas": [{"tenant": "acme", "tokens_per_minute": 250}, {"tenant": "*", "concurrent_tokens": 150}],
}


async def asked_by(served: Served, tenant: str) -> tuple[Any, Any]:
    """A stream of a tenant's request for about 102 tokens, and the reply that carries the decision."""
    stream = served.stream()
    head = headers()
    head.request_headers.headers.headers.append(HeaderValue(key="x-tenant", raw_value=tenant.encode()))
    await stream.write(head)
    await stream.read()
    await stream.write(body())
    return stream, await stream.read()


def refusal(reply: Any) -> tuple[int, str, dict[str, str]]:
    answer = reply.immediate_response
    told = {one.header.key: one.header.raw_value.decode() for one in answer.headers.set_headers}
    return answer.status.code, json.loads(answer.body)["error"]["code"], told


def is_routed(reply: Any) -> bool:
    return reply.WhichOneof("response") == "request_body" and bool(
        reply.request_body.response.header_mutation.set_headers
    )


async def started(serve: Serve) -> Served:
    served = await serve(**SETTINGS)
    await reported(served)

    async def chosen() -> bool:
        stream, reply = await asked_by(served, "early")
        await stream.done_writing()
        await stream.code()
        return is_routed(reply)

    await until(chosen)
    return served


async def test_tokens_of_a_minute_are_a_tenants_own_and_are_told(serve: Serve) -> None:
    served = await started(serve)
    for _ in range(2):
        assert is_routed((await asked_by(served, "acme"))[1])
    status, code, told = refusal((await asked_by(served, "acme"))[1])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert told["x-ratelimit-limit-tokens"] == "250"
    assert 0 <= int(told["x-ratelimit-remaining-tokens"]) < 102
    assert 1 <= int(told["retry-after"]) <= 60
    assert is_routed((await asked_by(served, "other"))[1])
    assert 'extproc_responses_total{code="rate_limit_exceeded"} 1.0' in await served.page("/metrics")


async def test_tokens_in_flight_are_free_again_when_the_request_is_over(serve: Serve) -> None:
    served = await started(serve)
    first, reply = await asked_by(served, "other")
    assert is_routed(reply)
    assert refusal((await asked_by(served, "other"))[1])[:2] == (429, "rate_limit_exceeded")
    await first.done_writing()
    await first.code()
    assert is_routed((await asked_by(served, "other"))[1])
