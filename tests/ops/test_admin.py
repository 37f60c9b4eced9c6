from collections.abc import Iterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, TokenCount
from extproc.core.snapshot import Learned, NodeState, OwnLoad, ServedModel, Snapshot
from extproc.ops import admin
from tests.ops.pages import Admin, Client, page

CLOCKED = {"work_tokens", "work_since_s", "sent_tokens", "sent_since_s"}
CLOCK_S = 1e9
"""Late on the balancer's clock."""


async def test_a_living_process_is_healthy(of: Admin, client: Client) -> None:
    of.draining = True
    async with client.get("/healthz") as response:
        assert response.status == 200


async def test_it_is_ready_once_there_is_a_node_and_until_it_drains(of: Admin, client: Client) -> None:
    assert await page(client, "/readyz", 503) == {"ready": False, "reason": "no node has reported, or all have left"}
    of.report("a")
    assert await page(client, "/readyz") == {"ready": True, "nodes": 1, "nodes_ready": 1, "nodes_static": 0}
    of.now_s += 100
    silent = {"ready": True, "nodes": 1, "nodes_ready": 0, "nodes_static": 0}
    assert await page(client, "/readyz") == silent, "a silent member still takes the fallback"
    of.draining = True
    assert await page(client, "/readyz", 503) == {"ready": False, "reason": "draining"}


async def test_nodes_shows_every_field_and_unknown_as_null(of: Admin, client: Client) -> None:
    of.report("a", models=(ServedModel("m", None, 4096), ServedModel("tuned", loaded=False)), kv_usage=0.25)
    of.now_s += 2
    of.route("r1")
    (node,) = (await page(client, "/nodes"))["nodes"]
    ours = {"freshness", "age_s", "static", "ready", "out_s", "on_trial"}
    ours |= {"in_flight", "prefill_tokens_ahead", "kv_blocks_told", "learned", "own", "peers"}
    assert set(Snapshot.__dataclass_fields__) | ours == set(node)
    assert node["node_id"] == "a"
    assert node["state"] == "ready"
    assert node["freshness"] == "fresh"
    assert node["ready"] is True
    assert node["age_s"] == 2.5
    assert (node["out_s"], node["on_trial"]) == (None, False)
    assert node["in_flight"] == 1
    assert node["prefill_tokens_ahead"] == 10
    assert node["kv_usage"] == 0.25
    assert node["gpu_utilization"] is None
    loaded, tuned = node["models"]
    assert loaded == {"name": "m", "version": None, "context_length_tokens": 4096, "loaded": True}
    assert (tuned["name"], tuned["loaded"]) == ("tuned", False)
    assert set(node["own"]) == set(OwnLoad.__struct_fields__) - CLOCKED
    assert (node["own"]["sequences_open"], node["own"]["requests_unseen"], node["own"]["prefill_tokens"]) == (1, 1, 10)
    assert set(node["learned"]) == set(Learned.__struct_fields__)
    assert node["learned"]["decode_s_per_token"] is None


async def test_nodes_shows_why_a_signal_is_absent_by_its_name(of: Admin, client: Client) -> None:
    why = (("kv_usage", "it stands still"), ("requests_running", '<script>alert("it")</script>'))
    of.report("a", absent=why)
    of.report("b", host="127.0.0.1:8001", kv_usage=0.5)
    a, b = (await page(client, "/nodes"))["nodes"]
    assert (a["absent"], b["absent"]) == (dict(why), {})
    assert a["kv_usage"] is None


async def test_nodes_shows_for_how_long_one_is_out_and_then_that_it_is_on_trial(of: Admin, client: Client) -> None:
    of.report("a")
    of.report("b", host="127.0.0.1:8001")
    of.balancer.answered(Answered("r", Ending.UNREACHABLE, "127.0.0.1:8001"), of.now_s)
    for waited_s, shown in ((0.25, (4.75, False)), (4.75, (None, True)), (3.0, (None, True))):
        of.now_s += waited_s
        a, b = (await page(client, "/nodes"))["nodes"]
        assert (a["out_s"], a["on_trial"]) == (None, False)
        assert (b["out_s"], b["on_trial"]) == shown


@pytest.mark.parametrize(
    ("state", "age_s", "freshness", "ready"),
    [
        (NodeState.READY, 4.9, "fresh", True),
        (NodeState.READY, 5.0, "stale", False),
        (NodeState.READY, 10.0, "unknown", False),
        (NodeState.LOADING, 0.5, "fresh", False),
    ],
)
async def test_a_node_is_ready_only_while_the_word_that_says_so_counts(
    of: Admin, client: Client, state: NodeState, age_s: float, freshness: str, ready: bool
) -> None:
    of.report("a", state=state)
    of.now_s += age_s - 0.5
    (node,) = (await page(client, "/nodes"))["nodes"]
    assert (node["state"], node["freshness"], node["ready"]) == (state.value, freshness, ready)


async def test_a_static_node_is_shown_as_one_and_is_enough_to_be_ready() -> None:
    of = Admin(static_nodes=[{"host": "10.0.0.1:8000"}])
    async with TestClient(TestServer(of.app)) as client:
        assert await page(client, "/readyz") == {"ready": True, "nodes": 1, "nodes_ready": 0, "nodes_static": 1}
        (node,) = (await page(client, "/nodes"))["nodes"]
        assert (node["node_id"], node["host"], node["state"]) == ("10.0.0.1:8000", "10.0.0.1:8000", "ready")
        assert (node["static"], node["freshness"], node["age_s"], node["ready"]) == (True, "unknown", None, False)
        async with client.get("/metrics") as response:
            metrics = await response.text()
        assert 'extproc_nodes{freshness="unknown",state="ready"} 1.0' in metrics
        assert "extproc_node_snapshot_age_seconds{" not in metrics, "nobody knows"
        of.report("a", host="10.0.0.1:8000")
        (node,) = (await page(client, "/nodes"))["nodes"]
        assert (node["node_id"], node["static"]) == ("a", False)


async def test_nodes_are_sorted_and_one_can_be_asked_for(of: Admin, client: Client) -> None:
    for node_id in ("b", "c d", "a"):
        of.report(node_id)
    assert [node["node_id"] for node in (await page(client, "/nodes"))["nodes"]] == ["a", "b", "c d"]
    assert [node["node_id"] for node in (await page(client, "/nodes?node=c%20d"))["nodes"]] == ["c d"]
    assert await page(client, "/nodes?node=x", 404) == {"error": "no node 'x'"}


async def test_decisions_come_newest_first_with_candidates_costs_and_reason(of: Admin, client: Client) -> None:
    of.report("a", requests_running=3, requests_waiting=0)
    of.report("b", requests_running=1, requests_waiting=0)
    of.route("r1")
    of.now_s += 1
    of.route("r2", model="other")
    newest, oldest = (await page(client, "/decisions?limit=2"))["decisions"]
    assert (newest["request_id"], oldest["request_id"]) == ("r2", "r1")
    assert oldest["age_s"] == 1.0
    assert "at_s" not in oldest
    assert oldest["x_request_id"] == "trace"
    assert oldest["outcome"]["kind"] == "chosen"
    assert oldest["outcome"]["node_id"] == "b"
    assert oldest["outcome"]["reason"].startswith("least-added-delay ")
    assert oldest["uncached_tokens"] == 10
    assert [one["node_id"] for one in oldest["candidates"]] == ["b", "a"]
    assert oldest["candidates"][0]["cost"] < oldest["candidates"][1]["cost"]
    assert (await page(client, "/decisions?limit=1"))["decisions"] == [newest]
    assert (await page(client, "/decisions?limit=0"))["decisions"] == []


def clock_times(found: object) -> Iterator[str]:
    """Names of fields that hold a time on the balancer's clock, which is far from all that these pages tell."""
    if isinstance(found, dict):
        for name, value in found.items():
            if isinstance(value, float | int) and value > CLOCK_S / 2:
                yield name
            yield from clock_times(value)
    elif isinstance(found, list):
        for value in found:
            yield from clock_times(value)


async def test_no_page_shows_a_time_on_the_clock_of_the_process(of: Admin, client: Client) -> None:
    of.now_s = CLOCK_S
    of.report("a", pending_prefills=3)
    of.report("b", host="127.0.0.1:8001")
    of.balancer.answered(Answered("r", Ending.UNREACHABLE, "127.0.0.1:8001"), of.now_s)
    of.route("r1")
    of.now_s += 1
    nodes, decisions = await page(client, "/nodes"), await page(client, "/decisions")
    assert (len(nodes["nodes"]), len(decisions["decisions"])) == (2, 1)
    assert list(clock_times([nodes, decisions])) == []


async def test_a_candidate_that_the_strategy_did_not_score_says_so(of: Admin, client: Client) -> None:
    for number in range(4):
        of.report(f"n{number}", host=f"127.0.0.1:{8000 + number}")
    of.route("r1", strategy="power-of-two")
    (decision,) = (await page(client, "/decisions"))["decisions"]
    chosen, other, *rest = decision["candidates"]
    assert chosen["node_id"] == decision["outcome"]["node_id"]
    assert [(one["cost"], one["excluded"]) for one in (chosen, other)] == [(0.0, None), (0.0, None)]
    assert [(one["cost"], one["excluded"]) for one in rest] == [(None, admin.NOT_SCORED)] * 2


async def test_of_candidates_that_were_not_scored_the_one_that_was_chosen_is_not_called_passed_over(
    of: Admin, client: Client
) -> None:
    for number in range(3):
        of.report(f"n{number}", host=f"127.0.0.1:{8000 + number}")
    of.route("r1", strategy="power-of-two")
    (decision,) = (await page(client, "/decisions"))["decisions"]
    thrown = {one["node_id"] for one in decision["candidates"] if one["cost"] is not None}
    for number in range(3):
        full = 100 if f"n{number}" in thrown else 0
        of.report(f"n{number}", host=f"127.0.0.1:{8000 + number}", sequence=2, requests_waiting=full)
    of.balancer.finish("r1", of.now_s)  # the id throws
    of.route("r1", strategy="power-of-two")
    (decision,) = (await page(client, "/decisions?limit=1"))["decisions"]
    (chosen,) = [one for one in decision["candidates"] if one["node_id"] == decision["outcome"]["node_id"]]
    assert chosen["node_id"] not in thrown
    assert (chosen["cost"], chosen["excluded"]) == (None, None)
    assert all(one["excluded"] for one in decision["candidates"] if one is not chosen)


async def test_decisions_without_a_limit_are_a_few(of: Admin, client: Client) -> None:
    of.report("a")
    for number in range(admin.DECISIONS_SHOWN + 1):
        of.route(f"r{number}")
    assert len((await page(client, "/decisions"))["decisions"]) == admin.DECISIONS_SHOWN
    assert len((await page(client, "/decisions?limit=100000"))["decisions"]) == admin.DECISIONS_SHOWN + 1


@pytest.mark.parametrize("limit", ["-1", "x", "", "1.5", "100001", "9" * 5000, "%D9%A3", "%00"])
async def test_a_bad_limit_is_named(client: Client, limit: str) -> None:
    error = (await page(client, f"/decisions?limit={limit}", 400))["error"]
    assert error.startswith("limit: wanted a number from 0 to 100000, got ")
    assert len(error) < 200


async def test_metrics_is_prometheus_text(of: Admin, client: Client) -> None:
    of.report("a", kv_usage=0.25)
    async with client.get("/metrics") as response:
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'extproc_node_kv_usage_ratio{node="a"} 0.25\n' in await response.text()
    of.report("a", sequence=2, absent=(("kv_usage", "it stands still"),))
    async with client.get("/metrics") as response:
        text = await response.text()
    assert 'extproc_node_signal_absent{node="a",signal="kv_usage"} 1.0\n' in text
    assert "it stands still" not in text
    assert "extproc_node_kv_usage_ratio{" not in text


async def test_the_index_lists_every_page(of: Admin, client: Client) -> None:
    async with client.get("/") as response:
        text = await response.text()
    for resource in of.app.router.resources():
        assert resource.canonical in text


async def test_the_index_says_what_in_nodes_does_not_speak_for_itself(client: Client) -> None:
    async with client.get("/") as response:
        said = {line.split()[0] for line in (await response.text()).splitlines()}
    assert said >= {"ready", "out_s", "on_trial", "absent"}


async def test_what_is_not_there_is_404_and_nothing_can_be_posted(client: Client) -> None:
    async with client.get("/nothing") as response:
        assert response.status == 404
    async with client.post("/nodes") as response:
        assert response.status == 405


async def test_of_who_was_queued_it_is_told_for_how_long_it_may_wait(of: Admin, client: Client) -> None:
    of.report("a", models=(ServedModel("m"),), requests_waiting=100)
    asked = InferenceRequest("r1", "m", Endpoint.CHAT, TokenCount(10, exact=True), priority="batch")
    of.balancer.route(asked, RoutingPolicy(), of.now_s)
    (decision,) = (await page(client, "/decisions"))["decisions"]
    assert (decision["outcome"]["kind"], decision["outcome"]["until_s"]) == ("queued", 30.0)
