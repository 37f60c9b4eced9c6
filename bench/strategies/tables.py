"""The tables of each question."""

from collections.abc import Iterable, Mapping, Sequence

from bench.grid import NOTHING, Grid
from bench.strategies import spread
from bench.strategies.cases import (
    CONTENDERS,
    COUNTING,
    FAILED_BY,
    FAILING_IN,
    FAILING_LOAD,
    FAULTS,
    INTERVALS_S,
    KV_OF,
    LOADS,
    ROUTED,
    ROUTERS_OF,
    SNAPSHOTS_OF,
    STRATEGY,
    TOLD,
    WEIGHTS,
    Case,
    Scope,
    told_or_not,
    weighted,
)
from bench.strategies.running import FAILS_FOR_S, SLOW_FACTOR, Figures
from bench.strategies.spread import (
    FAILED,
    HITS,
    MISSED,
    NGOOD,
    SLOWDOWN,
    TTFT_P90_S,
    TTFT_P99_S,
    Quantity,
    percent,
)

Found = Mapping[Case, Figures]


def of_workloads(scope: Scope, found: Found) -> list[Grid]:
    """How the strategies fare."""
    rows = [(name, told) for name in CONTENDERS for told in (False, True) if name in COUNTING or not told]
    return [
        _by_setting(
            f"{quantity.name} at {percent(load)} load",
            [(_named(name, told), scope.cases(None, (load,), (name,), first_tokens=told)) for name, told in rows],
            (quantity, scope, found),
        )
        for load in LOADS
        for quantity in (NGOOD, SLOWDOWN, TTFT_P99_S)
    ]


def of_snapshots(scope: Scope, found: Found) -> list[Grid]:
    """What the age of snapshots does."""
    rows = [
        (
            _named(f"{interval_s:g} s", first_tokens),
            scope.cases(
                SNAPSHOTS_OF, LOADS[:1], (STRATEGY,), snapshot_interval_s=interval_s, first_tokens=first_tokens
            ),
        )
        for first_tokens in (False, True)
        for interval_s in INTERVALS_S
    ]
    return [
        _by_setting(f"{STRATEGY}, {quantity.name} at {percent(LOADS[0])} load", rows, (quantity, scope, found))
        for quantity in (NGOOD, TTFT_P90_S)
    ]


def of_weights(scope: Scope, found: Found) -> list[Grid]:
    """Means over the settings, for each choice of weights."""
    quantities = (NGOOD, SLOWDOWN, TTFT_P90_S, TTFT_P99_S)
    grid = Grid(
        f"{STRATEGY} by its weights, means over all workloads",
        ("", *(f"{one.name} {percent(load)}" for one in quantities for load in LOADS)),
    )
    for strategy, name in _weights():
        grid.rows.append(
            (
                name,
                *(
                    _shown(scope.cases(None, (load,), (strategy,)), (one, scope, found))
                    for one in quantities
                    for load in LOADS
                ),
            )
        )
    return [grid]


def of_routers(scope: Scope, found: Found) -> list[Grid]:
    """What several routers cost."""
    rows = [
        (
            _named(f"{name}, {routers} router{'s' if routers > 1 else ''}", first_tokens),
            scope.cases(ROUTERS_OF, LOADS[1:], (name,), routers=routers, first_tokens=first_tokens),
        )
        for name, routers, first_tokens in ROUTED
    ]
    return [
        _by_setting(f"{quantity.name} at {percent(LOADS[1])} load", rows, (quantity, scope, found))
        for quantity in (NGOOD, HITS)
    ]


def of_kv_events(scope: Scope, found: Found) -> list[Grid]:
    """What it is worth that nodes tell what their caches have."""
    settings = [one.name for one in scope.settings if one.name in KV_OF]
    columns = [(setting, quantity) for setting in settings for quantity in (NGOOD, TTFT_P90_S)]
    numbers = ", ".join(f"{scope.requests or KV_OF[setting]} of {setting}" for setting in settings)
    grid = Grid(
        f"{STRATEGY} without → with KV events ({numbers}; in brackets how far the seeds' differences lie apart)",
        ("", *(f"{setting}, {quantity.name}" for setting, quantity in columns)),
    )
    for where in TOLD:
        without, with_them = (told_or_not(scope, where, kv_events=told) for told in (False, True))
        row = [_named_told(*where)]
        for setting, quantity in columns:
            before, after = (
                spread.mean_over(found, [one for one in cases if one.setting == setting], quantity, scope.seeds)
                for cases in (without, with_them)
            )
            if before is None or after is None:
                row.append(NOTHING)
            else:
                row.append(spread.change(before, after, quantity.digits))
        grid.rows.append(row)
    return [grid]


def _named_told(routers: int, kv_blocks: int | None, load: float, interval_s: float) -> str:
    caches = f", {kv_blocks} blocks" if kv_blocks is not None else ""
    often = f", each {interval_s:g} s" if interval_s != 1 else ""
    return f"{routers} router{'s' if routers > 1 else ''}, {percent(load)} load{caches}{often}"


def of_failing(scope: Scope, found: Found) -> list[Grid]:
    """What clients see of a node that fails."""
    quantities = (FAILED, MISSED, TTFT_P99_S)
    grid = Grid(
        f"Clients, when one of eight nodes fails for {FAILS_FOR_S:g} s ({FAILING_IN}, {percent(FAILING_LOAD)} load; "
        f"slow: {SLOW_FACTOR:g} times)",
        ("", *(one.name for one in quantities)),
    )
    for fault in (None, *FAULTS):
        for name in FAILED_BY:
            cases = scope.cases((FAILING_IN,), (FAILING_LOAD,), (name,), fault=fault)
            grid.rows.append(
                (
                    f"{fault or 'no fault'}, {name}",
                    *(_shown(cases, (one, scope, found)) for one in quantities),
                )
            )
    return [grid]


def _named(name: str, first_tokens: bool) -> str:
    return f"{name}, first tokens" if first_tokens else name


def _weights() -> Iterable[tuple[str, str]]:
    """The strategies of the table of weights, and what stands before their rows."""
    for w, v, c in WEIGHTS:
        strategy = weighted(w, v, c)
        yield strategy, f"w = {w:g}, v = {v:g}, c = {c:g}{' (default)' if strategy == STRATEGY else ''}"
    yield "lmetric", "lmetric"


def _by_setting(title: str, rows: Sequence[tuple[str, list[Case]]], what: tuple[Quantity, Scope, Found]) -> Grid:
    """A column for each setting, and their mean."""
    settings = list(dict.fromkeys(case.setting for _, cases in rows for case in cases))
    grid = Grid(title, ("", *settings, "mean"))
    for name, cases in rows:
        each = [_shown([case for case in cases if case.setting == setting], what) for setting in settings]
        grid.rows.append((name, *each, _shown(cases, what)))
    return grid


def _shown(cases: Iterable[Case], what: tuple[Quantity, Scope, Found]) -> str:
    quantity, scope, found = what
    mean = spread.mean_over(found, cases, quantity, scope.seeds)
    return NOTHING if mean is None else mean.shown(quantity.digits)
