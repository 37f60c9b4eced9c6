"""Words of other routers, as they come: in any order, again, too late, of too many, or never again."""

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.peerload import NO_PEER_LOAD, PeerLoad
from extproc.core.peers import Peers, PeerState
from extproc.core.peershares import NodeShare, PeerTold
from extproc.core.sharing import NODES_TOLD_MAX
from tests.core.fleet import NOW_S
from tests.core.words import busy, share, told

SILENCE_S = ExchangeSettings().silence_s
NODES = "abc"


@pytest.fixture
def peers() -> Peers:
    return Peers(ExchangeSettings(peers_max=3))


def open_at(peers: Peers, node_id: str = "a") -> int:
    return peers.load(node_id, NOW_S).sequences_open


def test_what_all_others_have_at_a_node_is_added_up(peers: Peers) -> None:
    assert peers.load("a", NOW_S) is NO_PEER_LOAD
    assert peers.told(told(busy(requests=3), busy("b", 1)), NOW_S) == {"a", "b"}
    assert peers.told(told(busy(requests=4), router="q", made_at_s=NOW_S + 1), NOW_S + 1) == {"a"}
    assert open_at(peers) == 7
    assert open_at(peers, "b") == 1
    assert peers.load("a", NOW_S).at_s == NOW_S + 1
    assert peers.load("c", NOW_S) is NO_PEER_LOAD


def test_a_word_about_some_nodes_leaves_the_others_and_one_about_all_does_not(peers: Peers) -> None:
    peers.told(told(busy(requests=3), busy("b", 1)), NOW_S)
    assert peers.told(told(busy(requests=5), sequence=2, everything=False), NOW_S) == {"a"}
    assert (open_at(peers), open_at(peers, "b")) == (5, 1)
    assert peers.told(told(busy("c", 2), sequence=3), NOW_S) == {"a", "b", "c"}
    assert (open_at(peers), open_at(peers, "b"), open_at(peers, "c")) == (0, 0, 2)


@pytest.mark.parametrize("everything", [True, False])
def test_an_earlier_word_that_comes_later_changes_nothing(peers: Peers, everything: bool) -> None:
    peers.told(told(busy(requests=3), sequence=5), NOW_S)
    for sequence in (4, 5):
        assert peers.told(told(busy(requests=9), sequence=sequence, everything=everything), NOW_S) == set()
    assert open_at(peers) == 3


def test_a_word_about_all_that_comes_after_a_later_one_about_some_leaves_that(peers: Peers) -> None:
    peers.told(told(busy(requests=3), sequence=7, everything=False), NOW_S)
    assert peers.told(told(busy(requests=9), busy("b", 1), sequence=6), NOW_S) == {"b"}
    assert (open_at(peers), open_at(peers, "b")) == (3, 1)


def test_a_word_counts_as_long_as_its_router_is_heard(peers: Peers) -> None:
    peers.told(told(busy()), NOW_S)
    assert peers.expire(NOW_S + SILENCE_S) == set()
    assert peers.states(NOW_S + SILENCE_S) == [PeerState("p", SILENCE_S, 3)]
    assert peers.expire(NOW_S + SILENCE_S + 0.001) == {"a"}
    assert peers.load("a", NOW_S) is NO_PEER_LOAD
    assert len(peers) == 0


def test_a_word_from_too_long_ago_is_not_heard(peers: Peers) -> None:
    assert peers.told(told(busy()), NOW_S + SILENCE_S + 0.001) is None
    assert len(peers) == 0
    assert peers.told(told(busy()), NOW_S + SILENCE_S) == {"a"}


def test_a_word_from_the_future_is_one_of_now(peers: Peers) -> None:
    """Ways are measured, and never quite right; and nobody shall be heard for ever."""
    peers.told(told(busy(), made_at_s=NOW_S + 10**9), NOW_S)
    assert peers.load("a", NOW_S).at_s == NOW_S
    assert peers.expire(NOW_S + SILENCE_S + 0.001) == {"a"}


@pytest.mark.parametrize("everything", [True, False])
def test_a_number_that_no_later_word_can_pass_is_believed_for_a_while(peers: Peers, everything: bool) -> None:
    """By a fault, or by somebody who says that he is this router, which goes on to tell the truth."""
    peers.told(told(busy(requests=2**60), sequence=2**64 - 1, everything=everything), NOW_S)
    sequence, now_s = 1, NOW_S
    while now_s < NOW_S + SILENCE_S + 0.6:
        now_s, sequence = now_s + 0.25, sequence + 1
        peers.expire(now_s)
        peers.told(told(busy(requests=4), sequence=sequence, made_at_s=now_s), now_s)
    assert open_at(peers) == 4
    assert len(peers) == 1


def test_who_said_that_it_ended_is_not_heard_any_more(peers: Peers) -> None:
    peers.told(told(busy()), NOW_S)
    assert peers.left("p", NOW_S) == {"a"}
    assert peers.left("p", NOW_S) == set()
    assert peers.left("nobody", NOW_S) == set()
    assert peers.told(told(busy(), sequence=2), NOW_S + 0.1) is None, "it came late"
    peers.expire(NOW_S + SILENCE_S)
    assert peers.told(told(busy(), sequence=3, made_at_s=NOW_S + SILENCE_S), NOW_S + SILENCE_S) is None
    peers.expire(later_s := NOW_S + SILENCE_S + 0.001)
    assert peers.told(told(busy(), sequence=4, made_at_s=later_s), later_s) == {"a"}, "somebody else said so"


def test_so_many_others_are_heard_and_so_many_that_left_are_known(peers: Peers) -> None:
    for router in "pqr":
        assert peers.told(told(busy(), router=router), NOW_S) == {"a"}
    assert peers.told(told(busy(), router="s"), NOW_S) is None
    peers.left("p", NOW_S)
    assert peers.told(told(busy(), router="s"), NOW_S) == {"a"}
    for router in "qrs":
        peers.left(router, NOW_S)
    assert peers.told(told(busy(), router="p"), NOW_S) == {"a"}, "the first of four is forgotten"
    assert peers.told(told(busy(), router="q"), NOW_S) is None


def test_so_many_nodes_of_one_router_are_known(peers: Peers) -> None:
    many = [busy(f"n{number}") for number in range(NODES_TOLD_MAX)]
    assert len(peers.told(told(*many[:-1]), NOW_S) or ()) == NODES_TOLD_MAX - 1
    assert peers.told(told(many[-1], busy("more"), sequence=2, everything=False), NOW_S) == {f"n{NODES_TOLD_MAX - 1}"}
    assert peers.told(told(busy("n0", 9), sequence=3, everything=False), NOW_S) == {"n0"}, "those that are known change"
    assert open_at(peers, "more") == 0
    assert peers.told(told(busy("more"), router="q"), NOW_S) == {"more"}
    assert "more" in (peers.told(told(busy("more"), sequence=4), NOW_S) or ())


def test_what_was_added_up_is_never_of_before(peers: Peers) -> None:
    """It is kept beside one sample; each of these makes it anew."""
    peers.told(told(busy(requests=4, seen_until_s=NOW_S - 1)), NOW_S)
    assert peers.load("a", NOW_S - 1).sequences_unseen == 4
    assert peers.load("a", NOW_S - 0.5).sequences_unseen == 2, "another sample"
    assert peers.load("a", NOW_S - 1).sequences_unseen == 4
    peers.told(told(busy(requests=6, seen_until_s=NOW_S - 1), sequence=2, everything=False), NOW_S)
    assert peers.load("a", NOW_S - 1).sequences_unseen == 6
    peers.forget("a")
    assert peers.load("a", NOW_S - 1) is NO_PEER_LOAD
    peers.told(told(busy(requests=7, seen_until_s=NOW_S - 1), sequence=3), NOW_S)
    assert peers.load("a", NOW_S - 1).sequences_unseen == 7
    peers.told(told(sequence=4), NOW_S)
    assert peers.load("a", NOW_S - 1) is NO_PEER_LOAD
    peers.told(told(busy(), sequence=5), NOW_S)
    assert open_at(peers) == 3
    peers.left("p", NOW_S)
    assert peers.load("a", NOW_S) is NO_PEER_LOAD


SHARES = st.lists(st.builds(busy, st.sampled_from(NODES), st.integers(0, 9), st.integers(0, 999)), max_size=3)
WORDS = st.builds(
    lambda shares, router, sequence, ago_s, everything: told(
        *{one.node_id: one for one in shares}.values(),
        router=router,
        sequence=sequence,
        made_at_s=NOW_S - ago_s,
        everything=everything,
    ),
    SHARES,
    st.sampled_from("pq"),
    st.integers(0, 20),
    st.sampled_from([0.0, 0.1, 1.0, SILENCE_S - 0.1, SILENCE_S + 0.1]),
    st.booleans(),
)


def loads(peers: Peers) -> list[PeerLoad]:
    return [peers.load(node_id, seen_s) for node_id in NODES for seen_s in (NOW_S - 1, NOW_S)]


@given(st.lists(WORDS, max_size=12), SHARES, SHARES)
def test_after_any_words_in_any_order_one_about_all_of_each_router_says_it_all(
    words: Sequence[PeerTold], of_p: list[NodeShare], of_q: list[NodeShare]
) -> None:
    after, alone = Peers(ExchangeSettings()), Peers(ExchangeSettings())
    for word in words:
        after.told(word, NOW_S)
        loads(after)
    for router, shares in (("q", of_q), ("p", of_p)):
        word = told(*{one.node_id: one for one in shares}.values(), router=router, sequence=21)
        after.told(word, NOW_S)
        alone.told(word, NOW_S)
    assert loads(after) == loads(alone)


@given(st.lists(WORDS, max_size=8), st.randoms())
def test_the_order_of_words_does_not_matter_nor_that_they_come_twice(words: list[PeerTold], chance: Random) -> None:
    """As long as no two of one router have the same number."""
    once = list({(word.router, word.sequence): word for word in words}.values())
    again = [*once, *once]
    chance.shuffle(again)
    straight, shuffled = Peers(ExchangeSettings()), Peers(ExchangeSettings())
    for word in sorted(once, key=lambda word: word.sequence):
        straight.told(word, NOW_S)
    for word in again:
        shuffled.told(word, NOW_S)
    assert loads(straight) == loads(shuffled)


def test_nothing_is_kept_of_nodes_of_which_nobody_says_anything(peers: Peers) -> None:
    peers.told(told(busy()), NOW_S)
    for number in range(100):
        assert peers.load(f"n{number}", NOW_S) is NO_PEER_LOAD
    assert open_at(peers) == 3
    assert set(peers._loads) == {"a"}
    peers.expire(NOW_S + 60)
    assert not peers._loads


def test_no_sum_rests_on_who_was_heard_first() -> None:
    """Decisions come out the same again, to the last bit."""
    words = [
        told(busy(requests=count, seen_until_s=NOW_S - 0.7), router=router, made_at_s=NOW_S - 0.1 * count)
        for router, count in (("p", 1), ("q", 3), ("r", 7), ("s", 2))
    ]
    found = []
    for order in permutations(words):
        peers = Peers(ExchangeSettings())
        for word in order:
            peers.told(word, NOW_S)
        found.append(peers.load("a", NOW_S - 0.33))
    assert all(one == found[0] for one in found)


def test_a_node_of_which_nothing_is_left_is_told_as_nothing(peers: Peers) -> None:
    peers.told(told(busy()), NOW_S)
    peers.told(told(share(), sequence=2, everything=False), NOW_S)
    assert open_at(peers) == 0
