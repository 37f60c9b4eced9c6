"""What is asked of several routers: how many, what they tell each other, and what goes wrong with their words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bench.strategies.cases import STRATEGY, Case, Scope
from extproc.sim.exchange import Exchanging

WORKLOADS: Final = ("conv", "heavy", "mooncake", "agents")
LOADS: Final = (0.6, 0.7, 0.75)
LOAD: Final = 0.7
"""Of the questions that are put at one load."""
HARMED: Final = WORKLOADS[1:]
"""Those that several routers cost much."""
PREFIXES: Final = Exchanging(placements=True)


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of a table."""

    routers: int
    exchange: Exchanging | None
    first_tokens: bool = False

    def cases(self, scope: Scope, load: float, names: Iterable[str]) -> list[Case]:
        """Its runs of these workloads."""
        return scope.cases(
            names,
            (load,),
            (STRATEGY,),
            routers=self.routers,
            exchange=self.exchange,
            first_tokens=self.first_tokens,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """One question: its tables have these rows."""

    title: str
    loads: tuple[float, ...]
    variants: Mapping[str, Variant]
    workloads: tuple[str, ...] = WORKLOADS

    def cases(self, scope: Scope) -> list[Case]:
        """All runs that it needs."""
        return [
            case
            for load in self.loads
            for one in self.variants.values()
            for case in one.cases(scope, load, self.workloads)
        ]


def _told(routers: int, *, first_tokens: bool) -> dict[str, Variant]:
    behind = ", first tokens" if first_tokens else ""
    return {
        f"{routers} routers, none{behind}": Variant(routers, None, first_tokens),
        f"{routers} routers, 2s{behind}": Variant(routers, Exchanging(interval_s=2.0), first_tokens),
        f"{routers} routers, 0.5s{behind}": Variant(routers, Exchanging(), first_tokens),
        f"{routers} routers, prefixes{behind}": Variant(routers, PREFIXES, first_tokens),
    }


ONE: Final = "1 router"
THREE: Final = "3 routers, prefixes"
BEHIND: Final = ", first tokens"
PARTS: Final[Mapping[str, Part]] = MappingProxyType(
    {
        "told": Part(
            "By what they tell each other",
            LOADS,
            MappingProxyType({ONE: Variant(1, None)} | _told(3, first_tokens=False)),
        ),
        "first tokens": Part(
            "Where routers see first tokens as they come",
            (LOAD,),
            MappingProxyType({f"{ONE}{BEHIND}": Variant(1, None, first_tokens=True)} | _told(3, first_tokens=True)),
        ),
        "eight": Part(
            "Eight routers",
            (LOAD,),
            MappingProxyType(
                {
                    ONE: Variant(1, None),
                    "8 routers, none": Variant(8, None),
                    "8 routers, prefixes": Variant(8, PREFIXES),
                }
            ),
            HARMED,
        ),
        "faults": Part(
            "Where words are lost, late, or not said",
            (LOAD,),
            MappingProxyType(
                {
                    "3 routers, none": Variant(3, None),
                    THREE: Variant(3, PREFIXES),
                    "30 % of words and placements lost": Variant(3, Exchanging(placements=True, lost_share=0.3)),
                    "all of them 2 s late": Variant(3, Exchanging(placements=True, delay_s=2.0)),
                    "one router says nothing": Variant(3, Exchanging(placements=True, silent=1)),
                }
            ),
            HARMED,
        ),
    }
)
