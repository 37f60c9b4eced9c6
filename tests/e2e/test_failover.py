"""The chosen node cannot be reached: what clients see with ORIGINAL_DST as shipped, and with `failover: true`.

ORIGINAL_DST asks the same node again at every retry: it takes the host from the header, and the header stays. Failover
is a composite cluster, which gives each attempt a cluster of its own: the chosen node, then the known nodes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.address import TcpAddress
from extproc.traffic import Ask, ask, completion
from tests.e2e.edited import Edited, Gateway, engine, gateway, refusing, resetting, silent
from tests.e2e.scripted import CONFIG
from tests.rendered import rendered
from tests.waiting import until

Place = Callable[[], AbstractAsyncContextManager[TcpAddress]]
CONNECT_TIMEOUT_S = 1
BROKEN: dict[str, tuple[Place, str, str, float]] = {
    "refused": (refusing, "UF", "remote_connection_failure", 0),
    "no answer to the connection": (silent, "UF", "connection_timeout", CONNECT_TIMEOUT_S),
    "broken off": (resetting, "UC", "connection_termination", 0),
}
"""What breaks; Envoy's flag and words for it; and how long one attempt takes at least."""


def impatient(edited: Edited) -> Edited:
    """With a short timeout."""
    edited.cluster("chosen-node")["connect_timeout"] = f"{CONNECT_TIMEOUT_S}s"
    return edited


def with_failover(**changes: Any) -> Edited:
    return impatient(Edited(rendered(failover=True, **changes)))


def for_policy(destination: str) -> dict[str, Any]:
    """A configuration of serve whose default policy has this destination, and any share of nodes may be out."""
    return CONFIG | {"policies": {"default": {"destination": destination}}, "ejection": {"share_max": 1}}


async def is_out(running: Gateway, name: str) -> bool:
    """Whether serve has left a node out after a failure."""
    (page,) = (await running.fleet.json(f"http://{running.serve.admin}/nodes?node={name}"))["nodes"]
    return page["out_s"] is not None or page["on_trial"]


async def chosen_is_gone(stack: AsyncExitStack, running: Gateway, place: Place, **fields: str) -> TcpAddress:
    """The one node that serve knows cannot be reached."""
    host = await stack.enter_async_context(place())
    await running.reporter.report("broken", host, **fields)
    await running.ready("broken")
    return host


@pytest.mark.parametrize("kind", BROKEN)
async def test_as_shipped_the_same_node_is_asked_again_and_the_client_gets_503(
    client: aiohttp.ClientSession, tmp_path: Path, kind: str
) -> None:
    place, flag, words, seconds = BROKEN[kind]
    async with AsyncExitStack() as stack:
        known, got = await stack.enter_async_context(engine("known"))
        running = await stack.enter_async_context(gateway(client, tmp_path, impatient(Edited()), [known]))
        host = await chosen_is_gone(stack, running, place)
        answer = await running.ask("demo")
        assert (answer.status, answer.chosen) == (503, "broken"), answer
        assert "node_unreachable" in answer.text
        line = await running.log_of("/v1/completions")
        assert sorted(line["flags"].split(",")) == [flag, "URX"], line
        assert words in line["details"], line
        assert (line["attempts"], line["host"]) == (2, str(host)), line
        assert 2 * seconds <= answer.seconds < 2 * seconds + 5, answer
        assert got == [], "the known nodes are not asked"
        await running.all_closed()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in BROKEN),
        ("refused", {"destination": "original-dst-metadata"}),
        ("broken off", {"destination": "original-dst-metadata", "body_mode": "full-duplex"}),
        ("broken off", {"body_mode": "streamed", "model_header": "x-model"}),
    ],
)
async def test_with_failover_the_known_nodes_answer_and_the_chosen_one_is_left_out(
    client: aiohttp.ClientSession, tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    place, _, _, seconds = BROKEN[kind]
    config = for_policy(changes.get("destination", "original-dst"))
    async with AsyncExitStack() as stack:
        known, got = await stack.enter_async_context(engine("known"))
        running = await stack.enter_async_context(gateway(client, tmp_path, with_failover(**changes), [known], config))
        await chosen_is_gone(stack, running, place)
        assert not await is_out(running, "broken")
        body = {**completion("demo", "Hi", output_tokens=5, stream=False), "padding": "x" * 3_000_000}
        answer = await ask(client, running.envoy.url, Ask("large", "/v1/completions", body), {"x-model": "demo"})
        assert (answer.status, answer.chosen, answer.engine) == (200, "broken", "known"), answer
        line = await running.log_of("/v1/completions")
        assert (line["attempts"], line["host"]) == (2, str(known)), line
        assert seconds <= answer.seconds < seconds + 5, answer
        (one,) = got
        assert one["bytes"] > 3_000_000, "the body came whole"
        # The log names the last host and the number of attempts: so the first one has failed.
        await until(lambda: is_out(running, "broken"))
        await running.all_closed()


async def test_with_failover_a_burst_of_failures_is_served_and_a_good_node_is_not_left(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        known, got_known = await stack.enter_async_context(engine("known"))
        good, got_good = await stack.enter_async_context(engine("good"))
        running = await stack.enter_async_context(gateway(client, tmp_path, with_failover(), [known]))
        await running.reporter.report("good", good, model="well")
        await chosen_is_gone(stack, running, refusing, model="ill")
        answers = await asyncio.gather(*(running.ask(model) for _ in range(20) for model in ("well", "ill")))
        assert Counter((one.status, one.engine) for one in answers) == {(200, "good"): 20, (200, "known"): 20}
        assert (len(got_good), len(got_known)) == (20, 20)
        await running.all_closed()


async def test_with_failover_an_answer_of_503_is_the_clients(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    """The engine was reached: that it has no room is its own word, and another may have no more."""
    async with AsyncExitStack() as stack:
        known, got = await stack.enter_async_context(engine("known"))
        full, _ = await stack.enter_async_context(engine("full", status=503))
        running = await stack.enter_async_context(gateway(client, tmp_path, with_failover(), [known]))
        await running.reporter.report("full", full)
        await running.ready("full")
        answer = await running.ask("demo")
        assert (answer.status, answer.engine, got) == (503, "full", [])


async def test_with_failover_a_client_cannot_name_where_an_attempt_goes(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        known, _ = await stack.enter_async_context(engine("known"))
        trap, caught = await stack.enter_async_context(engine("trap"))
        running = await stack.enter_async_context(gateway(client, tmp_path, with_failover(), [known]))
        await chosen_is_gone(stack, running, refusing)
        spoofed = {"x-envoy-original-dst-host": str(trap)}
        body = completion("demo", "Hi", output_tokens=5, stream=False)
        answer = await ask(client, running.envoy.url, Ask("spoofed", "/v1/completions", body), spoofed)
        assert (answer.status, answer.engine, caught) == (200, "known", [])
