"""What of our load the others are told, and when."""

from collections.abc import Callable

import pytest

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.peershares import NodeShare, Word
from extproc.core.sharing import LARGE_REQUESTS, LARGE_WORK_S, NODES_TOLD_MAX, Sharing
from tests.core.fleet import NOW_S
from tests.core.words import share

INTERVAL_S = 0.5
RATE = 8000.0
LARGE_TOKENS = round(LARGE_WORK_S * RATE)


class Teller:
    """What we have, and what is told of it."""

    def __init__(self) -> None:
        self.sharing = Sharing(ExchangeSettings(interval_s=INTERVAL_S))
        self.shares: dict[str, NodeShare] = {}
        self.looked = 0

    def has(self, node_id: str, requests: int = 0, tokens: int = 0, **others: int) -> None:
        self.shares[node_id] = share(node_id, sequences_open=requests, tokens_unstarted=tokens, **others)
        self.sharing.changed(node_id)

    def word(self, at_s: float) -> Word | None:
        def of(node_id: str) -> NodeShare:
            self.looked += 1
            return self.shares.get(node_id, NodeShare(node_id))

        return self.sharing.word(list(self.shares), of, lambda _: RATE, NOW_S + at_s)


def nodes_of(word: Word | None) -> set[str]:
    return set() if word is None else {one.node_id for one in word.shares}


@pytest.fixture
def teller() -> Teller:
    return Teller()


def test_all_is_told_once_in_an_interval(teller: Teller) -> None:
    teller.has("a", 1)
    teller.has("b")
    assert teller.word(0.0) == Word(everything=True, shares=(teller.shares["a"],))
    assert teller.word(0.25) is None
    teller.has("a", 2)
    assert teller.word(0.49) is None, "it is not worth a word of its own"
    assert teller.word(0.5) == Word(everything=True, shares=(teller.shares["a"],))


def test_a_router_that_has_nothing_says_so(teller: Teller) -> None:
    assert teller.word(0.0) == Word(everything=True, shares=())


@pytest.mark.parametrize("what", ["requests", "sequences_finished", "kv_blocks_unseen"])
def test_nodes_where_it_has_something_are_told(teller: Teller, what: str) -> None:
    """Also where all is over, and the sample still shows it."""
    teller.has("a", **{what: 1})
    assert nodes_of(teller.word(0.0)) == {"a"}


LARGER: dict[str, tuple[Callable[[Teller], None], Callable[[Teller], None], bool]] = {
    "a few requests": (lambda one: one.has("a"), lambda one: one.has("a", LARGE_REQUESTS - 1), False),
    "some requests": (lambda one: one.has("a"), lambda one: one.has("a", LARGE_REQUESTS), True),
    "some of many": (lambda one: one.has("a", 100), lambda one: one.has("a", 124), False),
    "a quarter of many": (lambda one: one.has("a", 100), lambda one: one.has("a", 125), True),
    "fewer": (lambda one: one.has("a", 100), lambda one: one.has("a", 75), True),
    "nothing is left": (lambda one: one.has("a", LARGE_REQUESTS), lambda one: one.has("a"), True),
    "a short prompt": (lambda one: one.has("a", 1, 10), lambda one: one.has("a", 2, 9 + LARGE_TOKENS), False),
    "a long prompt": (lambda one: one.has("a", 1, 10), lambda one: one.has("a", 2, 10 + LARGE_TOKENS), True),
    "a long prompt begins": (lambda one: one.has("a", 2, LARGE_TOKENS), lambda one: one.has("a", 2), True),
    "at a new node": (lambda one: one.has("b", 50), lambda one: one.has("new", 1, LARGE_TOKENS), True),
}


@pytest.mark.parametrize("name", LARGER)
def test_large_changes_are_told_at_once_and_small_ones_are_not(teller: Teller, name: str) -> None:
    before, after, is_told = LARGER[name]
    teller.has("b", 50)
    before(teller)
    teller.word(0.0)
    after(teller)
    word = teller.word(0.05)
    assert (word is not None) == is_told
    if word is not None:
        assert not word.everything
        assert nodes_of(word) == {"new" if "new" in name else "a"}
        assert teller.word(0.1) is None, "once"


def test_small_changes_that_add_up_to_a_large_one_are_told(teller: Teller) -> None:
    teller.has("a", 0)
    teller.word(0.0)
    told = []
    for requests in range(1, 2 * LARGE_REQUESTS + 1):
        teller.has("a", requests)
        told.append(teller.word(0.01 * requests) is not None)
    assert told == ([False] * (LARGE_REQUESTS - 1) + [True]) * 2


def test_a_word_about_all_after_one_about_some_has_all(teller: Teller) -> None:
    teller.has("a", 5)
    teller.has("b", 5)
    teller.word(0.0)
    teller.has("a", 50)
    assert nodes_of(teller.word(0.05)) == {"a"}
    word = teller.word(0.5)
    assert word is not None
    assert (word.everything, nodes_of(word)) == (True, {"a", "b"})
    assert teller.word(0.55) is None


def test_only_nodes_that_changed_are_looked_at_between(teller: Teller) -> None:
    for number in range(100):
        teller.has(f"n{number}", 5)
    teller.word(0.0)
    teller.looked = 0
    teller.has("n7", 50)
    teller.has("n7", 60)
    teller.word(0.05)
    teller.word(0.1)
    assert teller.looked == 1


def test_of_too_many_nodes_those_with_the_most_are_told(teller: Teller) -> None:
    for number in range(NODES_TOLD_MAX):
        teller.has(f"n{number}", 2)
    assert len(nodes_of(teller.word(0.0))) == NODES_TOLD_MAX
    teller.has("most", 3)
    teller.has("least", 1)
    found = nodes_of(teller.word(0.5))
    assert len(found) == NODES_TOLD_MAX
    assert "most" in found
    assert "least" not in found
    for number in range(NODES_TOLD_MAX + 1):
        teller.has(f"n{number}", 20)
    assert len(nodes_of(teller.word(0.55))) == NODES_TOLD_MAX


def test_nothing_is_kept_where_nobody_asks(teller: Teller) -> None:
    for number in range(1000):
        teller.has(f"n{number}", 5)
    assert not teller.sharing._changed
    teller.word(0.0)
    teller.has("a", 9)
    teller.has("b", 9)
    teller.sharing.forget("a")
    teller.sharing.forget("nobody")
    assert nodes_of(teller.word(0.05)) == {"b"}, "of a node that is gone nothing is kept either"
