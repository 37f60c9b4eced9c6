"""What is simulated: settings (a workload before a fleet), and the questions that are put to them.

A case is one run. Questions share cases: what two of them ask is run once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from extproc.core.cost import DEFAULT_STRATEGY, STRATEGIES
from extproc.core.policy import RoutingPolicy
from extproc.sim.comparison import REFERENCE
from extproc.sim.exchange import Exchanging
from extproc.sim.workloads import GENERATED

LOADS: Final = (0.6, 0.75)
"""Shares of the measured capacity."""
INTERVALS_S: Final = (0.2, 1.0, 2.0, 5.0)
"""Between snapshots."""
WEIGHTS: Final = (
    *((w, v, 0) for w in (1, 2, 4) for v in (0, 2, 4)),
    *((w, 2, c) for c in (0.125, 0.25) for w in (1, 2, 4)),
)
"""w, v and c of least-added-delay: pairs of the first two without the third, then triples."""
ROUTERS: Final = (1, 3)
FAULTS: Final = ("error", "hang", "slow")
"""What a node does for a while, see `fleetplan.FailureKind`."""
STRATEGY: Final = DEFAULT_STRATEGY
CONTENDERS: Final = (*STRATEGIES, REFERENCE)


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload before eight nodes."""

    name: str
    trace: str
    """`generated:…`, or the pattern of a file's name in the folder of traces."""
    nodes: str
    """A ready plan of `fleetplan`."""
    requests: int
    """Of each run, if nobody says another number."""


_AZURE: Final = "AzureLLMInferenceTrace_conv*.csv"
_MOONCAKE: Final = "*conversation_trace.jsonl"
SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        one.name: one
        for one in (
            *(Setting(name, GENERATED + name, "even", 8000) for name in ("conv", "code", "mix")),
            # They come more slowly and cost more.
            Setting("heavy", GENERATED + "heavy", "even", 6000),
            *(Setting(name, GENERATED + name, "even", 8000) for name in ("agents", "chats")),
            Setting("azure", _AZURE, "even", 8000),
            Setting("mooncake", _MOONCAKE, "even", 5000),
            Setting("heavy, unequal", GENERATED + "heavy", "unequal", 6000),
            Setting("mooncake, unequal", _MOONCAKE, "unequal", 5000),
        )
    }
)


class Case(Struct, frozen=True, kw_only=True):
    """One run; everything that distinguishes it from others."""

    setting: str
    requests: int
    seed: int
    load: float
    strategy: str
    """As `comparison.contender` takes it."""
    routers: int = 1
    snapshot_interval_s: float = 1.0
    first_tokens: bool = False
    """Whether routers see them as they come, which is an option of a route."""
    fault: str | None = None
    """Of the fleet's third node."""
    kv_events: bool = False
    """Whether nodes tell what their caches have."""
    kv_blocks: int | None = None
    """Of each node's cache; `None`: as the setting's fleet has."""
    exchange: Exchanging | None = None
    """What routers tell each other."""


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is asked."""

    settings: tuple[Setting, ...]
    """Those that are at hand."""
    seeds: int
    requests: int | None = None
    """Of each run; `None`: as each setting says."""

    def cases(
        self,
        names: Iterable[str] | None,
        loads: Sequence[float],
        strategies: Sequence[str],
        *,
        routers: int = 1,
        snapshot_interval_s: float = 1.0,
        first_tokens: bool = False,
        fault: str | None = None,
        kv_events: bool = False,
        kv_blocks: int | None = None,
        exchange: Exchanging | None = None,
    ) -> list[Case]:
        """One for each of these settings, if it is at hand, each seed, load and strategy. `None`: every setting."""
        wanted = set(SETTINGS if names is None else names)
        return [
            Case(
                setting=setting.name,
                requests=self.requests or setting.requests,
                seed=seed,
                load=load,
                strategy=strategy,
                routers=routers,
                snapshot_interval_s=snapshot_interval_s,
                first_tokens=first_tokens,
                fault=fault,
                kv_events=kv_events,
                kv_blocks=kv_blocks,
                exchange=exchange,
            )
            for setting in self.settings
            if setting.name in wanted
            for seed in range(self.seeds)
            for load in loads
            for strategy in strategies
        ]


def at_hand(folder: Path | None) -> tuple[Setting, ...]:
    """The settings whose workloads can be had: generated ones, and those of the traces in the folder."""
    return tuple(one for one in SETTINGS.values() if source(one, folder) is not None)


def source(setting: Setting, folder: Path | None) -> str | None:
    """What `workloads.arrivals` takes; `None` if the trace is not in the folder."""
    if setting.trace.startswith(GENERATED):
        return setting.trace
    found = sorted(folder.glob(setting.trace)) if folder is not None else []
    return str(found[0]) if found else None


def weighted(first_token_weight: float, output_token_weight: float, crowding_weight: float) -> str:
    """least-added-delay with these weights; by its mere name if they are the default."""
    default = RoutingPolicy()
    weights = {
        "first_token_weight": first_token_weight,
        "output_token_weight": output_token_weight,
        "crowding_weight": crowding_weight,
    }
    if all(getattr(default, name) == weight for name, weight in weights.items()):
        return STRATEGY
    return ":".join([STRATEGY, *(f"{name}={weight:g}" for name, weight in weights.items())])


COUNTING: Final = (STRATEGY, "lmetric")
"""The strategies that count prompt work until its first token."""
WEIGHTED: Final = tuple(weighted(*weights) for weights in WEIGHTS)
SNAPSHOTS_OF: Final = ("conv", "mix", "heavy", "mooncake", "heavy, unequal")
ROUTERS_OF: Final = ("conv", "heavy", "mooncake", "agents")
ROUTED: Final = (
    *((name, routers, False) for name in ("least-inflight", "lmetric", STRATEGY) for routers in ROUTERS),
    (STRATEGY, ROUTERS[-1], True),
)
"""By which strategy, by how many routers, and whether these see first tokens as they come."""
KV_BLOCKS_FEW: Final = 8500
"""A third of the usual cache: the longest prompts still fit."""
KV_OF: Final[Mapping[str, int]] = MappingProxyType({"agents": 2000, "chats": 1000, "mooncake": 1000})
"""Settings whose prompts have beginnings in common, and requests of each run without and with KV events."""
TOLD: Final = (
    (1, None, 0.75, 1.0),
    (1, KV_BLOCKS_FEW, 0.75, 1.0),
    (3, None, 0.6, 1.0),
    (3, None, 0.75, 1.0),
    (3, KV_BLOCKS_FEW, 0.75, 1.0),
    (3, None, 0.9, 1.0),
    (3, None, 0.75, 0.2),
)
"""Routers, KV blocks of each node, load and seconds between snapshots, each without and with KV events."""
FAILING_IN: Final = "mix"
FAILING_LOAD: Final = 0.6
FAILED_BY: Final = ("round-robin", "least-inflight", STRATEGY)


def of_workloads(scope: Scope) -> list[Case]:
    """How the strategies fare; those that count what is pending also with first tokens as they come."""
    return scope.cases(None, LOADS, CONTENDERS) + scope.cases(None, LOADS, COUNTING, first_tokens=True)


def of_snapshots(scope: Scope) -> list[Case]:
    """What the age of snapshots does, without first tokens as they come, and with them."""
    return [
        case
        for interval_s in INTERVALS_S
        for first_tokens in (False, True)
        for case in scope.cases(
            SNAPSHOTS_OF, LOADS[:1], (STRATEGY,), snapshot_interval_s=interval_s, first_tokens=first_tokens
        )
    ]


def of_weights(scope: Scope) -> list[Case]:
    """Which weights of least-added-delay are best, beside its closest rival."""
    return scope.cases(None, LOADS, (*WEIGHTED, "lmetric"))


def of_routers(scope: Scope) -> list[Case]:
    """What it costs that routers know of each other by snapshots alone."""
    return [
        case
        for name, routers, first_tokens in ROUTED
        for case in scope.cases(ROUTERS_OF, LOADS[1:], (name,), routers=routers, first_tokens=first_tokens)
    ]


def of_failing(scope: Scope) -> list[Case]:
    """What clients see of a node that fails."""
    return [
        case
        for fault in (None, *FAULTS)
        for case in scope.cases((FAILING_IN,), (FAILING_LOAD,), FAILED_BY, fault=fault)
    ]


def of_kv_events(scope: Scope) -> list[Case]:
    """What it is worth that nodes tell what their caches have."""
    return [
        case
        for routers, kv_blocks, load, interval_s in TOLD
        for kv_events in (False, True)
        for case in told_or_not(scope, (routers, kv_blocks, load, interval_s), kv_events=kv_events)
    ]


def told_or_not(scope: Scope, where: tuple[int, int | None, float, float], *, kv_events: bool) -> list[Case]:
    """The cases of one of `TOLD`."""
    routers, kv_blocks, load, interval_s = where
    return [
        case
        for name, requests in KV_OF.items()
        for case in replace(scope, requests=scope.requests or requests).cases(
            (name,),
            (load,),
            (STRATEGY,),
            routers=routers,
            snapshot_interval_s=interval_s,
            kv_events=kv_events,
            kv_blocks=kv_blocks,
        )
    ]
