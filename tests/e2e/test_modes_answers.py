"""Refusals, other models, and answers, in every body mode."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from extproc.render.description import BodyMode
from tests.e2e.listeners import ALIAS, BODY_BYTES_MAX, KIB, MODES, NODES
from tests.e2e.modes import Running, completion, cut
from tests.e2e.rawmodes import connected, head_of, rest_of, send_head
from tests.e2e.scripted import PIECE, Streaming, chunk

SHOWN = ("buffered", "full-duplex", "buffered-partial")
"""Modes in which the body is looked at."""
REPLACED = ("buffered", "full-duplex")
BLIND = ("streamed", "none")
BAD = {
    "no JSON": (b'{"model": "b", ', "invalid_request_error"),
    "no model": (b'{"prompt": "Once"}', "invalid_request_error"),
    "a prompt of no kind": (b'{"model": "b", "prompt": 5}', "invalid_request_error"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_body_is_refused_where_it_is_shown(listening: Running, mode: BodyMode, bad: str) -> None:
    body, kind = BAD[bad]
    came = await listening.ask(f"{mode}.override-host", body=body)
    got = listening.got()
    if mode in SHOWN:
        assert (came.status, json.loads(came.text)["error"]["type"], got) == (400, kind, [])
    else:
        assert (came.status, [one.size for one in got]) == (200, [len(body)]), "what is wrong the engine says"
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
async def test_a_model_that_nobody_serves_is_not_found(listening: Running, mode: BodyMode) -> None:
    came = await listening.ask(f"{mode}.original-dst", "nobodys")
    assert (came.status, came.code, listening.got()) == (404, "model_not_found", [])
    await listening.at_rest()


@pytest_asyncio.fixture(loop_scope="session")
async def full(listening: Running) -> AsyncIterator[None]:
    """The node of model `c` has no room."""
    await listening.report("c", waiting_queue_size=1000)
    yield
    await listening.report(*NODES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("full")
async def test_a_full_node_is_refused_with_429(listening: Running, mode: BodyMode) -> None:
    came = await listening.ask(f"{mode}.original-dst", "c", completion("c", 100_000))
    assert (came.status, came.code, listening.got()) == (429, "overloaded", []), came
    assert int(came.told["retry-after"]) > 0
    await listening.at_rest()


@pytest.mark.parametrize("mode", SHOWN)
async def test_a_body_that_grows_too_long_is_refused(listening: Running, mode: BodyMode) -> None:
    came = await listening.ask(f"{mode}.original-dst", "b", cut(completion("b", BODY_BYTES_MAX + 1000 * KIB)))
    assert (came.status, came.code, listening.got()) == (413, "request_too_large", [])
    await listening.at_rest()


@pytest.mark.parametrize("mode", BLIND)
async def test_a_body_that_grows_too_long_unseen_passes(listening: Running, mode: BodyMode) -> None:
    body = completion("b", BODY_BYTES_MAX + 1000 * KIB)
    came = await listening.ask(f"{mode}.original-dst", "b", cut(body))
    assert (came.status, [one.size for one in listening.got()]) == (200, [len(body)])
    await listening.at_rest()


@pytest.mark.parametrize(("mode", "status"), [(one, 413 if one == "buffered" else 200) for one in MODES])
async def test_only_buffered_is_bound_by_envoys_own_buffer(listening: Running, mode: BodyMode, status: int) -> None:
    """It holds 64 KiB here, and serve takes more."""
    body = completion("b", 300_000)
    came = await listening.ask(f"short.{mode}", "b", body)
    assert (came.status, [one.size for one in listening.got()]) == (status, [len(body)] if status == 200 else [])
    if status == 413:
        assert came.code == "request_too_large"
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 1_000_000])
async def test_another_model_stands_in_the_body_where_it_can_be_replaced(
    listening: Running, mode: BodyMode, size: int
) -> None:
    body = completion(ALIAS, size)
    for node in listening.nodes.values():
        node.keeps_bodies = True
    try:
        came = await listening.ask(f"{mode}.original-dst", ALIAS, body)
        bodies = [one for node in listening.nodes.values() for one in node.bodies]
    finally:
        for node in listening.nodes.values():
            node.keeps_bodies = False
    got = listening.got()
    if mode not in REPLACED:
        assert (came.status, came.code, got) == (404, "model_not_found", []), "the body has gone on as it is"
    else:
        assert (came.status, came.node, [one.node for one in got]) == (200, "b", ["b"])
        assert json.loads(bodies[0]) == json.loads(body) | {"model": "b"}
        assert got[0].framing == (f"length {len(bodies[0])}" if mode == "buffered" else "chunked")
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
async def test_server_sent_events_pass_untouched_as_they_come(listening: Running, mode: BodyMode) -> None:
    streaming = Streaming()
    url = listening.urls[f"{mode}.override-host"]
    async with listening.behaving("b", streaming), connected(url) as (reader, writer):
        body = completion("b", stream=True)
        send_head(writer, "b", len(body))
        writer.write(body)
        status, headers = await head_of(reader)
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        for _ in range(3):
            streaming.go()
            assert await reader.readexactly(len(chunk(PIECE))) == chunk(PIECE), "each comes by itself"
            assert await listening.open_at() == {"b": 1}
        pieces = [b": ping\n\n", b"data: {\n", b"\xff\x00\n\n", b"data: [DONE]\n\n"]
        for piece in pieces:
            streaming.go(piece)
        streaming.end()
        assert await rest_of(reader) == (b"".join(pieces), True)
        await listening.at_rest()
    listening.got()


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_goes_while_its_answer_runs_leaves_nothing(listening: Running, mode: BodyMode) -> None:
    streaming = Streaming()
    async with listening.behaving("b", streaming):
        async with connected(listening.urls[f"{mode}.original-dst"]) as (reader, writer):
            body = completion("b", stream=True)
            send_head(writer, "b", len(body))
            writer.write(body)
            await head_of(reader)
            assert await listening.open_at() == {"b": 1}
        await asyncio.wait_for(streaming.gone.wait(), 10)
    await listening.at_rest()
    listening.got()


async def test_policies_that_only_watch_or_do_nothing_leave_requests_where_they_would_go(listening: Running) -> None:
    for mode in MODES:
        for policy, tells in (("observing", "observed"), ("off", None)):
            body = completion("b", 200_000)
            came = await listening.ask(f"policies.{mode}", "b", body, path=f"/{policy}/v1/completions")
            (got,) = listening.got()
            assert (came.status, got.node, got.path) == (200, "known", "/v1/completions"), (mode, policy, came)
            assert (got.size, got.digest) == (len(body), hashlib.sha256(body).hexdigest())
            assert await listening.open_at() == {}
            if tells is not None:
                (latest,) = await listening.decisions()
                assert (latest["arm"], latest["model"], latest["policy"]) == (tells, "b", policy), latest
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
async def test_a_canary_of_half_the_requests_serves_about_half(listening: Running, mode: BodyMode) -> None:
    body = completion("b")
    for _ in range(40):
        came = await listening.ask(f"policies.{mode}", "b", body, path="/canary/v1/completions")
        assert came.status == 200
    arms = Counter(one["arm"] for one in await listening.decisions(40))
    assert arms.keys() == {"strategy", "control"}
    assert 5 < arms["strategy"] < 35, "of a binomial distribution with 40 and 0.5: one in 10 million is outside"
    assert {one.node for one in listening.got()} == {"b"}, "the other arm too goes where the model is served"
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
async def test_an_envoy_that_only_tells_is_not_held_up(listening: Running, mode: BodyMode) -> None:
    """It shows bodies in STREAMED alone, and says nowhere which mode it has: else there is nothing to decide on."""
    body = completion("c", 200_000)
    decided = (await listening.metrics()).get("extproc_decisions_by_arm_total", 0)
    came = await listening.ask(f"observed.{mode}", "b", body)
    (got,) = listening.got()
    assert (came.status, came.node, got.node) == (200, None, "known")
    assert (got.framing, got.digest) == (f"length {len(body)}", hashlib.sha256(body).hexdigest())
    await listening.at_rest()
    told = await listening.metrics()
    assert told["extproc_decisions_by_arm_total"] == decided + (mode == "streamed"), told
    if mode == "streamed":
        (latest,) = await listening.decisions()
        assert (latest["arm"], latest["model"]) == ("observed", "c"), latest


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("body", [b'{"model": ', completion("nobodys")])
async def test_an_envoy_that_only_tells_hears_no_refusal(listening: Running, mode: BodyMode, body: bytes) -> None:
    came = await listening.ask(f"observed.{mode}", body=body, headers={"x-model": "nobodys"})
    assert (came.status, [one.node for one in listening.got()]) == (200, ["known"])
    await listening.at_rest()
