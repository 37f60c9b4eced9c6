import math
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from extproc.sim import demand as demands
from extproc.sim.demand import Demand, Span
from extproc.sim.fleetsize import Sized, Sizing, Window, size, windows_of
from extproc.sim.nodesneeded import Needed, Objective, nodes_needed
from extproc.sim.steptime import StepCost
from tests.sim.fleets import arrivals, fleet, setup

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ONE_A_SECOND = StepCost(1.0, 0, 0, 0, 0)


def silent(_: str, __: int, ___: int) -> None:
    pass


def csv(tmp_path: Path, *times: float) -> str:
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + "".join(f"{at_s:.3f},16,1\n" for at_s in times))
    return str(file)


def bursts(tmp_path: Path, *sizes: int, every_s: float = 20.0) -> str:
    """A trace of so many requests of one token at next to one moment, one burst after another."""
    return csv(tmp_path, *(time * every_s + place / 1000 for time, size in enumerate(sizes) for place in range(size)))


def sizing(trace: str, **changes: object) -> Sizing:
    """Before nodes that take a second for each request; each must be alone to be in time."""
    demand = Demand(trace=trace, requests=1000)
    found = demands.span(demand)
    assert isinstance(found, Span)
    values = {
        "demand": demand,
        "span": found,
        "setup": setup("round-robin", fleet=fleet({"sequences_max": 1}), cost=ONE_A_SECOND),
        "objective": Objective(ttft_s=1.1, share=1.0),
        "nodes_max": 16,
    }
    return Sizing(**(values | changes))  # type: ignore[arg-type]


def test_windows_need_what_comes_in_them(tmp_path: Path) -> None:
    found = size(sizing(bursts(tmp_path, 3, 0, 5, 1, 0, 2), window_s=20.0), 1, silent)
    assert found.needed.nodes == 5
    assert [one.nodes for one in found.windows] == [3, 0, 5, 1, 0, 2]
    assert [one.requests for one in found.windows] == [3, 0, 5, 1, 0, 2]
    assert [one.share for one in found.windows] == [1.0, None, 1.0, 1.0, None, 1.0]
    assert found.nodes_mean == pytest.approx(11 / 6)


@pytest.mark.parametrize("window_s", [1.0, 0.1, 7.3, 20.0, 1000.0])
def test_windows_add_up_to_the_whole_without_gaps(tmp_path: Path, window_s: float) -> None:
    times = (0, 0.3, 0.6999, 0.7, 1.0, 2.0, 2.1, 6.0, 7.3, 14.6)
    asked = sizing(csv(tmp_path, *times), window_s=window_s, nodes_max=1)
    windows = size(asked, 1, silent).windows
    assert sum(one.requests for one in windows) == len(times)
    assert (windows[0].from_s, windows[-1].requests > 0) == (0.0, True)
    assert all(one.until_s == after.from_s for one, after in pairwise(windows))
    for one in windows:
        assert one.requests == sum(one.from_s <= at_s < one.until_s for at_s in times)


@pytest.mark.parametrize(
    ("span_s", "window_s", "windows"), [(0.0, 5.0, 1), (4.9, 5.0, 1), (5.0, 5.0, 2), (10.1, 5.0, 3)]
)
def test_the_last_request_is_in_the_last_window(span_s: float, window_s: float, windows: int) -> None:
    assert windows_of(span_s, window_s) == windows


def test_the_last_request_is_in_a_window_however_products_round() -> None:
    for number in range(1, 2000):
        window_s = number / 10
        for span_s in (3 * window_s, math.nextafter(7 * window_s, 0), 11 * window_s):
            windows = windows_of(span_s, window_s)
            assert (windows - 1) * window_s <= span_s < windows * window_s or (windows - 1) * window_s == span_s


def test_a_window_begins_with_what_the_lead_in_left(tmp_path: Path) -> None:
    # At 9 s come six, at 10 s one: without them it needs one node, with them as many as leave it one that is free.
    trace = csv(tmp_path, 0, *(9 + place / 1000 for place in range(6)), 10)

    def last(lead_in_s: float) -> int | None:
        return size(sizing(trace, window_s=10.0, lead_in_s=lead_in_s, nodes_max=32), 1, silent).windows[-1].nodes

    assert last(0.0) == last(0.99) == 1
    beside = last(1.0)
    assert beside is not None
    assert beside > 1


def test_what_comes_in_the_lead_in_is_not_judged(tmp_path: Path) -> None:
    trace = csv(tmp_path, 0, *(15 + place / 1000 for place in range(6)), 39)
    windows = size(sizing(trace, window_s=20.0, lead_in_s=10.0), 1, silent).windows
    assert [(one.nodes, one.requests, one.share) for one in windows] == [(6, 7, 1.0), (1, 1, 1.0)]


def test_a_windows_share_is_that_with_the_nodes_it_needs(tmp_path: Path) -> None:
    asked = sizing(bursts(tmp_path, 6), objective=Objective(ttft_s=1.1, share=0.5), window_s=20.0)
    assert [(one.nodes, one.share) for one in size(asked, 1, silent).windows] == [(3, 0.5)]


@pytest.mark.parametrize(("ttft_s", "slow"), [(1.0019, 1), (1.0021, 0)])
def test_alone_on_an_idle_node_a_request_still_takes_both_ways(tmp_path: Path, ttft_s: float, slow: int) -> None:
    asked = sizing(bursts(tmp_path, 1), objective=Objective(ttft_s=ttft_s, share=1.0), nodes_max=1)
    found = size(asked, 1, silent)
    assert (found.slow_alone, found.needed.nodes) == (slow, None if slow else 1)


def test_a_window_is_what_nodes_needed_finds_for_its_requests(tmp_path: Path) -> None:
    rows = arrivals(60, rate_per_s=10.0)
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + "".join(f"{one.at_s:.6f},{one.prompt_tokens},{one.output_tokens}\n" for one in rows))
    objective = Objective(ttft_s=0.25, share=0.9)
    asked = sizing(str(file), setup=setup(), objective=objective, window_s=2.0, lead_in_s=1.0)
    read = demands.arrivals(asked.demand, 0)
    assert isinstance(read, list)
    taken = [one for one in read if 1.0 <= one.at_s < 4.0]
    lead_in = sum(one.at_s < 2.0 for one in taken)
    begun = [replace(one, at_s=one.at_s - taken[0].at_s) for one in taken]
    found = nodes_needed(begun, setup(), objective, 16, lead_in=lead_in)
    window = size(asked, 1, silent).windows[1]
    assert found.at_answer is not None
    assert (window.nodes, window.requests, window.share) == (found.nodes, len(taken) - lead_in, found.at_answer.share)


def test_more_processes_find_the_same_as_one(tmp_path: Path) -> None:
    asked = sizing(bursts(tmp_path, 3, 5, 1), window_s=20.0, seeds=2)
    told: list[tuple[str, int, int]] = []
    alone = size(asked, 1, lambda *progress: told.append(progress))
    assert size(asked, 2, silent) == alone
    assert [(what, of) for what, done, of in told if not done] == [
        ("1 and 2 nodes", 4),
        ("4 and 8 nodes", 4),
        ("5 and 6 nodes", 4),
        ("3 nodes", 2),
        ("windows", 3),
    ]
    assert all(done <= of for _, done, of in told)
    assert alone.needed.nodes == 5
    assert {one.requests for one in alone.needed.tried} == {18}


def test_seeds_of_what_is_generated_bring_other_requests() -> None:
    demand, objective = Demand(trace="generated:conv", requests=100), Objective(ttft_s=1.0, share=0.8)
    asked = sizing("generated:conv", demand=demand, setup=setup(), objective=objective, seeds=2, nodes_max=2)
    found = size(asked, 1, silent)
    assert any(one.share_worst != one.share for one in found.needed.tried)


def test_where_not_even_the_most_nodes_are_enough_it_says_how_many_requests_no_node_could_serve_in_time(
    tmp_path: Path,
) -> None:
    found = size(sizing(bursts(tmp_path, 3, 9), nodes_max=4, window_s=20.0), 1, silent)
    assert (found.needed.nodes, found.slow_alone, found.cut) == (None, 0, 0)
    assert [(one.nodes, one.share) for one in found.windows] == [(3, 1.0), (None, 4 / 9)]
    assert found.nodes_mean is None
    slow = size(sizing(bursts(tmp_path, 3), objective=Objective(ttft_s=0.5, share=0.5), nodes_max=2), 1, silent)
    assert (slow.needed.nodes, slow.slow_alone) == (None, 3)
    fast = setup("round-robin", fleet=fleet({"sequences_max": 1, "speed": 4.0}), cost=ONE_A_SECOND)
    quick = size(sizing(bursts(tmp_path, 3), setup=fast, objective=Objective(ttft_s=0.5, share=0.3)), 1, silent)
    assert (quick.needed.nodes, quick.slow_alone) == (1, 0)


def test_what_was_cut_is_told(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + "0,5000,1\n1,10,1\n")
    short = setup("round-robin", fleet=fleet({"kv_blocks": 65}))
    assert size(sizing(str(file), setup=short), 1, silent).cut == 1


def test_the_mean_needs_all_windows() -> None:
    some = Window(from_s=0, until_s=1, requests=1, nodes=3, share=1.0)
    none = Window(from_s=1, until_s=2, requests=1, nodes=None, share=0.0)
    needed = Needed(nodes=None, tried=(), enough_below=())
    assert Sized(needed=needed, cut=0, slow_alone=0, windows=(some, some)).nodes_mean == 3
    assert Sized(needed=needed, cut=0, slow_alone=0, windows=(some, none)).nodes_mean is None
    assert Sized(needed=needed, cut=0, slow_alone=0).nodes_mean is None
