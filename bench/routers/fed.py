"""One router of `bench.routers.traffic`: a balancer that is fed, and its exchange.

    python -m bench.routers.fed NATS_URL ARM PLACE ROUTERS REQUESTS_PER_S NODES SECONDS

Prints one JSON line, a `Spent`.
"""

import asyncio
import enum
import gc
import heapq
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import structlog
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from xxhash import xxh3_64_intdigest

from extproc.bus import bus as channels
from extproc.bus.natsbus import NatsBus
from extproc.bus.settings import NatsSettings
from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen
from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.policy import RoutingPolicy
from extproc.core.request import PROMPT_BLOCK_BYTES, Endpoint, InferenceRequest, TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported, NodeState, ServedModel, Snapshot
from extproc.exchange.exchange import Exchange
from extproc.ops.metrics import Metrics
from extproc.sim import workloads

CHANNELS: Final = (channels.LOADS, channels.PLACEMENTS, channels.ROUTERS)
WARM_UP_S: Final = 5.0
"""Before anything is counted: the routers meet, and requests come to be open."""
STEP_S: Final = 0.005
"""Requests of so long a time are taken at once."""
AT_ONCE_MAX: Final = 8
CHAT_BYTES: Final = (1000, 8000)
CHAT_SHARE: Final = 0.5
ANSWER_S_MEAN: Final = 2.0
TOKEN_BYTES: Final = 4
PREFILL_TOKENS_PER_S: Final = 15_000
GC_YOUNG_OBJECTS_MAX: Final = 10_000
"""As `serve` has it."""
_SEED: Final = 7
_MODELS: Final = (ServedModel("llama", context_length_tokens=131_072),)


class Arm(enum.Enum):
    """What routers tell each other."""

    NONE = "none"
    LOADS = "loads"
    ALL = "all"

    @property
    def about(self) -> str:
        """For tables."""
        return {"none": "nothing", "loads": "loads", "all": "loads and placements"}[self.value]


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one router, a second."""

    cores: float
    requests_per_s: float
    sent_per_s: dict[str, float]
    """Messages, by channel."""
    sent_bytes_per_s: dict[str, float]
    heard_per_s: dict[str, float]
    heard_bytes_per_s: dict[str, float]


def prompts(place: int, routers: int, wanted: int) -> list[tuple[int, tuple[int, ...]]]:
    """So many of this router's prompts: tokens, and the chain of hashes. The routers' agents are of one list."""
    chance = random.Random(_SEED + place)
    agents = iter(workloads.generated("agents", wanted * routers, _SEED)[place::routers])
    found = []
    for _ in range(wanted):
        if chance.random() < CHAT_SHARE:
            size = chance.randint(*CHAT_BYTES)
            chain = [chance.getrandbits(64) for _ in range(size // PROMPT_BLOCK_BYTES)]
            found.append((size // TOKEN_BYTES, tuple(chain)))
        else:
            one = next(agents)
            # Each block's number, as a hash of 64 bits has it.
            found.append((one.prompt_tokens, tuple(xxh3_64_intdigest(b"%d" % block) for block in one.prompt_blocks)))
    return found


class Fed:
    """A balancer, and requests that come to it and end."""

    def __init__(
        self, balancer: Balancer, place: int, routers: int, requests_per_s: float, nodes: int, seconds: float
    ) -> None:
        self.balancer = balancer
        self.requests = 0
        self._place = place
        self._routers = routers
        self._rate = requests_per_s / routers
        self._nodes = nodes
        self._chance = random.Random(place)
        self._policy = RoutingPolicy()
        self._held = dict.fromkeys((f"node-{number}" for number in range(nodes)), 0)
        self._open: list[tuple[float, str, str]] = []
        """Ends to come: when, of which request, at which node."""
        self._computed = [0] * nodes
        self._firsts = [0] * nodes
        self._sequence = 0
        # Made before the clock runs: what they cost is no part of a router.
        self._prompts = prompts(place, routers, round(self._rate * seconds) + 1)

    def report(self, number: int, now_s: float) -> None:
        """A node tells how it is: the other routers have about as much there as this one."""
        held = self._held[f"node-{number}"] * self._routers
        waiting = max(0, held - 16)
        self._sequence += 1
        self.balancer.observe(
            NodeReported(
                Snapshot(
                    node_id=f"node-{number}",
                    host=f"10.0.{number // 250}.{number % 250 + 1}:8000",
                    boot_id="boot",
                    sequence=self._sequence,
                    sample_age_s=0.01,
                    state=NodeState.READY,
                    models=_MODELS,
                    kv_usage=0.5,
                    kv_block_size_tokens=16,
                    kv_blocks_total=25_000,
                    kv_blocks_available=12_000,
                    pending_prefills=held // 8,
                    active_decodes=held - held // 8,
                    requests_running=held - waiting,
                    requests_waiting=waiting,
                    decode_ms_per_token=25.0,
                    prefill_tokens_total=self._computed[number],
                    prefill_seconds_total=self._computed[number] / PREFILL_TOKENS_PER_S,
                    first_tokens_total=self._firsts[number],
                    round_trip_s=0.001,
                )
            ),
            now_s,
        )

    def come(self, now_s: float) -> None:
        """One request."""
        tokens, blocks = self._prompts[self.requests % len(self._prompts)]
        self.requests += 1
        request_id = f"{self._place:08x}-{self.requests}"
        asked = InferenceRequest(request_id, "llama", Endpoint.CHAT, TokenCount(tokens, exact=False), 200, blocks)
        outcome = self.balancer.route(asked, self._policy, now_s).outcome
        assert isinstance(outcome, Chosen), outcome
        self.balancer.settle()
        self._held[outcome.node_id] += 1
        number = int(outcome.node_id.removeprefix("node-"))
        self._computed[number] += tokens // 4
        self._firsts[number] += 1
        ends_s = now_s + self._chance.expovariate(1 / ANSWER_S_MEAN)
        heapq.heappush(self._open, (ends_s, request_id, outcome.node_id))

    def end(self, now_s: float) -> None:
        """All whose time it is."""
        while self._open and self._open[0][0] <= now_s:
            _, request_id, node_id = heapq.heappop(self._open)
            self._held[node_id] -= 1
            self.balancer.finish(request_id, now_s)

    async def run(self, until_s: float) -> None:
        """As the event loop of `serve` would be busy with it."""
        begun_s = at_s = time.monotonic()
        reports = comes = 0
        while (now_s := time.monotonic()) < until_s:
            for _ in range(int((now_s - begun_s) * self._nodes) - reports):
                self.report(reports % self._nodes, now_s)
                reports += 1
            due = int((now_s - begun_s) * self._rate) - comes
            for _ in range(min(AT_ONCE_MAX, due)):
                self.come(now_s)
                comes += 1
            self.end(now_s)
            # However late, others on the loop have their turn.
            at_s = max(at_s + STEP_S, now_s)
            await asyncio.sleep(0.0 if due > AT_ONCE_MAX else max(0.0, at_s - time.monotonic()))


async def run(url: str, arm: Arm, place: int, routers: int, rate: float, nodes: int, seconds: float) -> Spent:
    """Feed a router, and measure after the warm-up."""
    clock = time.monotonic
    settings = BalancerSettings(exchange=ExchangeSettings(placements=arm is Arm.ALL))
    fed = Fed(Balancer(settings, clock() - 60), place, routers, rate, nodes, WARM_UP_S + seconds)
    metrics = Metrics()
    tasks: list[asyncio.Task[None]] = []
    log = structlog.get_logger()
    for number in range(nodes):
        fed.report(number, clock())
    bus = None
    if arm is not Arm.NONE:
        bus = NatsBus(NatsSettings(servers=(url,)), clock, log)
        exchange = Exchange(fed.balancer, bus, f"{place:08x}", settings.exchange, clock, metrics, log)
        tasks.append(asyncio.create_task(exchange.run()))
        await bus.open(exchange.connected)
    await fed.run(clock() + WARM_UP_S)
    before, requests = _counted(metrics), fed.requests
    begun_s, cpu_s = clock(), time.process_time()
    await fed.run(begun_s + seconds)
    cpu_s, wall_s = time.process_time() - cpu_s, clock() - begun_s
    after = _counted(metrics)
    for task in tasks:
        task.cancel()
    if bus is not None:
        await bus.close()
    figures = [
        {channel: (after[key := (name, direction, channel)] - before[key]) / wall_s for channel in CHANNELS}
        for direction in ("sent", "received")
        for name in ("messages", "bytes")
    ]
    return Spent(cpu_s / wall_s, (fed.requests - requests) / wall_s, *figures)


def _counted(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    """Messages and bytes so far, by direction and channel; 0 where there were none."""
    found = {
        (name, direction, channel): 0.0
        for name in ("messages", "bytes")
        for direction in ("sent", "received")
        for channel in CHANNELS
    }
    for family in text_string_to_metric_families(metrics.page([], []).decode()):
        name = family.name.removeprefix("extproc_exchange_")
        for one in family.samples:
            if name in ("messages", "bytes") and one.name.endswith("_total"):
                found[name, one.labels["direction"], one.labels["kind"]] = one.value
    return found


async def main() -> None:
    """Do as the command line says."""
    url, arm, place, routers, rate, nodes, seconds = sys.argv[1:]
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS_MAX)
    spent = await run(url, Arm(arm), int(place), int(routers), float(rate), int(nodes), float(seconds))
    print(json.dumps(asdict(spent)), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
