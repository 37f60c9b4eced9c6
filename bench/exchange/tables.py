"""From figures of several routers to tables and sentences."""

from typing import Final

from bench.exchange.cases import BEHIND, ONE, PARTS, THREE, WORKLOADS, Part
from bench.grid import NOTHING, Grid
from bench.strategies import document, spread
from bench.strategies.cases import Scope
from bench.strategies.spread import HITS, NGOOD, SLOWDOWN, Quantity, percent
from bench.strategies.tables import Found

LOST_MAX: Final = 0.03
"""Of ngood, on each workload: what several routers may cost that tell each other all."""


def grid(part: Part, quantity: Quantity, load: float, scope: Scope, found: Found) -> Grid:
    """A row for each variant, a column for each workload at hand, and their mean."""
    at_hand = {one.name for one in scope.settings}
    names = [name for name in part.workloads if name in at_hand]
    table = Grid(f"{quantity.name} at {percent(load)} load", ("", *names, "mean"))
    for row, variant in part.variants.items():
        each = [variant.cases(scope, load, [name]) for name in names] + [variant.cases(scope, load, names)]
        means = [spread.mean_over(found, cases, quantity, scope.seeds) for cases in each]
        table.rows.append((row, *(NOTHING if mean is None else mean.shown(quantity.digits) for mean in means)))
    return table


def lost(scope: Scope, found: Found) -> list[str]:
    """What three routers lose that tell each other all, on each workload at each load."""
    told = []
    for name, behind in (("told", ""), ("first tokens", BEHIND)):
        part = PARTS[name]
        for load in part.loads:
            losses: dict[str, float] = {}
            for workload in WORKLOADS:
                one, three = (
                    spread.mean_over(
                        found, part.variants[row + behind].cases(scope, load, [workload]), NGOOD, scope.seeds
                    )
                    for row in (ONE, THREE)
                )
                if one is not None and three is not None:
                    losses[workload] = one.mean - three.mean
            if losses:
                answer = "met" if max(losses.values()) <= LOST_MAX else "missed"
                each = ", ".join(f"{workload} {loss:+.3f}" for workload, loss in losses.items())
                told.append(
                    f"At {percent(load)} load{behind}, three routers with prefixes have so much less ngood than one: "
                    f"{each}; wanted is {LOST_MAX:g} at most: {answer}."
                )
    return told


def written(names: list[str], scope: Scope, found: Found) -> str:
    """The text of these parts, in Markdown, without tables of which nothing is known."""
    texts = [document.about(scope, WORKLOADS), *(f"- {one}" for one in lost(scope, found))]
    for name in names:
        part = PARTS[name]
        tables = [
            (quantity, grid(part, quantity, load, scope, found))
            for quantities in ((NGOOD,), (SLOWDOWN, HITS))
            for load in part.loads
            for quantity in quantities
        ]
        known = [one for one in tables if any(set(row[1:]) != {NOTHING} for row in one[1].rows)]
        if known:
            texts.append(f"### {part.title}")
            texts += [(document.unfolded if quantity is NGOOD else document.folded)(one) for quantity, one in known]
    return "\n\n".join(texts).replace(".\n\n- ", ".\n- ")
