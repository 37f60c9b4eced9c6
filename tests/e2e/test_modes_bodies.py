"""Every body mode with every destination: the right node gets the very body, and serve holds nothing afterwards.

| mode | the model is known by | what announces its length upstream | what has no length |
|---|---|---|---|
| none | a header | keeps it | chunked |
| streamed | a header | chunked | chunked |
| buffered | the body | keeps it | chunked |
| buffered-partial | the body's beginning | chunked | chunked |
| full-duplex | the body | chunked | chunked |
"""

import asyncio
import hashlib
from collections import Counter

import pytest

from extproc.render.description import BodyMode, Destination
from tests.e2e.listeners import BODY_BYTES_MAX, DESTINATIONS, KIB, MODES
from tests.e2e.modenodes import Got
from tests.e2e.modes import Running, completion, cut
from tests.e2e.rawmodes import connected, response_of, send_chunk, send_head

LENGTH_KEPT = ("none", "buffered")
BY_HEADER = ("none", "streamed")
"""Modes in which the body is not shown before Envoy picks the host."""
SIZES = {"small": 0, "1 MB": 1_000_000, "20 MB": 20_000_000}
matrix = pytest.mark.parametrize(("mode", "destination"), [(one, other) for one in MODES for other in DESTINATIONS])


@matrix
@pytest.mark.parametrize("size", SIZES)
async def test_the_right_node_gets_the_very_body(
    listening: Running, mode: BodyMode, destination: Destination, size: str
) -> None:
    body = completion("b", SIZES[size])
    came = await listening.ask(f"{mode}.{destination}", "b", body)
    (got,) = listening.got()
    assert (came.status, came.node, got.node) == (200, "b", "b"), came
    assert (got.size, got.digest) == (len(body), hashlib.sha256(body).hexdigest())
    assert got.framing == (f"length {len(body)}" if mode in LENGTH_KEPT else "chunked")
    await listening.at_rest()


@matrix
@pytest.mark.parametrize("size", [0, 3_000_000])
async def test_a_body_without_a_length_stays_so(
    listening: Running, mode: BodyMode, destination: Destination, size: int
) -> None:
    body = completion("c", size)
    came = await listening.ask(f"{mode}.{destination}", "c", cut(body))
    (got,) = listening.got()
    assert (came.status, came.node, got.node, got.framing) == (200, "c", "c", "chunked"), came
    assert (got.size, got.digest) == (len(body), hashlib.sha256(body).hexdigest())
    await listening.at_rest()


@matrix
@pytest.mark.parametrize(
    ("method", "path", "size", "framing"),
    [
        ("GET", "/v1/models", None, "none"),
        ("POST", "/v1/completions", None, "length 0"),
        ("POST", "/v1/files", 200_000, ""),
        ("POST", "/v1/files", 3_000_000, ""),
    ],
)
async def test_what_is_no_inference_goes_in_turn(
    listening: Running, mode: BodyMode, destination: Destination, method: str, path: str, size: int | None, framing: str
) -> None:
    body = None if size is None else b"x" * size
    for _ in range(3):
        came = await listening.ask(f"{mode}.{destination}", body=body, method=method, path=path)
        assert (came.status, came.told["reason"]) == (200, "round robin of 3"), came
    got = listening.got()
    assert {one.node for one in got} == {"a", "b", "c"}
    wanted = framing or (f"length {size}" if mode in LENGTH_KEPT else "chunked")
    assert {(one.framing, one.size) for one in got} == {(wanted, size or 0)}
    await listening.at_rest()


@matrix
async def test_a_client_that_goes_while_it_sends_leaves_nothing(
    listening: Running, mode: BodyMode, destination: Destination
) -> None:
    body = completion("b", 2_000_000)
    async with connected(listening.urls[f"{mode}.{destination}"]) as (_, writer):
        send_head(writer, "b", len(body))
        writer.write(body[: 200 * KIB])
        await writer.drain()
        await listening.headers_seen()
    await listening.at_rest()
    assert listening.got() == [], "no node takes what is not whole"


@matrix
async def test_many_at_once_are_not_mixed_up(listening: Running, mode: BodyMode, destination: Destination) -> None:
    bodies = [("abc"[number % 3], completion("abc"[number % 3], 70_000 + number)) for number in range(24)]
    answers = await asyncio.gather(*(listening.ask(f"{mode}.{destination}", *one) for one in bodies))
    assert Counter(one.status for one in answers) == {200: len(bodies)}
    wanted = Counter((model, hashlib.sha256(body).hexdigest()) for model, body in bodies)
    assert Counter((one.node, one.digest) for one in listening.got()) == wanted
    await listening.at_rest()


@pytest.mark.parametrize("mode", BY_HEADER)
@pytest.mark.parametrize("destination", DESTINATIONS)
async def test_without_the_header_a_body_that_is_not_shown_goes_in_turn(
    listening: Running, mode: BodyMode, destination: Destination
) -> None:
    for _ in range(3):
        came = await listening.ask(f"{mode}.{destination}", body=completion("b"))
        assert (came.status, came.told["reason"]) == (200, "round robin of 3"), came
    assert {one.node for one in listening.got()} == {"a", "b", "c"}
    await listening.at_rest()


async def with_trailers(listening: Running, listener: str, body: bytes) -> Got:
    """What a node gets of a body that is followed by trailers."""
    async with connected(listening.urls[listener]) as (reader, writer):
        send_head(writer, "b", None)
        async for piece in cut(body):
            send_chunk(writer, piece)
            await writer.drain()
        writer.write(b"0\r\nx-checksum: 17\r\n\r\n")
        status, _, _ = await response_of(reader)
    (got,) = listening.got()
    assert (status, got.node, got.framing) == (200, "b", "chunked")
    assert got.trailers == {"x-checksum": "17"}
    await listening.at_rest()
    return got


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 300_000])
async def test_trailers_pass(listening: Running, mode: BodyMode, size: int) -> None:
    body = completion("b", size)
    got = await with_trailers(listening, f"trailers.{mode}", body)
    assert (got.size, got.digest) == (len(body), hashlib.sha256(body).hexdigest())


async def test_in_full_duplex_envoy_sends_a_body_twice_that_has_trailers_and_may_be_retried(listening: Running) -> None:
    """A fault of Envoy 1.40, which drops trailers of HTTP/1.1 as long as nobody enables them."""
    body = completion("b")
    got = await with_trailers(listening, "retries", body)
    assert (got.size, got.digest) == (2 * len(body), hashlib.sha256(2 * body).hexdigest())


async def test_in_buffered_partial_a_route_for_the_time_without_serve_takes_bodies_that_come_late(
    listening: Running,
) -> None:
    """Envoy picks no new route with the reply: the decision is made, and counted, and not heard."""
    body = completion("b", 1000)
    async with connected(listening.urls["partial-fail-open"]) as (reader, writer):
        send_head(writer, "b", len(body))
        await listening.headers_seen()
        writer.write(body)
        status, headers, _ = await response_of(reader)
    (got,) = listening.got()
    assert (status, headers["x-extproc-node"], got.node, got.size) == (200, "b", "known", len(body))
    await listening.at_rest()


@pytest.mark.parametrize("model_stands", ["first", "last"])
async def test_a_body_shown_in_part_is_decided_by_its_part(listening: Running, model_stands: str) -> None:
    """Here it is longer than Envoy's buffer, and serve takes it."""
    body = completion("b", 3_000_000)
    if model_stands == "last":
        body = b'{"prompt": "' + b"x " * 1_000_000 + b'", "model": "c"}'
    came = await listening.ask("short.buffered-partial", "b", body)
    (got,) = listening.got()
    assert (came.status, came.node, got.node, came.told["shown"]) == (200, "b", "b", "part"), came
    assert (got.framing, got.size, got.digest) == ("chunked", len(body), hashlib.sha256(body).hexdigest())
    await listening.at_rest()


@pytest.mark.parametrize("mode", MODES)
async def test_a_body_that_says_it_is_too_long_is_not_awaited(listening: Running, mode: BodyMode) -> None:
    async with connected(listening.urls[f"{mode}.original-dst"]) as (reader, writer):
        send_head(writer, "b", BODY_BYTES_MAX + 1)
        status, _, text = await response_of(reader)
    assert (status, b"request_too_large" in text, listening.got()) == (413, True, [])
    await listening.at_rest()
