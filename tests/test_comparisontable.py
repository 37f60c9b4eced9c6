import re
from io import StringIO

import pytest
from msgspec import structs
from rich.console import Console

from extproc import comparisontable
from extproc.sim.compared import ClassRow, Compared, Missed, Row
from tests.comparisonrows import compared, row

NAMES = (
    "round-robin",
    "least-added-delay",
    "least-added-delay:first_token_weight=4",
    "least-added-delay:first_token_weight=0.125:leave_after_first_token=true",
    "reference",
)


def printed(found: Compared, width: int) -> str:
    out = StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=width)
    comparisontable.show(found, console)
    return out.getvalue()


def odd(name: str, place: int, nodes: int = 8) -> Row:
    """No two figures alike, so that none can stand for another; some of them long."""
    figures = [(place + 1) * 1000 + step + 0.25 for step in range(12)]
    return row(
        name,
        ngood=0.1 + place / 100,
        ngood_spread=0.01 + place / 1000,
        ttft_p50_s=figures[0],
        ttft_p90_s=figures[1],
        ttft_p99_s=figures[2],
        tpot_p99_s=figures[3],
        slowdown=figures[4],
        preemptions=figures[5] * 100,
        prefix_hits=0.5 + place / 100,
        refused=figures[6] * 10,
        failed=figures[7] * 10,
        per_node={f"node-{node}": (node + 1 + place / 10) / 100 for node in range(nodes)},
        ngood_vs_round_robin=figures[8],
        ttft_p90_vs_round_robin=figures[9],
        slowdown_vs_round_robin=figures[10],
    )


def figures_of(one: Row) -> list[str]:
    shares = [share * 100 for share in one.per_node.values()]
    return [
        f"{one.ngood:.3f}",
        f"{one.ngood_spread:.3f}",
        *(f"{value:.2f}" for value in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s, one.slowdown)),
        f"{one.tpot_p99_s:.3f}",
        *(f"{value:.0f}" for value in (one.preemptions, one.refused, one.failed)),
        f"{one.prefix_hits * 100:.1f}",
        *(f"{share:.1f}" for share in shares if len(shares) <= comparisontable.NODES_SHOWN_MAX),
        f"{one.ngood_vs_round_robin:.2f}",
        f"{one.ttft_p90_vs_round_robin:.2f}",
        f"{one.slowdown_vs_round_robin:.2f}",
    ]


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100, 120, 140, 200])
@pytest.mark.parametrize("nodes", [1, 8, 1000])
def test_every_figure_and_every_name_is_whole_at_every_width(width: int, nodes: int) -> None:
    rows = [odd(name, place, nodes) for place, name in enumerate(NAMES)]
    shown = printed(compared(*rows), width)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    words = shown.split()
    for one in rows:
        for figure in figures_of(one):
            assert figure in words, figure
        if width >= 60:
            assert all(part in words for part in re.split("(?<=:)", one.strategy) if one.strategy not in words)


def test_a_terminal_that_is_too_narrow_gets_lines_that_are_too_long() -> None:
    shown = printed(compared(odd("round-robin", 0)), 10)
    assert all(figure in shown.split() for figure in figures_of(odd("round-robin", 0)))


def test_a_file_has_room_for_the_whole_tables() -> None:
    out = StringIO()
    comparisontable.show(compared(*(row(name) for name in NAMES[:3])), Console(file=out, width=60))
    assert out.getvalue().count("strategy") == 2


def test_absent_figures_are_shown_as_absent_and_many_nodes_as_a_range() -> None:
    many = {f"node-{index}": index / 45 for index in range(10)}
    rows = (row("random", ttft_p50_s=None, slowdown_vs_round_robin=None, per_node=many), row("x" * 60))
    shown = printed(compared(*rows), 200)
    assert shown.split().count("–") == 2
    assert "0.0 to 20.0" in shown
    assert "25.0 75.0" in shown
    assert "x" * 60 in shown


def class_row(place: int) -> ClassRow:
    figures = [place * 100 + step + 0.25 for step in range(4)]
    return ClassRow(
        requests=place * 1000,
        refused=place * 10 + 7,
        ngood=place / 7,
        ngood_accepted=place / 6.5,
        ttft_p50_s=figures[0],
        ttft_p90_s=figures[1],
        ttft_p99_s=figures[2],
        queued_p90_s=figures[3],
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_each_class_that_has_requests_has_a_line_with_all_its_figures(width: int) -> None:
    nobody = structs.replace(class_row(0), ngood=None)
    rows = [
        row(name, classes={"high": class_row(2 * place + 1), "nobody": nobody, "low": class_row(2 * place + 2)})
        for place, name in enumerate(("random", "lmetric"))
    ]
    shown = printed(compared(*rows), width)
    words = shown.split()
    assert max(map(len, shown.splitlines())) <= width
    assert "nobody" not in words
    for place in range(1, 5):
        one = class_row(place)
        for figure in (f"{one.requests:.0f}", f"{one.refused:.0f}", f"{one.ngood:.3f}", f"{one.ngood_accepted:.3f}"):
            assert figure in words, figure
        for seconds in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s, one.queued_p90_s):
            assert f"{seconds:.2f}" in words, seconds


def test_what_was_not_refused_has_a_figure_where_something_was() -> None:
    assert "rest" not in printed(compared(row("random", ngood_accepted=0.123)), 140)
    shown = printed(compared(row("random", ngood_accepted=0.123, refused=1), row("lmetric")), 140)
    assert "rest" in shown
    assert "0.123" in shown.split()


def test_one_seed_has_no_spread() -> None:
    assert "spread" in printed(compared(row("random")), 120)
    assert "spread" not in printed(compared(row("random", ngood_spread=None), seeds=1), 120)


def missed(node: str, event: str, at_s: float, runs: int = 2, load: float = 0.6, strategy: str = "random") -> Missed:
    return Missed(
        strategy=strategy,
        load=load,
        node=node,
        event=event,
        at_s=at_s,
        runs=runs,
        felt_until_s=at_s - 1.5,
        felt_by_answers=event == "hang",
    )


def test_what_never_happened_is_said_once_for_all_strategies_and_nodes_of_a_load() -> None:
    rows = [row(name, load) for load in (0.6, 0.9) for name in ("random", "lmetric")]
    late = [
        *(missed(f"node-{place}", "hang", 60, strategy=name) for name in ("random", "lmetric") for place in range(5)),
        missed("b", "error", 70, runs=1),
        missed("b", "leave", 80, load=0.9),
    ]
    shown = printed(compared(*rows, missed=tuple(late)), 140)
    before, after = shown.split("load 0.9: 6 requests/s")
    assert "load 0.6: planned, but it never happened" in before
    assert (
        "node-0, node-1, node-2 and 2 more: hang at 60 s, in 4 of 4 runs (the last answer was over by 58.5 s)" in before
    )
    assert "b: error at 70 s, in 1 of 4 runs (the last request came by 68.5 s)" in before
    assert "b: leave at 80 s, in 2 of 4 runs (the last request came by 78.5 s)" in after
    assert "hang" not in after


def test_a_plan_that_is_all_too_late_does_not_fill_the_screen() -> None:
    late = tuple(missed("a", "error", 100 + at_s) for at_s in range(100))
    assert "90 more, which --json names" in printed(compared(row("random"), missed=late), 80)


def test_what_happened_is_not_spoken_of() -> None:
    assert "never" not in printed(compared(row("random")), 80)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("old-1", "old-2", "b"), "nodes, as their shares stand: old-1, old-2, b"),
        (("node-1", "node-2", "node-3"), None),
        (tuple(f"old-{place}" for place in range(9)), None),
    ],
)
def test_nodes_whose_names_say_more_than_their_place_are_named(names: tuple[str, ...], told: str | None) -> None:
    shown = printed(compared(row("random", per_node=dict.fromkeys(names, 0.1))), 120)
    assert ("as their shares stand" in shown) is (told is not None)
    assert told is None or told in shown
