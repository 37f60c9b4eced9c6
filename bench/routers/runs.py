"""One run: the requests of a round through one system, and what came of it."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct

from bench.engines import cpu
from bench.engines.client import Outcome, Target, ask_all
from bench.engines.model import served
from bench.engines.workloads import Timed
from bench.routers.requests import NODES
from bench.routers.system import Arm, Parts, started
from bench.routers.truth import Beliefs, Looks
from extproc.sim.measures import Measures, measure, percentile

PATIENCE_S: Final = 120.0


class Run(Struct, frozen=True):
    """What is kept of one run."""

    workload: str
    arm: str
    round: int
    rate_per_s: float
    speed: float
    measures: Measures
    """Of slower engines as if they had speed 1: times count by the engines' clock."""
    cached_share: float
    """Of all prompts' tokens, what engines found in their caches."""
    failures: dict[str, int]
    late_p99_s: float
    """How late the clients sent their requests."""
    cores: Mapping[str, float]
    """Busy processors by group, see `bench/engines/cpu.py`."""
    mean_held: float
    """Sequences that a node had, over all looks."""
    mean_error: float
    """How far routers' beliefs were from that."""
    mean_bias: float
    """The same with its sign: over 0 where routers believe in more than there is."""
    rest_s: float
    """How long after the last answer all counts were 0."""
    left: list[str]
    """What was not, until the end."""
    simulated_ngood: float | None = None
    """What the simulator gives for the same arrivals."""


async def run(
    workload: str,
    arm: Arm,
    turn: int,
    asked: Sequence[Timed],
    folder: Path,
    speed: float,
    told: Callable[[int], None],
    nodes: int = NODES,
) -> Run:
    """Send a round's requests through a new system; `told` hears from time to time how many are over."""
    async with started(folder, arm, speed, nodes) as parts, aiohttp.ClientSession() as client:
        looks, beliefs = Looks(parts, client), Beliefs()
        outcomes, cores = await _sent(parts, asked, looks, beliefs, told)
        rest_s, left = await looks.at_rest()
        cached_share = await _cached_share(parts, client)
    found = []
    for one, outcome in zip(asked, outcomes, strict=True):
        first_s = None if outcome.first_token_s is None else one.at_s + outcome.first_token_s
        ended_s = None if outcome.failure else one.at_s + outcome.ended_s
        by_clock = [None if at_s is None else at_s * speed for at_s in (first_s, ended_s)]
        scaled = replace(one, at_s=one.at_s * speed)
        found.append(served(scaled, outcome.engine, *by_clock, refused=outcome.status == 429))
    return Run(
        workload=workload,
        arm=arm.name,
        round=turn,
        rate_per_s=(len(asked) - 1) / asked[-1].at_s,
        speed=speed,
        measures=measure(found, 0, [one.name for one in parts.engines]),
        cached_share=cached_share,
        failures=dict(Counter(one.failure for one in outcomes if one.failure)),
        late_p99_s=percentile(sorted(one.late_s for one in outcomes), 99) or 0.0,
        cores=cores,
        mean_held=beliefs.mean_held,
        mean_error=beliefs.mean_error,
        mean_bias=sum(beliefs.differences) / max(1, len(beliefs.differences)),
        rest_s=rest_s,
        left=left[:20],
    )


async def _sent(
    parts: Parts, asked: Sequence[Timed], looks: Looks, beliefs: Beliefs, told: Callable[[int], None]
) -> tuple[list[Outcome], dict[str, float]]:
    entries = parts.entries
    over = [0] * len(entries)

    def answered(place: int, count: int) -> None:
        over[place] = count
        told(sum(over))

    # Nothing of the clients' is to be walked by a collection in the midst of a run.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        before = cpu.spent(parts.groups, time.monotonic())
        looking = asyncio.create_task(looks.follow(beliefs))
        try:
            # Turns of one session come to other routers: what only one of them knew is of no help to the next.
            each = await asyncio.gather(
                *(
                    ask_all(
                        asked[place :: len(entries)],
                        Target(entry, False, PATIENCE_S),
                        partial(answered, place),
                    )
                    for place, entry in enumerate(entries)
                )
            )
        finally:
            looking.cancel()
            await asyncio.wait([looking])
        cores = cpu.spent(parts.groups, time.monotonic()).cores_since(before)
    finally:
        gc.enable()
        gc.unfreeze()
    parts.check()
    if not looking.cancelled():
        looking.result()
    return sorted((one for outcomes in each for one in outcomes), key=lambda one: one.number), cores


async def _cached_share(parts: Parts, client: aiohttp.ClientSession) -> float:
    found = {"queries": 0.0, "hits": 0.0}
    for engine in parts.engines:
        async with client.get(f"http://{engine.address}/metrics", raise_for_status=True) as response:
            for line in (await response.text()).splitlines():
                for name in found:
                    if line.startswith(f"vllm:prefix_cache_{name}_total"):
                        found[name] += float(line.rpartition(" ")[2])
    return found["hits"] / found["queries"] if found["queries"] else 0.0
