"""Prompts on their way to nodes that tell their blocks."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.kvcoming import REPORTS_UNTIL_TOLD, ComingBlocks

BITS = {"a": 1, "b": 2, "c": 4}


def coming(blocks_max: int = 10**6) -> ComingBlocks:
    return ComingBlocks(blocks_max)


def test_a_prompt_counts_from_its_sending_to_its_end() -> None:
    blocks = coming()
    blocks.sent("r1", "a", 1, (1, 2, 3))
    blocks.sent("r2", "a", 1, (1, 2))
    blocks.sent("r3", "b", 2, (1,))
    assert blocks.masks == {1: 3, 2: 1, 3: 1}
    blocks.over("r1")
    blocks.over("r1")
    assert blocks.masks == {1: 3, 2: 1}
    blocks.over("r2")
    assert blocks.masks == {1: 2}


def test_what_was_computed_counts_until_the_node_has_told_it() -> None:
    blocks = coming()
    blocks.reported("a")
    blocks.sent("r1", "a", 1, (1,))
    blocks.reported("a")
    blocks.computed("r1")
    blocks.over("r1")
    for _ in range(REPORTS_UNTIL_TOLD - 1):
        blocks.reported("a")
        blocks.reported("b")
    assert blocks.masks == {1: 1}
    blocks.sent("r2", "a", 1, (2,))
    blocks.computed("r2")
    blocks.reported("a")
    assert blocks.masks == {2: 1}
    for _ in range(REPORTS_UNTIL_TOLD - 1):
        blocks.reported("a")
    assert (blocks.masks, len(blocks)) == ({}, 0)


def test_a_prompt_may_move_to_a_node_that_tells_or_to_another() -> None:
    blocks = coming()
    blocks.sent("r1", "a", 1, (1, 2))
    blocks.moved("r1", "b", 2)
    assert blocks.masks == {1: 2, 2: 2}
    blocks.moved("r1", "x", 0)
    assert (blocks.masks, len(blocks)) == ({}, 0)
    blocks.moved("r1", "a", 1)
    assert not blocks.masks


def test_who_does_not_tell_and_what_is_too_much_is_left_out() -> None:
    blocks = coming(5)
    blocks.sent("r1", "x", 0, (1,))
    blocks.sent("r2", "a", 1, ())
    blocks.sent("r3", "a", 1, (1, 2, 3))
    blocks.sent("r4", "a", 1, (4, 5, 6))
    blocks.sent("r5", "a", 1, (7, 8))
    assert set(blocks.masks) == {1, 2, 3, 7, 8}
    blocks.over("r3")
    blocks.sent("r4", "a", 1, (4, 5, 6))
    assert set(blocks.masks) == {4, 5, 6, 7, 8}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sent", "sent", "computed", "over", "reported", "forget", "moved"]),
            st.sampled_from("abc"),
            st.sampled_from(["r1", "r2", "r3", "r4"]),
            st.lists(st.integers(0, 5), max_size=4, unique=True),
        ),
        max_size=40,
    )
)
def test_the_books_are_even_when_all_is_over(steps: list[Any]) -> None:
    blocks = coming(9)
    for what, node_id, request_id, numbers in steps:
        match what:
            case "sent":
                blocks.sent(request_id, node_id, BITS[node_id], tuple(numbers))
            case "moved":
                blocks.moved(request_id, node_id, BITS[node_id])
            case "computed":
                blocks.computed(request_id)
            case "over":
                blocks.over(request_id)
            case "reported":
                blocks.reported(node_id)
            case _:
                blocks.forget(node_id)
        there = [(node_id, numbers) for node_id, numbers in blocks._prompts.values()]
        there += [(node_id, numbers) for node_id, due in blocks._computed.items() for _, numbers in due]
        masks: dict[int, int] = {}
        for at, chain in there:
            for number in chain:
                masks[number] = masks.get(number, 0) | BITS[at]
        assert blocks.masks == masks
        assert blocks._blocks == sum(len(numbers) for _, numbers in there) <= 9
    for node_id in BITS:
        blocks.forget(node_id)
    assert (blocks.masks, blocks._blocks, len(blocks)) == ({}, 0, 0)
