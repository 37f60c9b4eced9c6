"""What is asked of overload: ways to meet it, before the settings of `bench.strategies`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from bench.strategies.spread import NGOOD, REFUSED, Quantity, percent
from extproc.core.admissionsettings import PriorityClass
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits
from extproc.core.settings import BalancerSettings
from extproc.sim.measures import ClassMeasures, Measures

LOADS: Final = (0.85, 1.1)
"""Shares of the measured capacity."""
TTFT_S: Final = 2.0
"""The objective of the policies that have one, as that of ngood."""
BATCH_SHARE: Final = 0.4
"""Of the requests, where there are two classes."""
INTERACTIVE: Final = "interactive"
BATCH: Final = "batch"
ALL: Final = ("conv", "code", "mix", "heavy", "agents", "azure", "mooncake")
UNLIKE: Final = ("conv", "mix", "heavy", "mooncake")
"""Where the answers differ most."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to meet overload; equal only to itself."""

    policy: RoutingPolicy = field(default_factory=RoutingPolicy)
    settings: BalancerSettings = field(default_factory=BalancerSettings)
    batch_share: float = 0.0
    """Of the requests that are of class `batch`, thrown; the others are interactive. 0: there are no classes."""


@dataclass(frozen=True, slots=True)
class Part:
    """One question, and the tables that answer it: a row for each variant, a table for each quantity at each load."""

    title: str
    settings: tuple[str, ...]
    variants: Mapping[str, Variant]
    quantities: tuple[Quantity, ...]
    folded: tuple[Quantity, ...] = ()
    """Those whose tables readers open to see."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run."""

    setting: str
    requests: int
    seed: int
    load: float
    variant: Variant


def _objective(fraction: float = 0.5, **limits: bool) -> RoutingPolicy:
    return RoutingPolicy(ttft_s=TTFT_S, wait_fraction=fraction, limits=Limits(**limits))


def _two(
    batch_s: float = 0.0, reserved: float = 0.0, interactive_s: float = 0.0, policy: RoutingPolicy | None = None
) -> Variant:
    """Two classes that may wait so long, and of which batch leaves so much of each node's room to the other."""
    classes = {
        INTERACTIVE: PriorityClass(queue_ms_max=round(1000 * interactive_s), reserved_share=reserved),
        BATCH: PriorityClass(queue_ms_max=round(1000 * batch_s)),
    }
    settings = BalancerSettings(classes=classes, default_class=INTERACTIVE)
    return Variant(policy or _objective(), settings, BATCH_SHARE)


def _waiting(queue_s: float) -> Variant:
    classes = {"standard": PriorityClass(queue_ms_max=round(1000 * queue_s))}
    return Variant(_objective(), BalancerSettings(classes=classes))


def _of(name: str, figure: Callable[[ClassMeasures], float | None]) -> Callable[[Measures], float | None]:
    return lambda measures: figure(measures.classes[name])


_AT_LARGE: Final = Variant()
_AT_ONCE: Final = Variant(_objective())
ACCEPTED: Final = Quantity("ngood of what was not refused", lambda one: one.ngood_accepted, 3, more_is_better=True)
_OF_CLASSES: Final = tuple(
    Quantity(f"{name}: {what}", _of(name, figure), 3, more_is_better=more_is_better)
    for name in (INTERACTIVE, BATCH)
    for what, figure, more_is_better in (
        ("ngood", lambda one: one.ngood, True),
        ("refused", lambda one: one.refused / one.requests if one.requests else None, False),
    )
)
_WAITS_OF_CLASSES: Final = tuple(
    Quantity(f"{name}: {what}", _of(name, figure), digits, more_is_better=False)
    for name in (INTERACTIVE, BATCH)
    for what, figure, digits in (
        ("TTFT p50, s", lambda one: one.ttft_p50_s, 2),
        ("TTFT p99, s", lambda one: one.ttft_p99_s, 1),
    )
)
PARTS: Final[Mapping[str, Part]] = MappingProxyType(
    {
        "objective": Part(
            f"An objective of {TTFT_S:g} s for the first token",
            ALL,
            {
                "none": _AT_LARGE,
                **{f"wait_fraction {one:g}": Variant(_objective(one)) for one in (0.125, 0.25)},
                "wait_fraction 0.5": _AT_ONCE,
                "wait_fraction 1": Variant(_objective(1.0)),
            },
            (NGOOD, REFUSED),
            (ACCEPTED,),
        ),
        "blocks": Part(
            "Free KV blocks: preferred or required",
            UNLIKE,
            {
                "no objective, preferred": _AT_LARGE,
                "no objective, required": Variant(RoutingPolicy(limits=Limits(kv_blocks_required=True))),
                "objective, preferred": _AT_ONCE,
                "objective, required": Variant(_objective(kv_blocks_required=True)),
            },
            (NGOOD, REFUSED),
        ),
        "waiting": Part(
            "One class: to wait or to be refused",
            UNLIKE,
            {
                "refused at once": _AT_ONCE,
                **{f"waits {one:g} s": _waiting(one) for one in (1.0, 2.0)},
            },
            (NGOOD, REFUSED),
            (ACCEPTED,),
        ),
        "classes": Part(
            f"Two classes: {percent(BATCH_SHARE)} of the requests are batch",
            UNLIKE,
            {
                "no objective": _two(policy=RoutingPolicy()),
                "no class waits": _two(),
                **{f"batch waits {one:g} s": _two(one) for one in (30.0, 60.0)},
                **{f"batch waits 30 s, {one:g} reserved": _two(30.0, one) for one in (0.25, 0.5, 0.9)},
                "no class waits, 0.9 reserved": _two(reserved=0.9),
                "batch waits 30 s, interactive 1 s": _two(30.0, interactive_s=1.0),
            },
            _OF_CLASSES,
            _WAITS_OF_CLASSES,
        ),
    }
)
