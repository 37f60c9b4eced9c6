"""The endpoint picker's list of hosts: Envoy walks it at each retry, then takes any host; the ledger follows."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from extproc.address import TcpAddress
from extproc.traffic import Ask, ask, completion
from tests.e2e.edited import ENDPOINT, HOSTS_MAX, Gateway, Json, by_override, engine, gateway, refusing

BUSY: Json = {"waiting_queue_size": 50, "running_count": 50, "active_decode_count": 50, "kv_cache_usage": 0.9}
IDLE: Json = {"waiting_queue_size": 0, "running_count": 0, "active_decode_count": 0, "kv_cache_usage": 0.0}


async def report(running: Gateway, busy: dict[str, TcpAddress], idle: dict[str, TcpAddress]) -> None:
    """Nodes of one model, of which the idle ones are chosen first."""
    for name, host in (busy | idle).items():
        await running.reporter.report(name, host, kv_blocks_total=10_000, **(BUSY if name in busy else IDLE))
    await running.ready(*busy, *idle)


async def test_the_list_is_walked_to_the_node_that_answers_and_its_ledger_has_the_request(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    ends = asyncio.Event()
    async with AsyncExitStack() as stack:
        dead = [await stack.enter_async_context(refusing()) for _ in range(2)]
        alive, got = await stack.enter_async_context(engine("alive", ends=ends))
        running = await stack.enter_async_context(gateway(client, tmp_path, by_override(), [*dead, alive]))
        await report(running, {"alive": alive}, {"dead-1": dead[0], "dead-2": dead[1]})
        asking = asyncio.create_task(running.ask("demo"))
        await running.open_are(alive=1)
        ends.set()
        answer = await asking
        assert (answer.status, answer.engine) == (200, "alive"), answer
        assert answer.chosen in ("dead-1", "dead-2"), "they were better"
        (one,) = got
        assert len(one["headers"][ENDPOINT].split(",")) == HOSTS_MAX
        line = await running.log_of("/v1/completions")
        assert (line["attempts"], line["host"]) == (3, str(alive)), line
        await running.all_closed()


async def test_after_the_list_the_fallback_takes_any_host_even_one_that_was_tried(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """It does not heed `previous_hosts`: health checks, which are off here, keep dead hosts out of its turn."""
    edited = by_override()
    async with AsyncExitStack() as stack:
        dead = [await stack.enter_async_context(refusing()) for _ in range(2)]
        spare, got = await stack.enter_async_context(engine("spare"))
        for action in edited.routes_to("known-nodes"):
            action["retry_policy"]["num_retries"] = 4  # the second of the list, then each of three in turn
        running = await stack.enter_async_context(gateway(client, tmp_path, edited, [*dead, spare]))
        await report(running, {}, {"dead-1": dead[0], "dead-2": dead[1]})
        answer = await running.ask("demo")
        assert (answer.status, answer.engine, len(got)) == (200, "spare", 1), answer
        line = await running.log_of("/v1/completions")
        assert (3 <= line["attempts"] <= 5, line["host"]) == (True, str(spare)), line
        await running.all_closed()


async def test_hosts_that_envoy_does_not_know_are_passed_over(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stranger, got_stranger = await stack.enter_async_context(engine("stranger"))
        known, got = await stack.enter_async_context(engine("known"))
        running = await stack.enter_async_context(gateway(client, tmp_path, by_override(), [known]))
        await report(running, {"known": known}, {"stranger": stranger})
        answer = await running.ask("demo")
        assert (answer.status, answer.engine, len(got), got_stranger) == (200, "known", 1, []), answer
        assert (await running.log_of("/v1/completions"))["attempts"] == 1


async def test_a_client_cannot_name_a_host(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        trap, caught = await stack.enter_async_context(engine("trap"))
        good, got = await stack.enter_async_context(engine("good"))
        running = await stack.enter_async_context(gateway(client, tmp_path, by_override(), [trap, good]))
        await report(running, {}, {"good": good})
        body: Json = completion("demo", "Hi", output_tokens=5, stream=False)
        for _ in range(4):
            answer = await ask(client, running.envoy.url, Ask("", "/v1/completions", body), {ENDPOINT: str(trap)})
            assert (answer.status, answer.engine) == (200, "good"), answer
        assert (caught, len(got)) == ([], 4)
