from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from extproc import plantable
from extproc.core.policy import RoutingPolicy
from extproc.planning import Planning
from extproc.sim.demand import Demand, Span
from extproc.sim.fleetplan import even
from extproc.sim.fleetsize import Sized, Sizing, Window
from extproc.sim.nodesneeded import Needed, Objective, Tried
from extproc.sim.simulation import Setup


def tried(nodes: int, met: int, **changes: Any) -> Tried:
    values: dict[str, Any] = {
        "nodes": nodes,
        "enough": met >= 95_000,
        "requests": 100_000,
        "met": met,
        "share": met / 100_000,
        "share_worst": None,
        "refused": 0,
        "failed": 0,
        "ttft_p50_s": 0.1,
        "ttft_p90_s": 1.0,
        "ttft_p99_s": 1234.5,
        "tpot_p99_s": None,
    }
    return Tried(**(values | changes))


def printed(sized: Sized, width: int = 80, **changes: Any) -> str:
    values: dict[str, Any] = {
        "demand": Demand(trace="generated:conv", requests=100_000),
        "span": Span(100_000, 600.0, None, 1000),
        "setup": Setup(fleet=even(1), policy=RoutingPolicy()),
        "objective": Objective(ttft_s=2.0, share=0.95),
        "nodes_max": 8,
    }
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, highlight=False)
    plantable.show(Planning("least-added-delay", Sizing(**(values | changes))), sized, console)
    return out.getvalue()


def sized(*tries: Tried, nodes: int | None, windows: tuple[Window, ...] = (), below: tuple[int, ...] = ()) -> Sized:
    return Sized(needed=Needed(nodes=nodes, tried=tries, enough_below=below), cut=0, slow_alone=1234, windows=windows)


def window(place: int, nodes: int | None) -> Window:
    return Window(from_s=place * 60.0, until_s=(place + 1) * 60.0, requests=90, nodes=nodes, share=1.0)


def test_what_is_too_few_never_looks_like_enough() -> None:
    shown = " ".join(printed(sized(tried(3, 94_999), tried(4, 95_000), nodes=4)).split())
    assert "4 nodes would be enough: 95.00 % of 100,000 requests had their first token within 2 s" in shown
    assert "with 3 nodes 94.99 %; 95 % are wanted." in shown
    assert "idle node" not in shown


def test_noise_is_told() -> None:
    tries = (tried(2, 95_100), tried(3, 94_000), tried(4, 96_000))
    shown = " ".join(printed(sized(*tries, nodes=4, below=(2,))).split())
    assert "2 would have been enough too, though more were not" in shown


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_figure_is_cut_in_any_terminal(width: int) -> None:
    many = tried(
        1024, 99_999, requests=20_000_000, refused=19_000_000, failed=999_999, share_worst=0.5, ttft_p50_s=3599.5
    )
    shown = printed(sized(many, nodes=1024), width)
    for figure in ("1,024", "50.00", "3599.50", "1234.50", "19,000,000", "999,999", "answer"):
        assert figure in shown
    assert "…" not in shown


def test_windows_have_bars_and_what_is_not_enough_is_open() -> None:
    shown = printed(sized(tried(8, 96_000), nodes=8, windows=(window(0, 1), window(1, None), window(2, 0))))
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", "90", "1.5", "1", "█"] in lines
    assert ["60", "90", "1.5", ">", "8", "████████>"] in lines
    assert ["120", "90", "1.5", "0"] in lines
    assert "Window by window" not in shown


def test_the_windows_are_summed_up() -> None:
    shown = printed(sized(tried(8, 96_000), nodes=8, windows=(window(0, 1), window(1, 8))))
    assert "Window by window 1 to 8 would be, 4.5 in the mean." in shown


def test_bars_are_in_proportion_where_they_would_be_too_long() -> None:
    windows = (window(0, 80), window(1, 1), window(2, 40))
    bars = [line.count("█") for line in printed(sized(tried(80, 96_000), nodes=80, windows=windows)).splitlines()]
    assert [one for one in bars if one] == [40, 1, 20]


def test_more_windows_than_a_screen_bears_are_in_the_json_alone() -> None:
    windows = tuple(window(place, 1) for place in range(plantable.WINDOWS_SHOWN_MAX + 2))
    shown = printed(sized(tried(8, 96_000), nodes=8, windows=windows))
    assert "2 more, which --json names" in shown
    assert shown.count("█") == plantable.WINDOWS_SHOWN_MAX
