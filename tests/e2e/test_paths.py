"""Requests that are no inference, and paths that no engine is asked for, on a real Envoy and a real serve."""

import io

import pytest
from yarl import URL

from extproc.pb import nodes_pb2 as pb
from tests.e2e.conftest import MIB, System
from tests.e2e.outcomes import HELLO, ready_node
from tests.e2e.rawhttp import connect, response_of
from tests.e2e.reporter import Reporter


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
