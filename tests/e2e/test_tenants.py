"""Tenants and classes, named by headers or by a claim that Envoy has checked, on a real Envoy: who goes first."""

import asyncio
from collections.abc import Mapping

from extproc.traffic import Answer, Ask, completion
from tests.e2e.conftest import System
from tests.e2e.gated import HELD, Held, token_of


async def served(
    system: System, held: Held, path: str, coming: Mapping[str, Mapping[str, str]], priority: str = "nightly"
) -> list[str]:
    """Names of requests in the order in which the node gets them, where they come in this order and with these headers.

    They wait until the last has come. Then there is room for one at a time.
    """
    asked: list[asyncio.Task[Answer]] = []
    for name, headers in coming.items():
        before = await system.metrics()
        ask = Ask(name, path, completion(HELD, name, output_tokens=1, stream=False))
        asked.append(asyncio.create_task(system.ask(ask, headers=dict(headers))))
        queue = f"extproc_queue_requests {headers.get('x-priority', priority)}"
        await system.waiting(headers.get("x-priority", priority), int(before[queue]) + 1)
    assert held.got == []
    await held.report(requests_waiting=99)
    answers = await asyncio.gather(*asked)
    assert {(one.status, one.engine) for one in answers} == {(200, "held")}
    return [one.json["prompt"] for one in held.got]


def tenants(header: str, value: str) -> dict[str, dict[str, str]]:
    """Requests of two tenants; the greedy one comes first."""
    return {name: {header: value.format(name[0])} for name in ("a1", "a2", "a3", "b1", "b2")}


TURNS = ["a1", "b1", "a2", "b2", "a3"]


async def test_tenants_that_a_header_names_take_turns(gated_system: System, held: Held) -> None:
    assert await served(gated_system, held, "/patient/v1/completions", tenants("x-tenant", "{}")) == TURNS
    await gated_system.at_rest()


async def test_tenants_that_a_checked_claim_names_take_turns(gated_system: System, held: Held) -> None:
    path = "/claims/v1/completions"
    coming = {
        name: {"authorization": f"Bearer {token_of(name[0])}", "x-tenant": "the same for all"}
        for name in ("a1", "a2", "a3", "b1", "b2")
    }
    assert await served(gated_system, held, path, coming) == TURNS
    forged = await gated_system.ask(
        Ask("forged", path, completion(HELD, "x", output_tokens=1, stream=False)),
        headers={"authorization": f"Bearer {token_of('a')[:-4]}AAAA"},
    )
    assert forged.status == 401, "Envoy believes only what is signed"


async def test_a_lower_class_waits_until_the_higher_one_is_served(gated_system: System, held: Held) -> None:
    names = ("nightly-1", "nightly-2", "interactive-1", "interactive-2", "nightly-3")
    coming = {name: {"x-priority": name[:-2], "x-request-id": name} for name in names}
    order = await served(gated_system, held, "/patient/v1/completions", coming)
    assert order == ["interactive-1", "interactive-2", "nightly-1", "nightly-2", "nightly-3"]
    for name in ("nightly-3", "interactive-1"):
        line = await gated_system.access_log_of(name)
        assert (line["priority"], line["node"], line["code"]) == (name[:-2], "held", 200)
        assert line["queued_ms"] > 0
