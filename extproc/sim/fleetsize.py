"""A fleet's size for a whole demand, and for each window of it, over as many processes as there are.

What comes out does not depend on the number of processes. Each number of nodes with each seed is a run of its own; a
window's search is one piece of work, of short runs one after another.

A window is simulated with the requests of the `lead_in_s` before it, on the same nodes, so that it does not begin with
idle engines; these are not judged. What they left undone the window has to carry: after a burst too few nodes look even
worse than they would to an operator who had more nodes in the burst. Caches begin as empty as a lead-in leaves them.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from extproc.core.settings import Fault
from extproc.sim import demand as demands
from extproc.sim import parallel, processpool
from extproc.sim.demand import Demand, Span
from extproc.sim.measures import isolated
from extproc.sim.node import in_arrivals_blocks, within_context
from extproc.sim.nodesearch import NodeSearch
from extproc.sim.nodesneeded import Needed, Objective, Outcome, Tried, needed, nodes_needed, outcome, tally
from extproc.sim.simulation import Setup
from extproc.sim.traces import Arrival

SEEDS_MAX: Final = 100
WINDOWS_MAX: Final = 10_000
WINDOWS: Final = "windows"
"""What `Progress` is told of last; before it, of the numbers of nodes that are being tried."""

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What is asked."""

    demand: Demand
    span: Span
    """Of the demand, which must be readable."""
    setup: Setup
    """Its fleet's first node is what all are like; its seed is not used."""
    objective: Objective
    nodes_max: int
    seeds: int = 1
    """Runs of each number of nodes. A seed chooses what is generated, who wins ties and when agents look."""
    window_s: float | None = None
    """Also for each so long piece of the demand, of the first seed's requests; at most `WINDOWS_MAX` of them."""
    lead_in_s: float = 0.0


class Window(Struct, frozen=True, kw_only=True):
    """A piece of the demand."""

    from_s: float
    until_s: float
    """Requests at this moment belong to the next."""
    requests: int
    nodes: int | None
    """The least number that is enough; 0 where nothing comes; `None`: not even the most are."""
    share: float | None
    """Of its requests that are in time with so many, or with the most; `None` where nothing comes."""


class Sized(Struct, frozen=True, kw_only=True):
    """What was found."""

    needed: Needed
    cut: int
    """Requests of the first seed that were longer than a node's context, and were cut to it."""
    slow_alone: int
    """Requests of the first seed not in time on an idle node either, nothing of the prompt being cached."""
    windows: tuple[Window, ...] = ()
    """In order of time, from 0 s to past the last request, without gaps."""

    @property
    def nodes_mean(self) -> float | None:
        """Over the windows; `None` without any, or where one would need more than the most."""
        known = [one.nodes for one in self.windows if one.nodes is not None]
        return sum(known) / len(known) if known and len(known) == len(self.windows) else None


def size(sizing: Sizing, jobs: int, progress: Progress) -> Sized:
    """Search on so many processes; with one, in this one."""
    _arrivals.cache_clear()  # a file may be another than it was
    if jobs == 1:
        return _size(sizing, None, progress)
    with processpool.of(jobs) as pool:
        return _size(sizing, pool, progress)


def _size(sizing: Sizing, pool: ProcessPoolExecutor | None, progress: Progress) -> Sized:
    search = NodeSearch(sizing.nodes_max)
    tried: list[Tried] = []
    cut = 0
    while numbers := search.next():
        # By seed first, so that a process seldom needs other arrivals.
        runs = [(nodes, seed) for seed in range(sizing.seeds) for nodes in numbers]
        outcomes = parallel.each(partial(_outcome, sizing), runs, pool, partial(progress, _said(numbers)))
        cut = outcomes[0].cut
        for place, nodes in enumerate(numbers):
            one = tally(nodes, outcomes[place :: len(numbers)], sizing.objective)
            tried.append(one)
            search.tell(nodes, enough=one.enough)
    windows: list[Window] = []
    if sizing.window_s is not None:
        count = windows_of(sizing.span.span_s, sizing.window_s)
        assert count <= WINDOWS_MAX
        windows = parallel.each(partial(_window, sizing), range(count), pool, partial(progress, WINDOWS))
    return Sized(needed=needed(search, tried), cut=cut, slow_alone=_slow_alone(sizing), windows=tuple(windows))


def windows_of(span_s: float, window_s: float) -> int:
    """How many windows a demand of this span has: the last request is in the last one."""
    windows = int(span_s // window_s) + 1
    return windows if windows * window_s > span_s else windows + 1  # as products round


def _said(numbers: Sequence[int]) -> str:
    return f"{' and '.join(f'{nodes:,}' for nodes in numbers)} {'node' if numbers == (1,) else 'nodes'}"


def _outcome(sizing: Sizing, run: tuple[int, int]) -> Outcome:
    nodes, seed = run
    return outcome(_arrivals(sizing.demand, seed), sizing.setup, sizing.objective, nodes, seed)


def _window(sizing: Sizing, place: int) -> Window:
    assert sizing.window_s is not None
    from_s, until_s = place * sizing.window_s, (place + 1) * sizing.window_s
    arrivals = _arrivals(sizing.demand, 0)
    led_in, first, past = (
        bisect_left(arrivals, at_s, key=lambda one: one.at_s) for at_s in (from_s - sizing.lead_in_s, from_s, until_s)
    )
    if first == past:
        return Window(from_s=from_s, until_s=until_s, requests=0, nodes=0, share=None)
    # From 0 s on, as a run begins: agents need not look at an idle fleet for all the time before.
    begin_s = arrivals[led_in].at_s
    taken = [replace(one, at_s=one.at_s - begin_s) for one in arrivals[led_in:past]]
    found = nodes_needed(
        taken, sizing.setup, sizing.objective, sizing.nodes_max, seeds=sizing.seeds, lead_in=first - led_in
    )
    share = (found.at_answer or found.tried[-1]).share
    return Window(from_s=from_s, until_s=until_s, requests=past - first, nodes=found.nodes, share=share)


def _slow_alone(sizing: Sizing) -> int:
    cost, delay_s = sizing.setup.cost, sizing.setup.delay_s
    engine = in_arrivals_blocks(sizing.setup.fleet.nodes[0].engine, cost)

    def ttft_s(arrival: Arrival) -> float:
        cut = within_context(arrival, engine.context_length_tokens)
        alone = isolated(cut.prompt_tokens, cut.output_tokens, cost, engine.step_tokens_max)
        return alone.prefill_s / engine.speed + 2 * delay_s

    return sum(ttft_s(one) > sizing.objective.ttft_s for one in _arrivals(sizing.demand, 0))


@lru_cache(maxsize=1)
def _arrivals(demand: Demand, seed: int) -> list[Arrival]:
    found = demands.arrivals(demand, seed)
    assert not isinstance(found, Fault), "it was readable"
    return found
