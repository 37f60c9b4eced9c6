"""NATS that dies and comes back again and again: routers and agents are the same after it as before."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from extproc.children import Child
from tests.e2e.routers import metric, site
from tests.serve.served import Served
from tests.waiting import until

WARM_UP = 4
"""Cycles in which libraries are imported and pools filled."""
CYCLES = 20
GROWN_MAX = 6
"""Threads and descriptors: pools of threads are filled as they are needed. Of each cycle one would be many more."""
GROWN_BYTES_MAX = 4 * 1024 * 1024
"""Noise of the allocator. A connection that is kept has 100 KiB and more, a task with its messages not much less."""


class Held(NamedTuple):
    """What a process has of the system."""

    descriptors: int
    threads: int
    resident_bytes: int


def held_by(child: Child) -> Held:
    at = Path(f"/proc/{child.pid}")
    pages = int((at / "statm").read_text().split()[1])
    return Held(len(list((at / "fd").iterdir())), len(list((at / "task").iterdir())), pages * 4096)


async def test_nothing_is_kept_of_twenty_connections_that_were_lost(tmp_path: Path) -> None:
    async with site(tmp_path, engines=1) as at:
        routers = await asyncio.gather(at.router(), at.router())
        agent = await at.agent(at.engines, routers)
        await at.ready()
        await at.begin([1, 1])
        await at.agree()
        children = [one.child for one in routers] + [agent]
        before: list[Held] = []
        for cycle in range(WARM_UP + CYCLES):
            if cycle == WARM_UP:
                before = await at_least(children)
            await at.nats.kill()
            await until(lambda: all_are(routers, "extproc_bus_connected", 0), 20)
            await at.nats.start()
            await until(lambda: all_are(routers, "extproc_bus_connected", 1), 20)
        await at.agree()
        after = await at_least(children)
        for child, then, now in zip(children, before, after, strict=True):
            told = f"{child.name}: {then}, {now}"
            assert now.descriptors - then.descriptors <= GROWN_MAX, told
            assert now.threads - then.threads <= GROWN_MAX, told
            assert now.resident_bytes - then.resident_bytes < GROWN_BYTES_MAX, told
        await at.at_rest()


async def at_least(children: list[Child]) -> list[Held]:
    """The least of several looks: pages that are being read hold something too."""
    looks = []
    for _ in range(5):
        looks.append([held_by(one) for one in children])
        await asyncio.sleep(0.1)
    return [Held(*map(min, zip(*of_one, strict=True))) for of_one in zip(*looks, strict=True)]


async def all_are(routers: Sequence[Served], name: str, wanted: float) -> bool:
    return all([await metric(one, name) == wanted for one in routers])
