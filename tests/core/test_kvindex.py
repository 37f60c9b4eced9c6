"""The blocks that nodes tell of their caches, against sets of numbers."""

import gc
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import kvindex
from extproc.core.kvindex import ENTRY_BYTES, NODES_PER_BYTE, KvIndex

MANY = 2**40
NODES = ("a", "b", "c")
NUMBERS = st.lists(st.integers(0, 9), max_size=6)
STEPS = st.lists(
    st.tuples(st.sampled_from(NODES), st.sampled_from(["tell", "tell", "tell", "all", "forget"]), NUMBERS, NUMBERS),
    max_size=25,
)


def index(bytes_max: int = MANY, node_blocks_max: int = 10**9) -> KvIndex:
    return KvIndex(bytes_max, node_blocks_max)


def depth(blocks: list[int], there: set[int]) -> int:
    return next((place for place, block in enumerate(blocks) if block not in there), len(blocks))


@given(STEPS, NUMBERS, st.dictionaries(st.sampled_from(NODES), st.sets(st.integers(0, 9)), max_size=2))
def test_it_knows_what_each_node_told(steps: list[Any], asked: list[int], coming: dict[str, set[int]]) -> None:
    found, model = index(), dict[str, set[int]]()
    for node_id, what, stored, removed in steps:
        if what == "forget":
            found.forget(node_id)
            model.pop(node_id, None)
        elif stored or node_id in model:
            before = set() if what == "all" else model.get(node_id, set()) - set(removed)
            assert found.told(node_id, stored, () if what == "all" else removed, everything=what == "all") is None
            model[node_id] = before | set(stored)
        assert len(found) == sum(map(len, model.values()))
        assert {one: found.count(one) for one in NODES} == {
            one: len(model[one]) if one in model else None for one in NODES
        }
    masks: dict[int, int] = {}
    for node_id, blocks in coming.items():
        for block in blocks:
            masks[block] = masks.get(block, 0) | found.bit(node_id)
    reach = {one: depth(asked, there | coming.get(one, set())) for one, there in model.items()}
    assert found.match(asked, masks) == {one: count for one, count in reach.items() if count}
    for node_id in NODES:
        found.forget(node_id)
    assert not found._masks
    assert len(found) == 0


def test_who_told_nothing_yet_does_not_tell() -> None:
    found = index()
    assert found.told("a", (), (1, 2)) is None
    assert (found.count("a"), found.bit("a"), list(found.nodes)) == (None, 0, [])
    found.told("a", (1,), ())
    found.told("a", (), (1,))
    assert (found.count("a"), list(found.nodes)) == (0, ["a"])


def test_what_a_node_lost_and_got_again_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvindex, "STALE_MIN", 8)
    found = index()
    found.told("a", range(10))
    for _ in range(50):
        found.told("a", (), range(5))
        found.told("a", range(5))
        assert len(found._listed["a"]) <= 2 * 10 + 8 + 5
    assert found.match(range(10), {}) == {"a": 10}
    found.forget("a")
    assert not found._masks


def test_a_node_that_tells_too_much_is_forgotten() -> None:
    found = index(node_blocks_max=10)
    found.told("b", (1, 2))
    assert found.told("a", range(10)) is None
    assert found.told("a", range(10)) is None, "they are there already"
    assert found.told("a", (20,)) == "wanted at most prefix.kv_blocks_node_max (10), got 11"
    assert (found.count("a"), found.match(range(1, 10), {})) == (None, {"b": 2})


def test_all_nodes_together_have_a_bound() -> None:
    found = index(bytes_max=20 * ENTRY_BYTES)
    assert found.told("a", range(15)) is None
    assert found.told("b", range(5)) is None
    fault = found.told("b", (100,))
    assert (
        fault
        == f"wanted all nodes' within prefix.kv_index_bytes_max ({20 * ENTRY_BYTES}), got {21 * ENTRY_BYTES} bytes"
    )
    assert (found.count("a"), found.count("b")) == (15, None)
    assert found.told("b", (100,)) is None


@pytest.mark.parametrize(("nodes", "shared"), [(3, False), (600, False), (600, True)])
def test_it_takes_no_more_memory_than_is_reckoned(nodes: int, shared: bool) -> None:
    """At its emptiest: a table that has just grown. The last nodes have the longest numbers."""
    chance = random.Random(1)
    found = index()
    for number in range(nodes):
        found.told(f"n{number}", (chance.getrandbits(64),))
    gc.collect()
    tracemalloc.start()
    most = 0.0
    try:
        while len(found) < 24_000:
            numbers = [chance.getrandbits(64) for _ in range(150)]
            for number in range(nodes - 3, nodes) if shared else (nodes - 1,):
                found.told(f"n{number}", numbers)
            del numbers
            if len(found) > 6000:
                most = max(most, tracemalloc.get_traced_memory()[0] / len(found))
    finally:
        tracemalloc.stop()
    assert most <= ENTRY_BYTES + nodes // NODES_PER_BYTE
