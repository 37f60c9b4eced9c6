"""The outcomes a client can see, on a real Envoy and a real serve; the nodes are the test's own words."""

import asyncio
from typing import Any

import pytest

from extproc.pb import nodes_pb2 as pb
from extproc.traffic import Ask, chat, completion
from tests.e2e.conftest import MODEL, System
from tests.e2e.outcomes import HELLO, error_of, ready_node
from tests.e2e.rawhttp import trap
from tests.e2e.reporter import Reporter
from tests.waiting import until


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


async def test_when_every_node_is_full_clients_are_told_to_come_back(
    agentless_system: System, reporter: Reporter
) -> None:
    await ready_node(agentless_system, reporter, waiting_queue_size=100)
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
