"""Models that go by other names, on a real Envoy: who answers, and with which body."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extproc.traffic import Ask, chat, completion
from tests.e2e.conftest import MIB, System
from tests.e2e.gated import HELD, SERVED, Held

PATH = "/aliased/v1/completions"


async def test_the_engine_answers_with_the_model_that_the_alias_stands_for(gated_system: System) -> None:
    for ask in (
        Ask("text", PATH, completion("fast", "Hello", output_tokens=2, stream=False)),
        Ask("chat", "/aliased/v1/chat/completions", chat("fast", "Hello", output_tokens=2, stream=False)),
    ):
        answer = await gated_system.ask(ask, headers={"x-request-id": f"alias-{ask.label}"})
        assert answer.as_chosen, answer
        assert json.loads(answer.text)["model"] == SERVED
        line = await gated_system.access_log_of(f"alias-{ask.label}")
        assert (line["model"], line["model_asked"], line["priority"]) == (SERVED, "fast", "nightly")
    other = await gated_system.ask(Ask("text", "/v1/completions", ask.body))
    assert other.status == 404, "it is an alias of this route only"


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), 100_000):
        yield body[begin : begin + 100_000]


@pytest.mark.parametrize(
    ("alias", "length", "chunked"),
    [("stands-for-held", 10, False), ("stands-for-held", 3 * MIB, True), ("h", 3 * MIB, False), ("h", 10, True)],
)
async def test_the_node_gets_the_whole_body_with_the_other_model_and_its_right_length(
    gated_system: System, held: Held, alias: str, length: int, *, chunked: bool
) -> None:
    """One alias is longer than its model, one is shorter: the body shrinks, and grows."""
    await held.report(requests_waiting=0)
    text = (
        f'{{"seed":12345678901234567890,"model":"{alias}","prompt":"{"é" * (length // 2)}","x":[ 1e3, {{"y":null}}]}}'
    )
    body = text.encode()
    data: Any = pieces(body) if chunked else io.BytesIO(body)
    async with gated_system.client.post(gated_system.envoy.url + PATH, data=data) as response:
        assert (response.status, response.headers["x-engine"]) == (200, "held")
    (got,) = held.got
    assert got.body == body.replace(b'"%b"' % alias.encode(), b'"%b"' % HELD.encode(), 1)
    framing = [header for header in got.headers if header[0] in ("content-length", "transfer-encoding")]
    assert framing == [("content-length", str(len(got.body)))]


async def test_an_alias_of_two_models_sends_requests_to_both(gated_system: System, held: Held) -> None:
    await held.report(requests_waiting=0)
    ask = Ask("split", PATH, completion("split", "Hello", output_tokens=1, stream=False))
    served: Counter[str | None] = Counter()
    for answer in await asyncio.gather(*(gated_system.ask(ask) for _ in range(40))):
        assert answer.status == 200
        served["held" if answer.engine == "held" else "slow"] += 1
    assert min(served["held"], served["slow"]) >= 5
    assert {one.json["model"] for one in held.got} == {HELD}


async def test_while_a_model_is_overloaded_its_fallback_answers(gated_system: System, held: Held) -> None:
    ask = Ask("fallback", PATH, completion(HELD, "Hello", output_tokens=1, stream=False))
    answer = await gated_system.ask(ask, headers={"x-request-id": "fallback"})
    assert answer.as_chosen, answer
    assert json.loads(answer.text)["model"] == SERVED
    line = await gated_system.access_log_of("fallback")
    assert (line["model"], line["model_asked"]) == (SERVED, HELD)
    await held.report(requests_waiting=0)
    assert (await gated_system.ask(ask)).engine == "held"
    assert len(held.got) == 1
