from extproc.sim.batch import Batch, OpenSequence
from extproc.sim.events import Request
from extproc.sim.holding import Holding
from extproc.sim.kv import KvPool

BLOCK = 4


def sequence(name: str, known: int, to_come: int, blocks_shared: int = 0) -> OpenSequence:
    """One that has all but so many tokens; those that it has are its prompt."""
    request = Request(name, known, to_come, block_keys=range(blocks_shared))
    return OpenSequence(request, 0.0, known, Holding(KvPool(50, BLOCK), request.block_keys))


def names(found: list[OpenSequence]) -> list[str]:
    return [one.request.request_id for one in found]


def visits(batch: Batch, steps: range) -> list[tuple[int, str]]:
    return [(step, one.request.request_id) for step, one in batch.filling(steps)]


def test_known_tokens_grow_by_one_for_each_sequence_and_step() -> None:
    batch = Batch(BLOCK)
    batch.join(sequence("a", 10, 9), step=100)
    batch.join(sequence("b", 30, 9), step=102)
    assert [batch.known_tokens(step) for step in (102, 103)] == [12 + 30, 13 + 31]


def test_a_sequence_is_due_at_the_end_of_the_step_that_gives_its_last_token() -> None:
    batch = Batch(BLOCK)
    batch.join(sequence("a", 10, 3), step=100)
    batch.join(sequence("b", 10, 1), step=100)
    assert batch.due_step() == 100
    assert names(batch.due(100)) == ["b"]
    assert batch.due(101) == []
    assert names(batch.due(102)) == ["a"]


def test_those_due_together_are_in_the_order_in_which_they_joined() -> None:
    batch = Batch(BLOCK)
    batch.join(sequence("a", 10, 3), step=100)
    batch.join(sequence("b", 10, 2), step=101)
    batch.join(sequence("c", 10, 1), step=102)
    assert names(batch.due(102)) == ["a", "b", "c"]


def test_one_that_has_left_is_never_due() -> None:
    batch = Batch(BLOCK)
    gone = sequence("gone", 10, 2)
    batch.join(gone, step=0)
    batch.join(sequence("a", 10, 8), step=0)
    batch.remove(gone)
    assert gone not in batch
    assert batch.due_step() == 7
    assert batch.due(1) == []


def test_one_that_left_and_joined_again_is_due_by_its_second_turn() -> None:
    batch = Batch(BLOCK)
    back = sequence("back", 10, 5)
    batch.join(back, step=0)
    batch.remove(back)
    batch.join(back, step=3)
    assert batch.due(4) == []
    assert names(batch.due(7)) == ["back"]


def test_one_expelled_with_its_last_token_is_due_once() -> None:
    batch = Batch(BLOCK)
    first, last = sequence("first", 10, 1), sequence("last", 10, 9)
    batch.join(first, step=0)
    batch.join(last, step=0)
    batch.expel(last, step=0)
    batch.expel(first, step=0)
    assert names(batch.due(0)) == ["first", "last"]


def test_the_last_to_join_is_the_first_to_be_thrown_out() -> None:
    batch = Batch(BLOCK)
    for name in "abc":
        batch.join(sequence(name, 10, 5), step=0)
    assert names(list(batch)) == ["a", "b", "c"]
    assert batch.last().request.request_id == "c"


def test_a_step_that_computes_the_first_token_of_a_block_is_told() -> None:
    batch = Batch(BLOCK)
    batch.join(sequence("a", 10, 20), step=100)
    # Step 100 computes the 10th token; the 13th is the first of the fourth block.
    assert visits(batch, range(100, 110)) == [(103, "a"), (107, "a")]


def test_a_step_that_fills_a_block_is_told_where_others_may_share_it() -> None:
    batch = Batch(BLOCK)
    batch.join(sequence("a", 10, 20, blocks_shared=9), step=100)
    batch.join(sequence("b", 11, 20), step=100)
    assert visits(batch, range(100, 107)) == [(102, "a"), (102, "b"), (103, "a"), (106, "a"), (106, "b")]


def test_whoever_leaves_fills_no_block_any_more() -> None:
    batch = Batch(BLOCK)
    gone = sequence("gone", 10, 20, blocks_shared=9)
    batch.join(gone, step=100)
    batch.remove(gone)
    assert visits(batch, range(100, 110)) == []
    assert len(batch) == batch.known_tokens(104) == 0


def test_one_may_leave_while_those_are_visited_that_a_step_concerns() -> None:
    batch = Batch(BLOCK)
    for name in "ab":
        batch.join(sequence(name, 13, 20), step=0)
    for _, one in batch.filling(range(1)):
        if one in batch:
            batch.remove(batch.last())
    assert names(list(batch)) == ["a"]
