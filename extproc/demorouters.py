"""The demo with several routers: each its own serve behind its own Envoy, one NATS server between them and the agents.

Requests go to all Envoys in turn. What is checked: each is answered by the node that its router chose, all routers know
of each other, each counts what another one sent, and when one dies the others go on without it.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from rich.console import Console
from rich.live import Live

from extproc import demo
from extproc.fleet import ANY_PORT, Engine, Envoy, Fleet, Nats, Serve
from extproc.traffic import Answer, Ask, ask, mixed

ROUTERS_MAX = 8
_AFTER_DEATH = 7
"""Requests to each of the others."""


@dataclass(slots=True)
class _Router:
    name: str
    serve: Serve
    envoy: Envoy


@dataclass(frozen=True, slots=True)
class _Site:
    console: Console
    fleet: Fleet
    client: aiohttp.ClientSession
    nats: Nats
    engines: Sequence[Engine]
    routers: Sequence[_Router]


async def run(console: Console, once: bool, routers: int) -> int:
    """As `demo.run`, with so many routers: 2 to `ROUTERS_MAX`."""
    return await demo.run(console, once, partial(_play, routers))


async def _play(
    count: int, console: Console, fleet: Fleet, client: aiohttp.ClientSession
) -> tuple[list[str], Callable[[], None]]:
    site = await _start(count, console, fleet, client)
    faults = await _all_alive(site)
    faults += await _one_dies(site)
    return faults, partial(_say_where, site)


async def _start(count: int, console: Console, fleet: Fleet, client: aiohttp.ClientSession) -> _Site:
    engines = await demo.engines_of(console, fleet)
    nats = await fleet.nats()
    console.print(f"[green]✓[/green] NATS on {nats.url}")
    config = demo.CONFIG | {"nats": {"servers": [nats.url]}}
    listens = [{"admin": str(demo.free(demo.ADMIN_PORT) if place == 0 else ANY_PORT)} for place in range(count)]
    names = [f"router-{place + 1}" for place in range(count)]
    serves = [await fleet.serve(config | {"listen": at}, name) for name, at in zip(names, listens, strict=True)]
    for engine in engines:
        interval_s = demo.REPORT_INTERVAL_S
        await fleet.agents(f"agent-{engine.name}", [engine], serves, interval_s=interval_s, nats=nats)
    routers: list[_Router] = []
    for name, serve in zip(names, serves, strict=True):
        listen = ANY_PORT if routers else demo.free(demo.ENVOY_PORT)
        known = [engine.address for engine in engines]
        envoy = await fleet.envoy(serve, known, listen=listen, name=f"envoy-{name}")
        routers.append(_Router(name, serve, envoy))
        console.print(f"[green]✓[/green] {name}: extproc serve on {serve.extproc}, its Envoy on {envoy.url}")
    site = _Site(console, fleet, client, nats, engines, routers)
    for router in routers:
        await _choosing(site, router)
    await _know_each_other(site, routers)
    console.print("[green]✓[/green] all of them know each other, and the nodes; an agent for each engine tells NATS")
    return site


async def _choosing(site: _Site, router: _Router) -> None:
    async def ready() -> bool:
        return await site.fleet.nodes_ready(router.serve, demo.SPEEDS)

    async def chosen() -> bool:
        return (await ask(site.client, router.envoy.url, demo.PROBE)).as_chosen

    await site.fleet.until(f"{router.name}'s ready nodes", ready)
    await site.fleet.until(f"{router.name}'s choices", chosen)


async def _peers(site: _Site, router: _Router) -> dict[str, Any]:
    page: dict[str, Any] = await site.fleet.json(f"http://{router.serve.admin}/peers")
    return page


async def _know_each_other(site: _Site, routers: Collection[_Router]) -> None:
    """Wait until each of these hears all others of them, and nobody else."""

    async def known() -> bool:
        pages = [await _peers(site, one) for one in routers]
        ids = {page["router"] for page in pages}
        return len(ids) == len(pages) and all(
            {one["router"] for one in page["peers"]} == ids - {page["router"]} for page in pages
        )

    await site.fleet.until("routers that know each other", known)


async def _all_alive(site: _Site) -> list[str]:
    title = f"{demo.REQUESTS} requests to {len(site.routers)} routers in turn; times in seconds"
    answers = await _send(site, site.routers, title, mixed(demo.MODEL, demo.REQUESTS))
    return [demo.fault_of(request, answer) for request, answer in answers if not answer.as_chosen]


async def _one_dies(site: _Site) -> list[str]:
    """The first router dies while an answer of its runs that all others count."""
    console, first, others = site.console, site.routers[0], site.routers[1:]
    faults = []

    async def open_at(router: _Router) -> int:
        nodes = (await site.fleet.json(f"http://{router.serve.admin}/nodes"))["nodes"]
        return sum(node["own"]["sequences_open"] + node["peers"]["sequences_open"] for node in nodes)

    async def at_rest() -> bool:
        return not any([await open_at(router) for router in site.routers])

    await site.fleet.until("the end of all answers, at all routers", at_rest)
    running = asyncio.create_task(ask(site.client, first.envoy.url, demo.LONG))
    for router in site.routers:
        await site.fleet.until(f"the long answer, counted by {router.name}", partial(open_at, router))
    console.print(f"[green]✓[/green] a long answer runs by {first.name}, and all routers count it")
    console.print(f"Now {first.name} is killed:")
    await site.fleet.kill(first.serve.child)
    answers = await _send(site, others, f"without {first.name}", mixed(demo.MODEL, _AFTER_DEATH * len(others)))
    faults += [demo.fault_of(request, answer) for request, answer in answers if not answer.as_chosen]
    await _know_each_other(site, others)
    console.print(f"[green]✓[/green] the others have forgotten {first.name}, and what it had")
    long = await running
    if long.as_chosen:
        console.print(f"[green]✓[/green] its long answer came whole all the same, from {long.engine}")
    else:
        faults.append(demo.fault_of(demo.LONG, long))
    config = demo.CONFIG | {"nats": {"servers": [site.nats.url]}, "listen": first.serve.listen}
    first.serve = await site.fleet.serve(config, first.name)
    await _choosing(site, first)
    await _know_each_other(site, site.routers)
    console.print(f"[green]✓[/green] {first.name} is back: it chooses nodes, and all know each other again")
    if not faults:
        console.print(
            f"[green]✓[/green] {demo.REQUESTS + _AFTER_DEATH * len(others)} requests went to the node that their "
            "router chose for them"
        )
    return faults


async def _send(site: _Site, routers: Sequence[_Router], title: str, asks: Sequence[Ask]) -> list[tuple[Ask, Answer]]:
    """Send the requests to these routers' Envoys in turn, a few at a time, and show each answer as it comes."""
    table = demo.table_of(title, "router")
    turns = asyncio.Semaphore(demo.CONCURRENCY)

    async def send(router: _Router, request: Ask) -> tuple[Ask, Answer]:
        async with turns:
            answer = await ask(site.client, router.envoy.url, request)
        table.add_row(router.name, *demo.row(request, answer))
        return request, answer

    site.console.print()
    with Live(table, console=site.console, refresh_per_second=8):
        answers = await asyncio.gather(
            *(send(routers[place % len(routers)], request) for place, request in enumerate(asks))
        )
    site.console.line()
    return answers


def _say_where(site: _Site) -> None:
    lines = ["\nEverything stays up. Send more, to any of them:"]
    for one in site.routers:
        lines.append(f"{one.name}:  {one.envoy.url}/v1/chat/completions, its page http://{one.serve.admin}/peers")
    body = f'{{"model": "{demo.MODEL}", "max_tokens": 16, "messages": [{{"role": "user", "content": "Hi"}}]}}'
    lines += [
        f"  curl -i {site.routers[-1].envoy.url}/v1/chat/completions -H 'content-type: application/json' \\",
        f"    -d '{body}'",
        "Stop with Ctrl-C.",
    ]
    site.console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
