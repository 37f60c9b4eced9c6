"""What clients see when parts of a running system die, drain or come back."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable

import aiohttp

from extproc.address import TcpAddress
from extproc.traffic import Ask, chat, completion, mixed
from tests.e2e.conftest import MODEL, REPORT_INTERVAL_S, System
from tests.e2e.rawhttp import trap
from tests.e2e.reporter import Reporter
from tests.waiting import until


def hello(model: str) -> Ask:
    return Ask("chat", "/v1/chat/completions", chat(model, "Hello", output_tokens=2, stream=False))


LONG = chat(MODEL, "Tell me all.", output_tokens=150, stream=True)


async def start_streams(system: System, count: int) -> list[aiohttp.ClientResponse]:
    """Answers that have begun; the fastest takes over a second to its end."""
    url = f"{system.envoy.url}/v1/chat/completions"
    streams = await asyncio.gather(*(system.client.post(url, json=LONG) for _ in range(count)))
    assert {one.status for one in streams} == {200}
    assert not any(one.content.at_eof() for one in streams)
    return streams


async def assert_whole(streams: list[aiohttp.ClientResponse]) -> None:
    for text in await asyncio.gather(*(one.text() for one in streams)):
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        assert sum(bool(json.loads(one)["choices"][0]["delta"].get("content")) for one in events[:-1]) == 150


async def while_it_runs(done: Callable[[], Awaitable[bool]], system: System, request: Ask) -> set[int]:
    """Send requests until something is so; their statuses."""
    seen = set()
    while not await done():
        seen.add((await system.ask(request)).status)
    return seen


async def test_a_node_whose_agent_died_is_served_on_without_an_error(system: System) -> None:
    engine = await system.fleet.engine("orphan", "orphaned")
    agent = await system.fleet.agent(engine.name, engine.address, system.serve, interval_s=REPORT_INTERVAL_S)

    async def ready() -> bool:
        return await system.fleet.nodes_ready(system.serve, {"orphan"})

    await system.fleet.until("the node", ready)
    assert (await system.ask(hello("orphaned"))).as_chosen
    await system.fleet.kill(agent)

    async def fell_back() -> bool:
        answer = await system.ask(hello("orphaned"))
        assert answer.as_chosen
        return (answer.reason or "").startswith("round robin")

    await until(fell_back, within_s=10)
    # Its successor is another boot of the same node: it is believed at once.
    agent = await system.fleet.agent(engine.name, engine.address, system.serve, interval_s=REPORT_INTERVAL_S)
    await system.fleet.until("the node", ready)
    assert not (await system.ask(hello("orphaned"))).reason.startswith("round robin")  # type: ignore[union-attr]
    await system.fleet.stop(agent)

    async def left() -> bool:
        return not await system.node("orphan")

    await until(left)
    await system.fleet.stop(engine.child)


async def test_a_node_whose_engine_died_is_left_out_from_its_next_report_on(system: System) -> None:
    engine = await system.fleet.engine("mortal", MODEL, "--speed", "4.0")
    agent = await system.fleet.agent(engine.name, engine.address, system.serve, interval_s=REPORT_INTERVAL_S)

    async def ready() -> bool:
        return await system.fleet.nodes_ready(system.serve, {"mortal"})

    await system.fleet.until("the node", ready)
    await system.fleet.kill(engine.child)
    sequence = (await system.node("mortal"))["sequence"]

    async def noticed() -> bool:
        return bool((await system.node("mortal"))["state"] != "ready")

    await until(noticed)
    node = await system.node("mortal")
    # The report that was on its way when the engine died may still call it ready; no other does.
    assert node["sequence"] <= sequence + 2
    answers = await asyncio.gather(*(system.ask(hello(MODEL)) for _ in range(20)))
    assert all(answer.as_chosen for answer in answers)
    await system.fleet.stop(agent)


async def test_a_request_that_meets_a_connection_being_closed_is_sent_again(
    agentless_system: System, reporter: Reporter
) -> None:
    # What llama.cpp does after a stream, and uvicorn after 5 idle seconds; here each time, so that no race is needed.
    connections = 0

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nx-engine: closing\r\ncontent-length: 2\r\n\r\n{}")
            await request_of(reader)
        except asyncio.IncompleteReadError:
            pass  # Envoy let go of the last one
        finally:
            writer.close()

    async def request_of(reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.split("\r\n") if line.startswith("content-length: "))
        await reader.readexactly(int(length.split()[1]))

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    async with server:
        await reporter.report("closing", TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1]))
        answers = [await agentless_system.ask(hello(MODEL)) for _ in range(3)]
    assert [(answer.status, answer.engine) for answer in answers] == [(200, "closing")] * 3
    assert connections == 3


async def test_a_request_whose_connections_break_is_sent_twice_and_no_more(
    agentless_system: System, reporter: Reporter
) -> None:
    # Of an engine that a request kills; each further try could kill another, or repeat minutes of work.
    requests = 0

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.transport.abort()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    async with server:
        await reporter.report("dying", TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1]))
        answer = await agentless_system.ask(hello(MODEL))
    assert (answer.status, answer.chosen, requests) == (503, "dying", 2)
    assert json.loads(answer.text)["error"]["code"] == "node_unreachable"


async def test_when_serve_is_killed_answers_go_on_requests_are_served_and_choices_return(system: System) -> None:
    streams = await start_streams(system, 6)
    await system.fleet.kill(system.serve.child)

    asks = mixed(MODEL, 40)
    # A client's own destination is not heard, least of all now.
    async with trap() as spoof:
        answers = await asyncio.gather(*(system.ask(one, headers=spoof) for one in asks))
    assert all(answer.served and answer.chosen is None for answer in answers)
    assert {answer.engine for answer in answers} == {one.name for one in system.engines}
    await assert_whole(streams)

    await system.restart_serve()
    await system.choosing()
    answers = await asyncio.gather(*(system.ask(one) for one in asks))
    assert all(answer.as_chosen for answer in answers)


async def test_when_serve_hangs_requests_are_served(system: System) -> None:
    system.serve.child.signal(signal.SIGSTOP)
    try:

        async def unhealthy() -> bool:
            async with system.client.get(f"{system.envoy.admin_url}/clusters") as response:
                return "/failed_active_hc" in await response.text()

        await until(unhealthy)
        before = await message_timeouts(system)
        answer = await system.ask(hello(MODEL))
        assert (answer.served, answer.chosen) == (True, None)
        assert await message_timeouts(system) == before, "it was not even asked"
    finally:
        system.serve.child.signal(signal.SIGCONT)
    await system.choosing()


async def message_timeouts(system: System) -> str:
    async with system.client.get(f"{system.envoy.admin_url}/stats?filter=ext_proc.message_timeouts") as response:
        text = await response.text()
    assert "message_timeouts" in text
    return text


async def test_when_serve_drains_no_answer_is_cut_and_no_request_fails(system: System) -> None:
    streams = await start_streams(system, 12)
    stopping = asyncio.create_task(system.fleet.stop(system.serve.child))

    async def ended() -> bool:
        return stopping.done()

    seen = await while_it_runs(ended, system, hello(MODEL))
    assert seen == {200}
    assert await stopping == 0
    assert not all(one.content.at_eof() for one in streams), "it did not wait for the answers"
    await assert_whole(streams)
    await system.restart_serve()
    await system.choosing()


async def test_an_agent_finds_a_router_that_was_away(system: System) -> None:
    await system.fleet.stop(system.serve.child)
    answer = await system.ask(Ask("text", "/v1/completions", completion(MODEL, "x", output_tokens=1, stream=False)))
    assert (answer.served, answer.chosen) == (True, None)
    await system.restart_serve()

    async def back() -> bool:
        return await system.fleet.nodes_ready(system.serve, {one.name for one in system.engines})

    await system.fleet.until("the agents", back)
    await system.choosing()
