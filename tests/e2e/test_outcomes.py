"""Each row of the outcomes a client can see, on a real Envoy and a real serve; the nodes are the test's own words."""

import asyncio
import io
import json
from typing import Any

import pytest
from yarl import URL

from extproc.pb import nodes_pb2 as pb
from extproc.traffic import Answer, Ask, chat, completion
from tests.e2e.conftest import MIB, MODEL, System
from tests.e2e.rawhttp import announce, connect, head, response_of, trap
from tests.e2e.reporter import Reporter
from tests.waiting import until

HELLO = Ask("chat", "/v1/chat/completions", chat(MODEL, "Hello", output_tokens=2, stream=False))


def error_of(answer: Answer) -> dict[str, Any]:
    """The error of an OpenAI-shaped body, and of nothing else."""
    body = json.loads(answer.text)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


async def ready_node(system: System, reporter: Reporter, **fields: Any) -> None:
    await reporter.report("scripted", system.engines[0].address, **fields)


async def test_while_no_node_has_reported_envoys_own_cluster_serves(agentless_system: System) -> None:
    async with trap() as spoof:
        answer = await agentless_system.ask(HELLO, headers=spoof)
    assert answer.served
    assert answer.chosen is None
    assert answer.reason == "no node has reported yet"


async def test_a_ready_node_answers_itself(agentless_system: System, reporter: Reporter) -> None:
    await ready_node(agentless_system, reporter)
    answer = await agentless_system.ask(HELLO)
    assert (answer.status, answer.chosen, answer.engine) == (200, "scripted", "gpu-1")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": []}, "model"),
        ("/v1/chat/completions", {"model": 7, "messages": []}, "model"),
        ("/v1/chat/completions", {"model": MODEL, "messages": "Hello"}, "messages"),
        ("/batch/v1/completions", {"model": MODEL, "prompt": {}}, "prompt"),
    ],
)
async def test_a_field_that_is_wrong_is_named(
    agentless_system: System, reporter: Reporter, path: str, body: dict[str, Any], param: str
) -> None:
    await ready_node(agentless_system, reporter)
    answer = await agentless_system.ask(Ask("wrong", path, body))
    error = error_of(answer)
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", param)


async def test_a_body_that_is_not_json_is_refused(agentless_system: System, reporter: Reporter) -> None:
    await ready_node(agentless_system, reporter)
    url = agentless_system.envoy.url + HELLO.path
    async with agentless_system.client.post(url, data=b"{model: demo") as response:
        assert response.status == 400
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_a_prompt_longer_than_every_context_is_refused(agentless_system: System, reporter: Reporter) -> None:
    await ready_node(agentless_system, reporter)
    fits = completion(MODEL, [1] * 990, output_tokens=10, stream=False)
    answer = await agentless_system.ask(Ask("fits", "/v1/completions", fits))
    assert answer.served, answer
    too_long = completion(MODEL, [1] * 991, output_tokens=10, stream=False)
    answer = await agentless_system.ask(Ask("long", "/v1/completions", too_long))
    assert (answer.status, error_of(answer)["code"]) == (400, "context_length_exceeded")


async def test_a_model_that_no_node_serves_is_not_found(agentless_system: System, reporter: Reporter) -> None:
    await ready_node(agentless_system, reporter)
    answer = await agentless_system.ask(
        Ask("chat", HELLO.path, chat("nothing", "Hello", output_tokens=1, stream=False))
    )
    error = error_of(answer)
    assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")


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


async def test_when_every_node_is_full_clients_are_told_to_come_back(
    agentless_system: System, reporter: Reporter
) -> None:
    await ready_node(agentless_system, reporter, kv_cache_usage=0.95)
    url = agentless_system.envoy.url + HELLO.path
    async with agentless_system.client.post(url, json=HELLO.body) as response:
        assert response.status == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["code"] == "overloaded"


@pytest.mark.parametrize("state", [pb.NODE_STATE_LOADING, pb.NODE_STATE_DRAINING])
async def test_when_no_known_node_is_ready_clients_are_told_so(
    agentless_system: System, reporter: Reporter, state: pb.NodeState.ValueType
) -> None:
    await ready_node(agentless_system, reporter, state=state)
    url = agentless_system.envoy.url + HELLO.path
    async with agentless_system.client.post(url, json=HELLO.body) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert (await response.json())["error"]["code"] == "no_ready_node"


async def test_when_every_snapshot_is_stale_the_round_robin_serves(
    agentless_system: System, reporter: Reporter
) -> None:
    await ready_node(agentless_system, reporter)
    seen = set()

    async def fell_back() -> bool:
        answer = await agentless_system.ask(HELLO)
        seen.add(answer.status)
        return answer.chosen == "scripted" and (answer.reason or "").startswith("round robin")

    await until(fell_back)
    assert seen == {200}


@pytest.mark.parametrize("path", ["/v1/models", "/batch/v1/models?x=1"])
async def test_what_is_no_inference_goes_to_a_node_and_is_not_counted(
    agentless_system: System, reporter: Reporter, path: str
) -> None:
    await ready_node(agentless_system, reporter)
    async with agentless_system.client.get(agentless_system.envoy.url + path) as response:
        assert response.status == 200
        assert response.headers["x-extproc-node"] == "scripted"
        assert response.headers["x-engine"] == "gpu-1"
    assert await agentless_system.requests_open() == 0


@pytest.mark.parametrize("path", ["/v1/rerank", "/batch/v1/rerank"])
async def test_a_body_that_is_no_inference_goes_whole_to_a_node(
    agentless_system: System, reporter: Reporter, path: str
) -> None:
    # The node is named when Envoy has the headers, and most of the body is still to come.
    await ready_node(agentless_system, reporter)
    body = b"x" * (3 * MIB)
    url = agentless_system.envoy.url + path
    async with agentless_system.client.post(url, data=io.BytesIO(body)) as response:
        # The emulated engine does not have this path; its own answer says what reached it.
        assert (response.status, response.headers["x-engine"]) == (404, "gpu-1")
        assert response.headers["x-body-bytes"] == str(len(body))
        assert response.headers["x-extproc-node"] == "scripted"
    line = await agentless_system.access_log_of(response.headers["x-request-id"])
    assert line["cluster"] == "chosen-node"
    assert await agentless_system.requests_open() == 0


@pytest.mark.parametrize("framing", ["content-length: 0\r\n\r\n", "transfer-encoding: chunked\r\n\r\n0\r\n\r\n"])
async def test_an_inference_request_without_a_body_is_the_engines_to_refuse(
    agentless_system: System, reporter: Reporter, framing: str
) -> None:
    await ready_node(agentless_system, reporter)
    reader, writer = await connect(agentless_system.envoy)
    try:
        writer.write(f"POST {HELLO.path} HTTP/1.1\r\nhost: x\r\n{framing}".encode())
        status, headers, _ = await response_of(reader)
    finally:
        writer.transport.abort()
    assert (status, headers["x-engine"], headers["x-body-bytes"]) == (400, "gpu-1", "0")
    assert headers["x-extproc-node"] == "scripted"
    assert await agentless_system.requests_open() == 0


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/rerank")])
async def test_what_is_no_inference_is_refused_as_well_when_no_node_is_ready(
    agentless_system: System, reporter: Reporter, method: str, path: str
) -> None:
    await ready_node(agentless_system, reporter, state=pb.NODE_STATE_LOADING)
    body = b"{}" if method == "POST" else None
    async with agentless_system.client.request(method, agentless_system.envoy.url + path, data=body) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert (await response.json())["error"]["code"] == "no_ready_node"


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/health", "/slots", "/sleep", "/batch/metrics", "/v1", "/", "/x/v1/completions"),
        *("/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics", "/batch/v1/../../metrics", "//metrics"),
        *("/v1/load_lora_adapter", "/batch/v1/unload_lora_adapter?x=1", "/v1/load%5Flora_adapter/"),
    ],
)
async def test_engines_are_asked_for_nothing_but_the_api(
    agentless_system: System, reporter: Reporter, path: str
) -> None:
    await ready_node(agentless_system, reporter)
    url = URL(agentless_system.envoy.url + path, encoded=True)
    async with agentless_system.client.post(url, data=b"{}") as response:
        assert (response.status, response.content_type) == (404, "application/json")
        assert (await response.json())["error"]["code"] == "not_found"
        assert "x-engine" not in response.headers
    line = await agentless_system.access_log_of(response.headers["x-request-id"])
    assert line["outcome"] is None, "extproc is not asked"


async def test_an_engines_own_error_passes_unchanged(agentless_system: System, reporter: Reporter) -> None:
    # The agent says that the node serves it; the engine knows better.
    await ready_node(agentless_system, reporter, model="unheard-of")
    answer = await agentless_system.ask(Ask("chat", HELLO.path, chat("unheard-of", "?", output_tokens=1, stream=False)))
    assert (answer.status, answer.engine) == (404, "gpu-1")
    assert error_of(answer)["code"] == 404


async def test_a_node_that_cannot_be_reached_gives_an_error_that_clients_can_read(
    agentless_system: System, reporter: Reporter
) -> None:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    await reporter.report("gone", type(agentless_system.engines[0].address)("127.0.0.1", port))
    answer = await agentless_system.ask(HELLO)
    assert (answer.status, answer.chosen, answer.engine) == (503, "gone", None)
    assert error_of(answer)["code"] == "node_unreachable"


async def test_a_route_whose_policy_is_wrong_is_served_by_the_default_policy_and_says_so(
    agentless_system: System, reporter: Reporter
) -> None:
    await ready_node(agentless_system, reporter)
    answer = await agentless_system.ask(
        Ask("batch", "/batch/v1/completions", completion(MODEL, "x", output_tokens=1, stream=False)),
        headers={"x-request-id": "wrong-policy"},
    )
    assert (answer.status, answer.chosen, answer.policy) == (200, "scripted", "default")
    line = await agentless_system.access_log_of("wrong-policy")
    assert "strategy" in line["policy_error"]
    assert "load-score" in line["policy_error"], "what is wanted"
