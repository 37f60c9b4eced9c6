"""A small engine that counts as engines do, for tests of what is doubted: in ticks of a tenth of a second."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from extproc.agent.doubts import Doubts
from extproc.agent.engines.reading import EngineReading

TICK_S = 0.1
BLOCKS, BLOCK_SIZE = 10_000, 16


@dataclass
class Asked:
    tokens: int
    prefill_ticks: int
    decode_ticks: int
    came: int
    client: int | None = None


@dataclass
class Engine:
    """Requests come at random or from clients that wait for their answers, queue, and run in a batch."""

    per_tick: float = 0.0
    """Requests that come on the average."""
    clients: int = 0
    """Those who ask again when they are answered."""
    batch: int = 32
    tokens: int = 2000
    prefill_ticks: int = 1
    decode_ticks: int = 20
    seed: int = 0
    waiting: deque[Asked] = field(default_factory=deque)
    running: list[Asked] = field(default_factory=list)
    tick: int = 0
    totals: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("tokens", "waited_s", "firsts", "gaps_s"), 0)
    )

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        for client in range(self.clients):
            self.ask(client)

    def ask(self, client: int | None = None) -> None:
        decodes = self.random.randint(self.decode_ticks // 2, self.decode_ticks * 2)
        self.waiting.append(Asked(self.tokens, self.prefill_ticks, decodes, self.tick, client))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.tick += 1
            whole = int(self.per_tick)
            for _ in range(whole + (self.random.random() < self.per_tick - whole)):
                self.ask()
            while self.waiting and len(self.running) < self.batch:
                self.running.append(self.waiting.popleft())
            for one in list(self.running):
                self.step(one)

    def step(self, one: Asked) -> None:
        totals = self.totals
        if one.prefill_ticks:
            one.prefill_ticks -= 1
            if not one.prefill_ticks:
                totals["firsts"] += 1
                totals["tokens"] += one.tokens
                totals["waited_s"] += (self.tick - one.came + 1) * TICK_S
        else:
            one.decode_ticks -= 1
            totals["gaps_s"] += TICK_S
        if not one.prefill_ticks and one.decode_ticks <= 0:
            self.running.remove(one)
            if one.client is not None:
                self.ask(one.client)

    def reading(self) -> EngineReading:
        """What it tells, honestly."""
        prefills = sum(one.prefill_ticks > 0 for one in self.running)
        used = min(BLOCKS, sum(-(-one.tokens // BLOCK_SIZE) for one in self.running))
        return EngineReading(
            decode_seconds_total=self.totals["gaps_s"],
            kv_usage=used / BLOCKS,
            kv_block_size_tokens=BLOCK_SIZE,
            kv_blocks_total=BLOCKS,
            kv_blocks_available=BLOCKS - used,
            pending_prefills=len(self.waiting) + prefills,
            active_decodes=len(self.running) - prefills,
            requests_running=len(self.running),
            requests_waiting=len(self.waiting),
            prefill_latency_ms=100.0,
            decode_ms_per_token=100.0,
            adapter_slots_free=0,
            prefill_tokens_total=int(self.totals["tokens"]),
            prefill_seconds_total=self.totals["waited_s"],
            first_tokens_total=int(self.totals["firsts"]),
            prefix_queries_total=int(self.totals["tokens"]),
            prefix_hits_total=0,
        )


Lie = Callable[[EngineReading, int], dict[str, Any]]
"""What it tells instead, at which look."""


def honest(reading: EngineReading, number: int) -> dict[str, Any]:
    return {}


@dataclass
class Watched:
    """An engine that is looked at once a second."""

    engine: Engine
    lie: Lie = honest
    doubts: Doubts = field(default_factory=Doubts)
    looks: int = 0

    def look(self, after_s: float = 1.0) -> EngineReading:
        self.engine.run(after_s)
        self.looks += 1
        reading = self.engine.reading()
        told = replace(reading, **self.lie(reading, self.looks))
        return self.doubts.checked(told, self.engine.tick * TICK_S)

    def look_for(self, seconds: int) -> EngineReading:
        """The last look of so many."""
        for _ in range(seconds - 1):
            self.look()
        return self.look()
