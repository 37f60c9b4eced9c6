"""What routers believe of the engines, held against what engines have at the same moment."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

import aiohttp

from bench.routers.system import Parts

LOOK_S: Final = 0.73
"""Nothing else comes at such times: not samples, not words."""
REST_S: Final = 30.0
_COUNTS: Final = (
    *("requests_held", "sequences_open", "sequences_unseen", "requests_unseen", "sequences_finished"),
    *("kv_blocks_unseen", "prefill_tokens", "prefills_claimed", "tokens_shown", "tokens_unseen", "tokens_unstarted"),
)
"""Of what a router sent itself, and of what it heard from others, where they have it."""


@dataclass(slots=True)
class Beliefs:
    """How far they were from the truth, in sequences, over looks, routers and nodes."""

    differences: list[int] = field(default_factory=list)
    """Believed less true."""
    held: list[int] = field(default_factory=list)
    """The truth."""

    @property
    def mean_error(self) -> float:
        """Mean absolute difference."""
        return fmean(map(abs, self.differences)) if self.differences else 0.0

    @property
    def mean_held(self) -> float:
        """What a node had."""
        return fmean(self.held) if self.held else 0.0

    def add(self, truth: Mapping[str, int], believed: Sequence[Mapping[str, int]]) -> None:
        """One look."""
        self.held += truth.values()
        self.differences += [one[name] - held for one in believed for name, held in truth.items() if name in one]


class Looks:
    """Reads the pages of engines and routers."""

    def __init__(self, parts: Parts, client: aiohttp.ClientSession) -> None:
        self._parts = parts
        self._client = client

    async def follow(self, beliefs: Beliefs) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            before = await self.truth()
            believed = await asyncio.gather(*(self._in_flight(str(one.admin)) for one in self._parts.serves))
            after = await self.truth()
            # Routers answer one after the other, within some milliseconds: the middle of both is what was there.
            beliefs.add({name: round((held + after[name]) / 2) for name, held in before.items()}, believed)

    async def truth(self) -> dict[str, int]:
        """Sequences that each engine has."""
        pages = await asyncio.gather(*(self._json(url) for url in self._parts.truth_urls))
        return {name: held for page in pages for name, held in page.items()}

    async def at_rest(self) -> tuple[float, list[str]]:
        """Wait until no engine has anything and no router believes that one has.

        Gives the seconds until then, and what was still wrong after `REST_S`.
        """
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        while True:
            wrong = [f"{name} holds {held}" for name, held in (await self.truth()).items() if held]
            for serve in self._parts.serves:
                for node in await self._nodes(str(serve.admin)):
                    counts = {"in_flight": node["in_flight"]}
                    for whose in ("own", "peers"):
                        counts |= {f"{whose} {name}": node[whose].get(name, 0) for name in _COUNTS}
                    wrong += [
                        f"{serve.child.name} has {name} {count} at {node['node_id']}"
                        for name, count in counts.items()
                        if count
                    ]
            if not wrong or clock() - begun_s > REST_S:
                return clock() - begun_s, wrong
            await asyncio.sleep(0.1)

    async def _in_flight(self, admin: str) -> dict[str, int]:
        return {node["node_id"]: node["in_flight"] for node in await self._nodes(admin)}

    async def _nodes(self, admin: str) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = (await self._json(f"http://{admin}/nodes"))["nodes"]
        return nodes

    async def _json(self, url: str) -> Any:
        async with self._client.get(url, raise_for_status=True) as response:
            return await response.json(content_type=None)
