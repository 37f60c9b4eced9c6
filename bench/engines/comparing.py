"""The work of one command, run by run: its progress, its tables, and what is kept of it in files."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.engines import curve, runs, tables
from bench.engines.curve import Point
from bench.engines.runs import Run
from bench.engines.scenarios import (
    BASELINE,
    DEFAULT,
    DEFAULT_FAULTS,
    DEFAULT_OVERLOAD,
    MIXED,
    Scenario,
    Variant,
    variant,
)
from bench.grid import Grid
from bench.machine import machine

_OVERHEAD_S = 20.0
"""Of a run, about: the start of its parts, and the answers that end after the last request has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked for."""

    scenarios: Sequence[Scenario]
    loads: Sequence[float] = ()
    """Of the saturation curve; none: no curve."""
    strategies: Sequence[str] = ()
    """Names of variants; none: each scenario's default."""
    repetitions: int
    requests: int
    """Of each run."""
    seed: int
    """Of the first repetition; each one has the next."""
    json: Path | None = None
    """Where figures go, after each run again."""
    markdown: Path | None = None
    """Where tables go, after each scenario again."""

    def variants(self, scenario: Scenario) -> list[Variant]:
        """Who competes; ROUND_ROBIN always does, for the others are compared with it."""
        default: Sequence[str] = DEFAULT if scenario.failing is None else DEFAULT_FAULTS
        if scenario.ttft_s is not None:
            default = DEFAULT_OVERLOAD
        named = [variant(name) for name in self.strategies or default]
        return named if BASELINE in named else [*named, BASELINE]

    @property
    def runs(self) -> int:
        """How many there are."""
        return len(self.loads) + sum(len(self.variants(one)) * self.repetitions for one in self.scenarios)

    @property
    def seconds(self) -> float:
        """How long it takes, about."""
        each = [
            one.requests(self.requests) / one.rate_per_s * len(self.variants(one)) * self.repetitions
            for one in self.scenarios
        ]
        node = MIXED.nodes[-1]
        alone = [self.requests * curve.REQUESTS_SHARE / (load * MIXED.capacity_per_s(node)) for load in self.loads]
        return sum(each) + sum(alone) + self.runs * _OVERHEAD_S


@dataclass(slots=True)
class Found:
    """All that came of a plan so far."""

    plan: Plan
    points: list[Point] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)

    def keep(self) -> None:
        """Write the files that are asked for."""
        if self.plan.json is not None:
            kept: dict[str, Any] = {"machine": machine(), "curve": self.points, "runs": self.runs}
            self.plan.json.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
        if self.plan.markdown is not None:
            self.plan.markdown.write_text("\n".join([f"On {machine()}.\n", *(grid.markdown() for grid in self.grids)]))


async def carry_out(plan: Plan, console: Console) -> Found:
    """Run everything, one run at a time. Raises ChildFailedError where a part does not start or ends."""
    found = Found(plan)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        whole = progress.add_task("runs", total=plan.runs)

        @contextmanager
        def one_run(label: str, requests: int) -> Iterator[tuple[Path, Callable[[int], None]]]:
            """Its folder, and whom to tell how many requests are over."""
            task = progress.add_task(label, total=requests)
            with tempfile.TemporaryDirectory(prefix="extproc-engines-") as folder:
                yield Path(folder), lambda done: progress.update(task, completed=done)
            progress.remove_task(task)
            progress.advance(whole)
            found.keep()

        def show(*grids: Grid) -> None:
            for grid in grids:
                progress.console.print(grid.rich())
            found.grids += grids
            found.keep()

        node = MIXED.nodes[-1]
        for load in plan.loads:
            asked = curve.asked(MIXED, node, load, plan.requests)
            with one_run(f"one engine alone, load {load}", len(asked)) as (folder, answered):
                seen = await runs.alone(node, asked, folder, answered)
                found.points.append(curve.point(node, load, asked, seen))
        if plan.loads:
            show(curve.of_points(MIXED, node, found.points))
        for scenario in plan.scenarios:
            variants = plan.variants(scenario)
            for repetition in range(plan.repetitions):
                seed = plan.seed + repetition
                asked = scenario.asked(plan.requests, seed)
                turn = repetition % len(variants)
                for one in variants[turn:] + variants[:turn]:
                    label = f"{scenario.name} {repetition + 1}/{plan.repetitions}: {one.name}"
                    with one_run(label, len(asked)) as (folder, answered):
                        seen = await runs.compared(scenario, one, asked, folder, answered)
                        found.runs.append(runs.run_of(scenario, one, repetition, seed, asked, seen))
            own = [run for run in found.runs if run.scenario == scenario.name]
            own.sort(key=lambda run: [one.name for one in variants].index(run.variant))
            first = [tables.of_failures(scenario, own)] if scenario.failing is not None else []
            if scenario.ttft_s is not None:
                first.append(tables.of_admission(scenario, scenario.ttft_s, own))
            show(
                *first,
                tables.of_clients(scenario, own),
                tables.of_engines(scenario, own),
                tables.of_machines(scenario, own),
            )
    return found
