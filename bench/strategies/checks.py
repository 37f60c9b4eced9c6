"""What the tables are to show, in words: whether it holds, and where it does not."""

from collections.abc import Sequence
from typing import Final

from bench.strategies import spread
from bench.strategies.cases import CONTENDERS, INTERVALS_S, LOADS, SNAPSHOTS_OF, STRATEGY, Scope
from bench.strategies.spread import NGOOD, REFUSED, SLOWDOWN, Quantity, Spread, percent, trimmed
from bench.strategies.tables import Found
from extproc.core.cost import STRATEGIES
from extproc.sim.comparison import REFERENCE

OF_REFERENCE_MIN: Final = 0.92
"""Share of the reference's ngood, at the lower load."""
SNAPSHOTS_MAX: Final = 0.02
"""By how much ngood may vary with the interval."""
MATTERS: Final = {NGOOD.name: 0.005, SLOWDOWN.name: 0.05}
"""Smaller differences between strategies in one setting are not told."""


def of_workloads(scope: Scope, found: Found) -> list[str]:
    """The order of the strategies, where another one is ahead, and how far the reference is."""
    told = []
    for quantity in (NGOOD, SLOWDOWN):
        for load in LOADS:
            means = _means(scope, found, quantity, load)
            if STRATEGY not in means:
                continue
            sentences = [_order(means, quantity, load), _elsewhere(scope, found, quantity, load)]
            cases = scope.cases(None, (load,), (STRATEGY,), first_tokens=True)
            with_them = spread.mean_over(found, cases, quantity, scope.seeds)
            if with_them is not None:
                sentences.append(f"With first tokens as they come it has {with_them.mean:.{quantity.digits}f}.")
            told.append(" ".join(sentences))
    refused = _refused(scope, found)
    if refused:
        told.append(f"Refused, and not in slowdown and TTFT, was a share of {refused}.")
    for load in LOADS:
        means = _means(scope, found, NGOOD, load)
        if STRATEGY in means and REFERENCE in means:
            told.append(_of_reference(means[STRATEGY], means[REFERENCE], load))
    return told


def _of_reference(ours: Spread, reference: Spread, load: float) -> str:
    share = ours.mean / reference.mean
    least = min(one / other for one, other in zip(ours.values, reference.values, strict=True))
    told = (
        f"At {percent(load)} load {STRATEGY} reaches {share:.3f} of the reference's mean ngood, {least:.3f} with the "
        "least fortunate seed"
    )
    if load == LOADS[0]:
        told += f"; wanted is {OF_REFERENCE_MIN}: {_met(share >= OF_REFERENCE_MIN)}"
    return told + "."


def of_snapshots(scope: Scope, found: Found) -> list[str]:
    """By how much ngood varies."""
    told = []
    for first_tokens in (False, True):
        mean = _width(scope, found, SNAPSHOTS_OF, first_tokens)
        each = {setting: _width(scope, found, (setting,), first_tokens) for setting in SNAPSHOTS_OF}
        widths = {setting: width for setting, width in each.items() if width is not None}
        if mean is not None:
            most = max(widths, key=widths.__getitem__)
            told.append(
                f"{'With' if first_tokens else 'Without'} first tokens as they come, mean ngood varies by "
                f"{trimmed(mean, 3)} between snapshots of {INTERVALS_S[0]:g} and {INTERVALS_S[-1]:g} s; wanted is less "
                f"than {trimmed(SNAPSHOTS_MAX, 2)}: {_met(mean < SNAPSHOTS_MAX)}. Of one workload it varies by "
                f"{trimmed(widths[most], 3)} at most ({most})."
            )
    return told


def _width(scope: Scope, found: Found, settings: Sequence[str], first_tokens: bool) -> float | None:
    """The greatest less the least mean ngood over the intervals; `None` unless all are known."""
    means = []
    for interval_s in INTERVALS_S:
        cases = scope.cases(settings, LOADS[:1], (STRATEGY,), snapshot_interval_s=interval_s, first_tokens=first_tokens)
        mean = spread.mean_over(found, cases, NGOOD, scope.seeds)
        if mean is None:
            return None
        means.append(mean.mean)
    return max(means) - min(means)


def _means(
    scope: Scope, found: Found, quantity: Quantity, load: float, setting: str | None = None
) -> dict[str, Spread]:
    """Of each strategy that has one: its mean over the settings, or over one setting."""
    means = {}
    for name in CONTENDERS:
        cases = scope.cases(None if setting is None else (setting,), (load,), (name,))
        mean = spread.mean_over(found, cases, quantity, scope.seeds)
        if mean is not None:
            means[name] = mean
    return means


def _order(means: dict[str, Spread], quantity: Quantity, load: float) -> str:
    order = spread.ranked({name: one for name, one in means.items() if name in STRATEGIES}, quantity)
    shown = ", ".join(f"{name} {means[name].mean:.{quantity.digits}f}" for name in order)
    rank = order.index(STRATEGY)
    told = f"Mean {quantity.name} at {percent(load)} load: {shown}. {STRATEGY} is number {rank + 1} of {len(order)}"
    if len(order) == 1:
        return told + "."
    other = order[1] if rank == 0 else order[0]
    ours, theirs = means[STRATEGY], means[other]
    return f"{told}; better than {other} with {spread.seeds_ahead(ours, theirs, quantity)} of {len(ours.values)} seeds."


def _elsewhere(scope: Scope, found: Found, quantity: Quantity, load: float) -> str:
    """The settings in which another strategy is ahead."""
    behind = []
    for setting in scope.settings:
        means = {
            name: one for name, one in _means(scope, found, quantity, load, setting.name).items() if name in STRATEGIES
        }
        if STRATEGY not in means:
            continue
        best, ours = spread.ranked(means, quantity)[0], means[STRATEGY]
        if abs(means[best].mean - ours.mean) >= MATTERS[quantity.name]:
            ahead = spread.seeds_ahead(means[best], ours, quantity)
            behind.append(
                f"{setting.name} ({best} {means[best].mean:.{quantity.digits}f} against "
                f"{ours.mean:.{quantity.digits}f}, ahead with {ahead} of {scope.seeds} seeds)"
            )
    matters = trimmed(MATTERS[quantity.name], 3)
    if not behind:
        return f"In no workload is another strategy ahead of it by {matters} or more."
    return f"Another is ahead of it by {matters} or more in {'; '.join(behind)}."


def _refused(scope: Scope, found: Found) -> str:
    """Where routers found every node full: the shares of the strategies, from the least to the greatest."""
    told = []
    for setting in scope.settings:
        for load in LOADS:
            shares = [
                share.mean for share in _means(scope, found, REFUSED, load, setting.name).values() if share.mean >= 0.01
            ]
            if shares:
                least, most = trimmed(min(shares), 2), trimmed(max(shares), 2)
                told.append(f"{least} to {most} by {len(shares)} strategies ({setting.name}, {percent(load)})")
    return "; ".join(told)


def _met(holds: bool) -> str:
    return "met" if holds else "missed"
