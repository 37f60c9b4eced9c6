"""The prefix index against the plainest model of it, and its bounds."""

import random
import tracemalloc

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.core.prefix import ENTRY_BYTES, NODES_PER_BYTE, PrefixIndex
from extproc.core.request import PROMPT_BLOCK_TOKENS
from extproc.core.settings import PrefixSettings

PLENTY = 10**9


def chain(*words: str) -> tuple[int, ...]:
    """Numbers that each stand for all of the prompt until there, as those of a real prompt do."""
    return tuple(hash_of(words[: length + 1]) for length in range(len(words)))


def hash_of(words: tuple[str, ...]) -> int:
    """Any number that is the same for the same words only."""
    return int.from_bytes("/".join(words).encode(), "big")


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(PLENTY)


def test_a_node_has_the_beginnings_that_it_was_sent(index: PrefixIndex) -> None:
    index.insert("a", chain("system", "hello", "more"), 100)
    index.insert("b", chain("system", "hullo"), 100)
    assert index.match(chain("system", "hello", "world")) == {"a": 2, "b": 1}
    assert index.match(chain("system", "hello", "more", "and more")) == {"a": 3, "b": 1}
    assert index.match(chain("system")) == {"a": 1, "b": 1}
    assert index.match(chain("other", "hello")) == {}
    assert index.match(()) == {}


def test_what_stands_elsewhere_in_a_prompt_is_not_its_beginning(index: PrefixIndex) -> None:
    index.insert("a", chain("x", "y"), 100)
    assert index.match(chain("y")) == index.match(chain("z", "x", "y")) == {}


def test_a_node_keeps_as_much_as_its_cache_holds_the_latest_used(index: PrefixIndex) -> None:
    index.insert("a", chain("old", "1", "2"), 5)
    index.insert("a", chain("new", "1"), 5)
    index.insert("a", chain("old", "1"), 5)
    assert len(index) == 5
    index.insert("a", chain("third"), 5)
    assert index.match(chain("old", "1", "2")) == {"a": 2}, "the end of the chain used least goes first"
    index.insert("a", chain("fourth"), 5)
    assert index.match(chain("new", "1")) == {"a": 1}
    assert index.match(chain("old", "1", "2")) == {"a": 2}


def test_of_a_prompt_longer_than_the_cache_the_beginning_is_kept(index: PrefixIndex) -> None:
    index.insert("a", chain(*"abcdef"), 4)
    assert index.match(chain(*"abcdef")) == {"a": 4}
    index.insert("b", chain(*"abcdef"), 0)
    assert index.match(chain(*"abcdef")) == {"a": 4}


def test_a_cache_that_became_smaller_keeps_less(index: PrefixIndex) -> None:
    index.insert("a", chain(*"abcdef"), 6)
    index.insert("a", chain("x"), 3)
    assert index.match(chain(*"abcdef")) == {"a": 2}
    assert len(index) == 3


def test_a_forgotten_node_has_nothing_and_its_place_is_given_to_the_next(index: PrefixIndex) -> None:
    for name in "abc":
        index.insert(name, chain("x", name), 100)
    index.forget("b")
    index.forget("never seen")
    assert index.match(chain("x", "b")) == {"a": 1, "c": 1}
    index.insert("d", chain("x", "d"), 100)
    assert index.match(chain("x", "d")) == {"a": 1, "c": 1, "d": 2}
    for _ in range(1000):
        index.insert("comes and goes", chain("x"), 100)
        index.forget("comes and goes")
    assert len(index._node_of_bit) == 4, "masks stay as short as there are nodes"


def test_the_bound_holds_at_its_edge_and_the_largest_node_gives() -> None:
    index = PrefixIndex(6 * ENTRY_BYTES + ENTRY_BYTES - 1)
    index.insert("large", chain(*"abcd"), 100)
    index.insert("small", chain(*"xy"), 100)
    assert len(index) == 6
    assert index.match(chain(*"abcd")) == {"large": 4}
    index.insert("small", chain(*"xyz"), 100)
    assert len(index) == 6
    assert index.match(chain(*"abcd")) == {"large": 3}
    assert index.match(chain(*"xyz")) == {"small": 3}
    index.insert("small", chain(*"a long one"), 100)
    assert len(index) == 6
    assert index.match(chain(*"a long one"))["small"] >= 3


@pytest.mark.parametrize("bytes_max", [0, ENTRY_BYTES - 1])
def test_without_memory_there_is_no_index(bytes_max: int) -> None:
    index = PrefixIndex(bytes_max)
    index.insert("a", chain(*"abc"), 100)
    assert len(index) == 0
    assert index.match(chain(*"abc")) == {}
    index.forget("a")


@pytest.mark.parametrize(("nodes", "capacity"), [(1, 11_000), (20, 550), (200, 55)])
def test_a_block_takes_no_more_memory_than_is_reckoned_for_it(nodes: int, capacity: int) -> None:
    """Where caches are full and blocks come and go; half the prompts begin alike, so that many nodes share blocks."""
    chance = random.Random(1)
    shared = tuple(chance.getrandbits(64) for _ in range(20))
    tracemalloc.start()
    try:
        index = PrefixIndex(PLENTY)
        for _ in range(3 * capacity // 50):
            for number in range(nodes):
                own = tuple(chance.getrandbits(64) for _ in range(50))
                index.insert(f"n{number}", shared + own if chance.random() < 0.5 else own, capacity)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(index) == nodes * capacity
    assert taken < (ENTRY_BYTES + nodes // NODES_PER_BYTE) * len(index) + 20_000


@pytest.mark.parametrize(("used", "gone"), [(1, 0), (10, 0), (10, 2990)])
def test_short_prompts_in_a_large_fleet_take_no_more_memory_than_is_reckoned_for_them(used: int, gone: int) -> None:
    """Each has a set of nodes for itself, and that of the node which joined last is a number of 3000 bits.

    It stays so if all others leave.
    """
    bytes_max, nodes = 4 * 2**20, 3000
    chance = random.Random(1)
    tracemalloc.start()
    try:
        index = PrefixIndex(bytes_max)
        for number in range(nodes):
            index.insert(f"n{number}", (number,), 1000)
        for number in range(gone):
            index.forget(f"n{number}")
        joined = tracemalloc.get_traced_memory()[0]
        for number in range(10_000):
            index.insert(f"n{nodes - 1 - number % used}", (chance.getrandbits(64),), 100_000)
            if number % 500 == 0:
                assert tracemalloc.get_traced_memory()[0] - joined < bytes_max
    finally:
        tracemalloc.stop()
    assert len(index) > bytes_max / (ENTRY_BYTES + nodes / NODES_PER_BYTE) * 0.99


def test_a_full_index_makes_room_for_more_than_it_takes_in() -> None:
    """Finding the node with the most is not for every prompt."""
    index = PrefixIndex(4096 * ENTRY_BYTES)
    for number in range(3000):
        index.insert("large", (number,), 10_000)
    for number in range(1096):
        index.insert("small", (10_000 + number,), 10_000)
    lengths = []
    for number in range(8):
        index.insert("small", (20_000 + number,), 10_000)
        lengths.append(len(index))
    assert lengths == [4092, 4093, 4094, 4095, 4096, 4092, 4093, 4094]


class IndexAgainstLists(RuleBasedStateMachine):
    """Beside it, of each node, the list of its blocks from the least to the latest used."""

    ENTRIES_MAX = 40

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.ENTRIES_MAX * ENTRY_BYTES)
        self.kept: dict[str, list[int]] = {}

    PROMPTS = st.lists(st.sampled_from("ab"), min_size=1, max_size=12) | st.lists(
        st.sampled_from("abcdefgh"), min_size=1, max_size=30
    )

    @rule(node=st.sampled_from("uvwxyz"), words=PROMPTS, capacity=st.integers(0, 30))
    def inserts(self, node: str, words: list[str], capacity: int) -> None:
        blocks = chain(*words)
        self.index.insert(node, blocks, capacity)
        kept = self.kept.setdefault(node, [])
        for block in reversed(blocks[: min(capacity, self.ENTRIES_MAX)]):
            if block in kept:
                kept.remove(block)
            kept.append(block)
        del kept[: max(0, len(kept) - capacity)]
        while (over := sum(map(len, self.kept.values())) - self.ENTRIES_MAX) > 0:
            del max(self.kept.values(), key=len)[:over]

    @rule(node=st.sampled_from("uvwxyz"))
    def forgets(self, node: str) -> None:
        self.index.forget(node)
        self.kept.pop(node, None)

    @rule(words=PROMPTS)
    def matches(self, words: list[str]) -> None:
        expected = {}
        for node, kept in self.kept.items():
            depth = 0
            for block in chain(*words):
                if block not in kept:
                    break
                depth += 1
            if depth:
                expected[node] = depth
        assert self.index.match(chain(*words)) == expected

    @invariant()
    def holds_the_same(self) -> None:
        assert {node: list(used) for node, used in self.index._used.items()} == self.kept
        assert len(self.index) == sum(map(len, self.kept.values())) <= self.ENTRIES_MAX
        held = {block for kept in self.kept.values() for block in kept}
        assert set(self.index._masks) == held

    @invariant()
    def chains_are_closed_under_prefixes(self) -> None:
        for kept in self.kept.values():
            for block in kept:
                words = block.to_bytes((block.bit_length() + 7) // 8, "big").decode().split("/")
                assert len(words) == 1 or hash_of(tuple(words[:-1])) in kept


TestIndexAgainstLists = IndexAgainstLists.TestCase


def test_the_index_holds_a_hundred_caches_of_the_assumed_size_by_default() -> None:
    settings = PrefixSettings()
    assert settings.index_bytes_max // ENTRY_BYTES >= 100 * settings.node_tokens // PROMPT_BLOCK_TOKENS
