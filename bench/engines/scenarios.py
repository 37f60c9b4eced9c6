"""What is compared on what: the engines of each scenario, its requests, its load, and who competes."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from bench.engines import workloads
from bench.engines.model import capacity_per_s
from bench.engines.workloads import Shape, Timed
from extproc import strategytext
from extproc.core.cost import STRATEGIES
from extproc.core.policy import RoutingPolicy
from extproc.sim.emulatorsettings import EmulatorSettings
from extproc.sim.fleetplan import FailureKind
from extproc.sim.profiles import Bursts

KV_BLOCKS: Final = 4000
CONTEXT_TOKENS: Final = 16_384
"""What half of the KV blocks still hold."""
PATIENCE_S: Final = 120.0
"""Longer than anybody waits in the worst of the runs: whoever is slow shall be measured, not cut off."""
_SAMPLE: Final = 300
_SAMPLE_RATE_PER_S: Final = 16.0
_SAMPLE_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One emulated engine."""

    name: str
    speed: float = 1.0
    """1: Llama-3.3-70B on two H100; the objectives are made for that, see `extproc/sim/measures.py`."""
    kv_blocks: int = KV_BLOCKS

    @property
    def settings(self) -> EmulatorSettings:
        """All that `extproc emulate` is told, and its own defaults."""
        return EmulatorSettings(
            name=self.name,
            model=workloads.MODEL,
            speed=self.speed,
            kv_blocks=self.kv_blocks,
            context_length_tokens=CONTEXT_TOKENS,
        )

    @property
    def options(self) -> tuple[str, ...]:
        """For `extproc emulate`."""
        return (
            *("--speed", str(self.speed), "--kv-blocks", str(self.kv_blocks)),
            *("--context-length-tokens", str(CONTEXT_TOKENS)),
        )


@dataclass(frozen=True, slots=True)
class Failing:
    """What happens to the first node: a fault from a quarter of the run on, for `for_s` or half of a shorter run."""

    kind: FailureKind
    for_s: float = 20.0
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One table."""

    name: str
    about: str
    nodes: tuple[Node, ...]
    shape: Shape
    load: float
    """Of what these engines can carry, see `rate_per_s`."""
    bursts: Bursts | None = None
    turns_apart: bool = False
    """The load is of what ROUND_ROBIN can carry: each engine gets every n-th request, so caches see all prompts."""
    aims: tuple[tuple[str, float], ...] = ()
    """Measures whose ratio to ROUND_ROBIN shall be at most so much, for the default strategy."""
    failing: Failing | None = None
    patience_s: float = PATIENCE_S
    seconds: float | None = None
    """For how long requests come; `None`: until there have been as many as a run is asked for."""
    ttft_s: float | None = None
    """An objective for the first token: what the answers' table is about."""

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the requests."""
        return self.load * sum(self.capacity_per_s(node) for node in self.nodes)

    def capacity_per_s(self, node: Node) -> float:
        """Requests per second that one of the engines carries, by the step model."""
        return _capacity_per_s(node, self.shape, len(self.nodes) if self.turns_apart else 1)

    def asked(self, requests: int, seed: int) -> list[Timed]:
        """The requests of one repetition."""
        return workloads.timed(self.shape, self.requests(requests), self.rate_per_s, seed, self.bursts)

    def requests(self, wanted: int) -> int:
        """How many a run has."""
        return wanted if self.seconds is None else round(self.rate_per_s * self.seconds)


@cache
def _capacity_per_s(node: Node, shape: Shape, every: int) -> float:
    asked = workloads.timed(shape, _SAMPLE * every, _SAMPLE_RATE_PER_S, _SAMPLE_SEED)
    return capacity_per_s(node.settings.engine, asked[::every])


_EQUAL: Final = tuple(Node(f"node-{number}") for number in range(1, 5))
_UNEQUAL: Final = (
    Node("node-1", speed=1 / 3),
    Node("node-2", kv_blocks=KV_BLOCKS // 2),
    Node("node-3"),
    Node("node-4"),
)
MIXED: Final = Scenario(
    "mixed",
    "half of the requests short prompts with long answers, half long prompts with short ones, in bursts",
    _EQUAL,
    workloads.MIXED,
    load=0.7,
    bursts=workloads.BURSTS,
    aims=(("ttft_p90_s", 0.75),),
)
CHATS: Final = Scenario(
    "chats",
    "chats over shared system prompts, more than ROUND_ROBIN can carry; no session header but for RING_HASH",
    _EQUAL,
    workloads.CHATS,
    load=1.5,
    turns_apart=True,
    aims=(("ttft_p90_s", 0.18),),
)
UNEQUAL: Final = Scenario(
    "unequal",
    "the requests of mixed; one engine three times slower, one with half of the KV cache",
    _UNEQUAL,
    workloads.MIXED,
    load=0.65,
    bursts=workloads.BURSTS,
    aims=(("ttft_p90_s", 0.2), ("ttft_p99_s", 0.33)),
)
FAULTS: Final = tuple(
    Scenario(
        f"faults-{failing.kind.value}",
        about,
        _EQUAL,
        workloads.MIXED,
        load=0.5,
        failing=failing,
        patience_s=10.0,
    )
    for failing, about in (
        (Failing(FailureKind.ERROR), "one engine of four answers 503"),
        (Failing(FailureKind.HANG), "one engine of four takes requests and computes nothing"),
        (Failing(FailureKind.SLOW, factor=5.0), "one engine of four is five times slower"),
    )
)
OVERLOAD: Final = (
    Scenario(
        "overload",
        "the requests of mixed without bursts, a tenth more than the engines can carry, for a minute",
        _EQUAL,
        workloads.MIXED,
        load=1.1,
        seconds=60.0,
        ttft_s=2.0,
    ),
    Scenario(
        "overload-burst",
        "the requests of mixed, and in 5 s of every 30 four times as many",
        _EQUAL,
        workloads.MIXED,
        load=0.75,
        bursts=Bursts(factor=4.0, lasting_s=5.0, every_s=30.0),
        seconds=60.0,
        ttft_s=2.0,
    ),
)
SCENARIOS: Final = {
    "mixed": (MIXED,),
    "chats": (CHATS,),
    "unequal": (UNEQUAL,),
    "faults": FAULTS,
    "overload": OVERLOAD,
}
"""By the name that is asked for."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to choose a node."""

    name: str
    policy: RoutingPolicy | None
    """extproc's; `None`: Envoy chooses itself."""
    lb_policy: str = "ROUND_ROBIN"
    """Of Envoy's cluster over the nodes."""
    outlier_detection: bool = False
    """Envoy's, with its defaults but for how many nodes it may eject."""

    @property
    def with_session(self) -> bool:
        """Whether clients name their session."""
        return self.lb_policy == "RING_HASH"


BASELINE: Final = Variant("ROUND_ROBIN", None)
ENVOYS: Final = {
    one.name: one
    for one in (
        BASELINE,
        Variant("LEAST_REQUEST", None, "LEAST_REQUEST"),
        Variant("RING_HASH", None, "RING_HASH"),
        Variant("ROUND_ROBIN+outliers", None, outlier_detection=True),
    )
}
DEFAULT: Final = ("least-added-delay", "lmetric", "load-score", "ROUND_ROBIN", "LEAST_REQUEST", "RING_HASH")
DEFAULT_OVERLOAD: Final = ("least-added-delay:ttft_s=2", "least-added-delay")
DEFAULT_FAULTS: Final = ("least-added-delay", "ROUND_ROBIN", "ROUND_ROBIN+outliers")


def variant(name: str) -> Variant:
    """By the name of one of Envoy's or ours; `least-added-delay@4` is that strategy with w = 4, and behind a colon
    stand settings of a policy, as `extproc simulate` has them. Raises ValueError."""
    if name in ENVOYS:
        return ENVOYS[name]
    strategy, mark, weight = name.partition("@")
    if strategy in STRATEGIES and not mark:
        return Variant(name, RoutingPolicy(strategy=strategy))
    if strategy == "least-added-delay" and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", weight):
        return Variant(name, RoutingPolicy(strategy=strategy, first_token_weight=float(weight)))
    if ":" in name:
        policy = strategytext.policy_of(name, {})
        if isinstance(policy, RoutingPolicy):
            return Variant(name, policy)
    msg = f"wanted one of {', '.join((*STRATEGIES, *ENVOYS))}, least-added-delay@4 or :ttft_s=2; got {name!r}"
    raise ValueError(msg)
