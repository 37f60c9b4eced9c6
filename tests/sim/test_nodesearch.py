from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.nodesearch import NodeSearch


def searched(nodes_max: int, enough: Callable[[int], bool], at_once: int = 2) -> tuple[NodeSearch, list[int]]:
    """A search that is over, and what it tried."""
    search = NodeSearch(nodes_max, at_once)
    tried: list[int] = []
    while numbers := search.next():
        assert len(numbers) <= at_once
        assert list(numbers) == sorted(set(numbers) - set(tried))
        for nodes in numbers:
            tried.append(nodes)
            search.tell(nodes, enough=enough(nodes))
    return search, tried


@pytest.mark.parametrize(
    ("nodes_max", "least", "at_once", "found", "tried"),
    [
        (1, 1, 2, 1, [1]),
        (1, 2, 2, None, [1]),
        (64, 1, 2, 1, [1, 2]),
        (64, 1, 1, 1, [1]),
        (64, 2, 1, 2, [1, 2]),
        (64, 3, 1, 3, [1, 2, 4, 3]),
        (64, 6, 2, 6, [1, 2, 4, 8, 5, 6]),
        (64, 64, 2, 64, [1, 2, 4, 8, 16, 32, 64, 42, 53, 56, 60, 61, 62, 63]),
        (6, 6, 2, 6, [1, 2, 4, 6, 5]),
        (6, 7, 2, None, [1, 2, 4, 6]),
        (5, 5, 1, 5, [1, 2, 4, 5, 3]),
    ],
)
def test_it_doubles_and_then_bisects(
    nodes_max: int, least: int, at_once: int, found: int | None, tried: list[int]
) -> None:
    search, asked = searched(nodes_max, lambda nodes: nodes >= least, at_once)
    assert (search.found, search.enough_below) == (found, ())
    assert asked[: len(tried)] == tried
    assert set(asked) - set(tried) <= {least - 2}


@given(st.integers(1, 1024), st.integers(1, 1100), st.integers(1, 4))
def test_without_noise_it_finds_the_least_number_in_few_trials(nodes_max: int, least: int, at_once: int) -> None:
    search, tried = searched(nodes_max, lambda nodes: nodes >= least, at_once)
    assert search.found == (least if least <= nodes_max else None)
    assert search.enough_below == ()
    assert len(tried) <= 11 + at_once * 11
    assert max(tried) <= min(nodes_max, max(2**at_once, 2 * 2 ** (at_once - 1) * least))


@given(st.integers(1, 300), st.sets(st.integers(1, 300)), st.integers(1, 3))
def test_with_any_noise_it_ends_with_enough_above_what_is_not(nodes_max: int, good: set[int], at_once: int) -> None:
    search, tried = searched(nodes_max, lambda nodes: nodes in good, at_once)
    found = search.found
    if found is None:
        assert nodes_max in tried
        assert nodes_max not in good
    else:
        assert found in good
        assert found == 1 or (found - 1 in tried and found - 1 not in good)
        assert all(nodes in good for nodes in tried if nodes > found)
        assert found <= 2 or found - 2 in tried
    end = found or nodes_max
    assert search.enough_below == tuple(sorted(nodes for nodes in tried if nodes in good and nodes < end))


def test_two_less_that_is_enough_is_told_and_is_no_answer() -> None:
    search, tried = searched(64, lambda nodes: nodes == 9 or nodes >= 11)
    assert (search.found, search.enough_below) == (11, (9,))
    assert tried[-1] == 9


def test_a_greater_number_that_is_not_enough_moves_the_answer_above_it() -> None:
    search, _ = searched(64, lambda nodes: nodes == 4 or nodes > 20)
    assert (search.found, search.enough_below) == (21, (4,))


def test_where_not_even_the_most_are_enough_fewer_that_were_are_told() -> None:
    search, _ = searched(8, lambda nodes: nodes == 4)
    assert (search.found, search.enough_below) == (None, (4,))
