"""Routers that share, behind real Envoys, one of which has two of them: what fails beside the requests fails none."""

import asyncio
from pathlib import Path

from extproc.address import TcpAddress, parse
from extproc.fleet import Envoy, Serve
from extproc.traffic import Answer, Ask, ask, completion, mixed
from tests.e2e.routers import MODEL, Site, site
from tests.serve.served import Served
from tests.waiting import until

PROBE = Ask("probe", "/v1/completions", completion(MODEL, "ping", output_tokens=1, stream=False))


async def test_no_request_fails_as_nats_and_a_router_do_and_nothing_is_left_of_any(tmp_path: Path) -> None:
    async with site(tmp_path, speed=3.0) as at:
        await asyncio.gather(*(at.router() for _ in range(3)))
        envoys = list(await asyncio.gather(envoy(at, 1, at.routers[:2]), envoy(at, 2, at.routers[2:])))
        await at.agent(at.engines, at.routers)
        await at.ready()
        for one in envoys:
            await until(lambda one=one: as_chosen(at, one), 20)  # type: ignore[misc]
        assert all(one.as_chosen for one in await sent(at, envoys, 60))
        await until(lambda: ends_are_told(at), 20)
        await at.at_rest()

        asking = asyncio.create_task(sent(at, envoys, 150))
        await until(lambda: some_run(at), 20)
        await at.nats.kill()
        await at.kill(at.routers[1])
        answers = await asking
        assert [one for one in answers if not one.served] == []
        await at.nats.start()
        await at.at_rest()
        assert all(one.served for one in await sent(at, envoys, 30))
        await at.at_rest()


async def envoy(at: Site, number: int, routers: list[Served]) -> Envoy:
    known = [one.address for one in at.engines]
    return await at.fleet.envoy([serve_of(one) for one in routers], known, name=f"envoy-{number}")


def serve_of(router: Served) -> Serve:
    places = [parse(router.at[name]) for name in ("extproc", "agents", "admin")]
    extproc, agents, admin = (one for one in places if isinstance(one, TcpAddress))
    return Serve(router.child, extproc, agents, admin)


async def sent(at: Site, envoys: list[Envoy], count: int) -> list[Answer]:
    """Answers to requests of every kind, by turns through each Envoy."""
    asks = enumerate(mixed(MODEL, count))
    return await asyncio.gather(*(ask(at.http, envoys[place % len(envoys)].url, one) for place, one in asks))


async def as_chosen(at: Site, envoy: Envoy) -> bool:
    return (await ask(at.http, envoy.url, PROBE)).as_chosen


async def some_run(at: Site) -> bool:
    return sum((await at.truth()).values()) > 0


async def ends_are_told(at: Site) -> bool:
    """The first Envoy tells one of its routers how the answers of both ended."""
    pages = [(await router.get("/peers"))[1] for router in at.routers]
    return any(page["messages"]["received"].get("ends", 0) > 0 for page in pages) and any(
        page["ends_are_told"] for page in pages
    )
