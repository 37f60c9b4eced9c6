"""The endpoint-picker protocol of the Gateway API Inference Extension, as a gateway that speaks it would see us."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from extproc.render.description import BodyMode
from tests.e2e.listeners import MODES, NODES, SHARED, SUBSET_HEADER
from tests.e2e.modes import Running, completion
from tests.e2e.rawmodes import connected, head_of, response_of, rest_of, send_chunk, send_head
from tests.e2e.scripted import PIECE, UNAVAILABLE, Streaming
from tests.waiting import until

ENDPOINT = "x-gateway-destination-endpoint"
NAMED = '{"model": "b", "prompt": "Hi"}'
CUTS = (1, NAMED.index("model") + 2, NAMED.index('"b"') + 1, NAMED.index('"b"') + 2, len(NAMED) - 1)


@pytest_asyncio.fixture(loop_scope="session")
async def ordered(listening: Running) -> AsyncIterator[None]:
    """Node `a` has no one waiting, `b` has some, `c` has most."""
    for name, waiting in (("a", 0), ("b", 20), ("c", 40)):
        await listening.report(name, waiting_queue_size=waiting)
    yield
    await listening.report(*NODES)


@asynccontextmanager
async def gone(listening: Running, *names: str) -> AsyncIterator[None]:
    """Nobody listens at these nodes, which serve has not been told."""
    nodes = [listening.nodes[name] for name in names]
    for node in nodes:
        await node.leave()
    try:
        yield
    finally:
        for node in nodes:
            await node.listen(node.address)


def hosts(listening: Running, *names: str) -> str:
    return ",".join(str(listening.nodes[name].address) for name in names)


def allowed(listening: Running, *names: str) -> dict[str, str]:
    return {SUBSET_HEADER: hosts(listening, *names) or ","}


@pytest.mark.parametrize("at", CUTS)
async def test_json_that_is_cut_anywhere_is_read_as_one(listening: Running, at: int) -> None:
    async with connected(listening.urls["full-duplex.override-host"]) as (reader, writer):
        send_head(writer, "c", None)  # what a header says is not heard where the body is shown
        send_chunk(writer, NAMED[:at].encode())

        async def come() -> bool:
            return (await listening.metrics())["extproc_body_bytes_held"] == at

        await until(come)
        send_chunk(writer, NAMED[at:].encode())
        send_chunk(writer, b"")
        assert (await response_of(reader))[0] == 200
    assert [(one.node, one.size) for one in listening.got()] == [("b", len(NAMED))]
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["b", None])
async def test_an_empty_subset_is_503(listening: Running, mode: BodyMode, model: str | None) -> None:
    method = "GET" if model is None else "POST"
    came = await listening.ask(f"hinted.{mode}", model, method=method, headers=allowed(listening))
    assert (came.status, came.code, listening.got()) == (503, "no_ready_node", [])
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("ordered")
async def test_a_subset_of_the_busiest_node_goes_there(listening: Running, mode: BodyMode) -> None:
    for names, wanted in ((("c",), "c"), (("b", "c"), "b"), (NODES, "a"), (("known", "c"), "c")):
        came = await listening.ask(f"hinted.{mode}", SHARED, headers=allowed(listening, *names))
        assert (came.status, came.node) == (200, wanted)
        (got,) = listening.got()
        assert (got.node, SUBSET_HEADER in got.headers) == (wanted, False)
        listed = got.headers[ENDPOINT].split(",")
        assert set(listed) == set(hosts(listening, *(name for name in names if name != "known")).split(","))
    await listening.at_rest()


@pytest.mark.usefixtures("ordered")
async def test_a_subset_may_be_a_list(listening: Running) -> None:
    came = await listening.ask("hinted-list", SHARED)
    assert (came.status, came.node, [one.node for one in listening.got()]) == (200, "b", ["b"])
    came = await listening.ask("hinted-list", method="GET", path="/v1/models")
    assert (came.status, [one.node for one in listening.got()]) == (200, ["b"])
    await listening.at_rest()


async def test_a_model_that_is_served_but_not_in_the_subset_is_503(listening: Running) -> None:
    came = await listening.ask("hinted.full-duplex", "b", headers=allowed(listening, "a"))
    assert (came.status, came.code, listening.got()) == (503, "no_ready_node", [])
    await listening.at_rest()


@pytest.mark.parametrize("body", [b'{"prompt": "Hi"}', b'{"model": "b"', b"[]", b'{"model": 5}'])
async def test_a_body_without_a_model_or_without_json_is_400(listening: Running, body: bytes) -> None:
    came = await listening.ask("full-duplex.override-host", body=body)
    assert (came.status, json.loads(came.text)["error"]["type"]) == (400, "invalid_request_error")
    assert listening.got() == []
    await listening.at_rest()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_request_without_a_body_goes_to_some_node_of_those_allowed(listening: Running, method: str) -> None:
    for _ in range(4):
        headers = allowed(listening, "b", "c")
        came = await listening.ask("hinted.full-duplex", method=method, path="/v1/responses/17", headers=headers)
        assert came.status == 200
    assert {one.node for one in listening.got()} == {"b", "c"}
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_cannot_name_the_endpoint_nor_the_subset(listening: Running, mode: BodyMode) -> None:
    spoofed = {ENDPOINT: hosts(listening, "c"), f"{ENDPOINT}-subset": hosts(listening, "c")}
    for _ in range(3):
        came = await listening.ask(f"{mode}.override-host", "b", headers=spoofed)
        (got,) = listening.got()
        assert (came.status, got.node, got.headers[ENDPOINT]) == (200, "b", hosts(listening, "b"))
        assert f"{ENDPOINT}-subset" not in got.headers
    await listening.at_rest()


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("absent", "serves"), [(["a"], "b"), (["a", "b"], "c")])
async def test_the_list_is_walked_and_the_ledger_follows(
    listening: Running, mode: BodyMode, absent: list[str], serves: str
) -> None:
    body = completion(SHARED, 100_000, stream=True)
    streaming = Streaming()
    url = listening.urls[f"{mode}.override-host"]
    async with (
        listening.behaving(serves, streaming),
        gone(listening, *absent),
        connected(url) as (reader, writer),
    ):
        send_head(writer, SHARED, len(body))
        writer.write(body)
        status, headers = await head_of(reader)
        assert (status, headers["x-extproc-node"]) == (200, "a")
        (got,) = listening.got()
        assert (got.node, got.size) == (serves, len(body))
        assert got.headers[ENDPOINT] == hosts(listening, *NODES), "best first"

        async def moved() -> bool:
            return await listening.open_at() == {serves: 1}

        await until(moved)
        streaming.go()
        streaming.end()
        assert await rest_of(reader) == (PIECE, True)
        await listening.at_rest()


@pytest.mark.usefixtures("ordered")
async def test_an_answer_of_503_is_tried_elsewhere(listening: Running) -> None:
    async with listening.behaving("a", UNAVAILABLE):
        came = await listening.ask("full-duplex.override-host", SHARED)
    assert (came.status, [one.node for one in listening.got()]) == (200, ["a", "b"])
    await listening.at_rest()
