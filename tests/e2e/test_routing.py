"""What a running system does with requests: three engines, an agent for each, serve, and a real Envoy."""

import asyncio
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from extproc import address
from extproc.address import TcpAddress
from extproc.traffic import Ask, chat, completion, mixed
from tests.e2e.conftest import MIB, MODEL, REPORT_INTERVAL_S, System
from tests.e2e.rawhttp import trap
from tests.llamacpp import llamacpp_server
from tests.waiting import until


async def test_of_300_concurrent_mixed_requests_none_is_lost_and_none_goes_astray(system: System) -> None:
    asks = mixed(MODEL, 300)
    answers = await asyncio.gather(*(system.ask(one) for one in asks))
    astray = [(one.label, answer) for one, answer in zip(asks, answers, strict=True) if not answer.as_chosen]
    assert not astray
    served = Counter(answer.engine for answer in answers)
    assert served.keys() == {one.name for one in system.engines}, "all of them work"
    assert {answer.phase for answer in answers} == {"prefill-heavy", "decode"}

    async def idle() -> bool:
        return await system.requests_open() == 0

    await until(idle)


async def test_the_access_log_says_what_was_decided_and_why(system: System) -> None:
    request = Ask("chat", "/v1/chat/completions?stream=1", chat(MODEL, "Hello", output_tokens=2, stream=True))
    answer = await system.ask(request, headers={"x-request-id": "one-of-ours"})
    line = await system.access_log_of("one-of-ours")
    assert (line["node"], line["outcome"], line["policy"], line["strategy"]) == (
        answer.engine,
        "chosen",
        "default",
        "least-added-delay",
    )
    assert (line["cluster"], line["code"], str(line["tokens"])) == ("chosen-node", 200, answer.tokens)
    assert line["model"] == MODEL
    assert line["host"] == str(next(one.address for one in system.engines if one.name == answer.engine))
    decisions = (await system.fleet.json(f"http://{system.serve.admin}/decisions?limit=50"))["decisions"]
    assert "one-of-ours" in {one["x_request_id"] for one in decisions}, "the same id leads to /decisions"


async def test_each_route_has_its_own_policy(system: System) -> None:
    body = completion(MODEL, "x", output_tokens=1, stream=False)
    batch = await system.ask(Ask("batch", "/batch/v1/completions", body))
    other = await system.ask(Ask("other", "/v1/completions", body))
    assert (batch.policy, other.policy) == ("batch", "default")
    assert batch.as_chosen
    assert other.as_chosen
    # A path that leads out of a prefix is of the route that it leads to; most clients shorten such paths themselves.
    for path in ("/batch/../v1/completions", "/batch/%2e%2e/v1/completions", "//batch/..//v1/completions"):
        async with system.client.post(URL(system.envoy.url + path, encoded=True), json=body) as response:
            assert (response.status, response.headers["x-extproc-policy"]) == (200, "default"), path


async def test_a_clients_own_words_about_destination_and_policy_are_not_heard(system: System) -> None:
    body = completion(MODEL, "x", output_tokens=1, stream=False)
    async with trap() as destination:
        spoof = destination | {"x-extproc-policy": "nothing"}
        for path in ("/v1/completions", "/batch/v1/completions"):
            answer = await system.ask(Ask("spoof", path, body), headers=spoof)
            assert answer.as_chosen
            assert answer.policy == ("batch" if path.startswith("/batch") else "default")
        async with system.client.get(f"{system.envoy.url}/v1/models", headers=spoof) as response:
            assert (response.status, response.headers["x-engine"]) == (200, response.headers["x-extproc-node"])


async def test_a_body_of_20_mib_arrives_whole(system: System) -> None:
    # Most of it is a picture, which costs no tokens of text.
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (20 * MIB)}}
    content = [{"type": "text", "text": "What is this?"}, picture]
    body = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": content}]}
    sent = json.dumps(body).encode()
    url = f"{system.envoy.url}/v1/chat/completions"
    async with system.client.post(url, data=io.BytesIO(sent)) as response:
        assert response.status == 200, await response.text()
        assert response.headers["x-engine"] == response.headers["x-extproc-node"]
        assert response.headers["x-body-bytes"] == str(len(sent))


async def test_a_client_that_hangs_up_frees_ledger_and_engine(system: System) -> None:
    body = chat(MODEL, "Go on for ever.", output_tokens=20_000, stream=True)
    async with system.client.post(f"{system.envoy.url}/v1/chat/completions", json=body) as response:
        await response.content.readany()
        engine = next(one for one in system.engines if one.name == response.headers["x-engine"])
        assert await system.requests_open() == 1
        assert await running(system, engine.address) == 1
        response.close()

    async def freed() -> bool:
        return await system.requests_open() == 0 and await running(system, engine.address) == 0

    await until(freed)


async def test_a_client_that_hangs_up_while_it_sends_frees_its_share_of_memory(system: System) -> None:
    async def trickle() -> Any:
        yield b" " * MIB
        sending.set()
        await asyncio.Event().wait()

    sending = asyncio.Event()
    url = f"{system.envoy.url}/v1/completions"
    request = asyncio.create_task(
        system.client.post(url, data=trickle(), headers={"content-length": str(30 * MIB)}).__aenter__()
    )
    await sending.wait()

    async def held() -> int:
        return await metric(system, "extproc_body_bytes_held")

    await until(held)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)

    async def freed() -> bool:
        return await held() == 0

    await until(freed)


async def test_a_real_llamacpp_server_is_routed_to(system: System, tmp_path: Path) -> None:
    async with llamacpp_server(tmp_path) as server:
        host = address.parse(server.url.removeprefix("http://"))
        assert isinstance(host, TcpAddress)
        agent = await system.fleet.agent("llama", host, system.serve, interval_s=REPORT_INTERVAL_S)
        try:

            async def ready() -> bool:
                return await system.fleet.nodes_ready(system.serve, {"llama"})

            await system.fleet.until("llama.cpp's readiness", ready)
            stream = Ask("chat", "/v1/chat/completions", chat(server.model, "the the", output_tokens=4, stream=True))
            whole = Ask("text", "/v1/completions", completion(server.model, "the", output_tokens=4, stream=False))
            # It closes the connection after each stream without saying so: what follows at once must not meet that.
            for request in (stream, whole) * 20:
                answer = await system.ask(request)
                assert (answer.status, answer.whole, answer.chosen) == (200, True, "llama"), answer
            assert json.loads(answer.text)["usage"]["completion_tokens"] == 4
        finally:
            await system.fleet.stop(agent)

    async def forgotten() -> bool:
        return not await system.node("llama")

    await until(forgotten)


async def running(system: System, host: TcpAddress) -> int:
    """Requests that an engine runs, by its own metrics."""
    async with system.client.get(f"http://{host}/metrics") as response:
        return value_of(await response.text(), "vllm:num_requests_running")


async def metric(system: System, name: str) -> int:
    async with system.client.get(f"http://{system.serve.admin}/metrics") as response:
        return value_of(await response.text(), name)


def value_of(page: str, name: str) -> int:
    for line in page.splitlines():
        if line.partition("{")[0].partition(" ")[0] == name:
            return int(float(line.rsplit(" ", 1)[1]))
    pytest.fail(f"{name} is not on the page")
