"""What routers say on the bus, and what they take from it."""

import random
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.core.outcome import Answered, Ending
from extproc.core.peershares import COUNT_MAX, NodeShare, Word
from extproc.core.snapshot import COUNTER_MAX, KV_BLOCKS_MAX
from extproc.exchange import chains, endswire, wire
from extproc.exchange.wire import Here, Loads
from extproc.pb import exchange_pb2
from tests.exchange.reading import read

NOW_S = 5000.0
IDS = st.from_regex(r"[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]{0,20}", fullmatch=True)
COUNTS = st.integers(0, COUNT_MAX)
TOKENS = st.integers(0, COUNTER_MAX)


@st.composite
def shares(draw: st.DrawFn) -> NodeShare:
    seen_until_s = draw(st.none() | st.floats(NOW_S - 90_000, NOW_S))
    numbers: list[Any] = [draw(COUNTS) for _ in range(5)]
    numbers += [draw(st.integers(-KV_BLOCKS_MAX, KV_BLOCKS_MAX)), draw(COUNTS), draw(COUNTS)]
    return NodeShare(draw(IDS), seen_until_s, *numbers, *[draw(TOKENS) for _ in range(4)])


words = st.builds(Word, st.booleans(), st.lists(shares(), max_size=5, unique_by=lambda one: one.node_id).map(tuple))


def said(word: Word, *, way_s: float = 0.0, now_s: float = NOW_S, hears_ends: bool = False) -> list[bytes]:
    numbers = count(1)
    return list(wire.loads_bytes(word, "r1", lambda: next(numbers), way_s, now_s, hears_ends=hears_ends))


@given(words, st.floats(0, 10), st.floats(0, 10), st.booleans())
def test_a_word_comes_as_it_was_said_on_the_others_clock(
    word: Word, way_s: float, our_way_s: float, hears_ends: bool
) -> None:
    (message,) = said(word, way_s=way_s, hears_ends=hears_ends)
    heard = wire.loads_of(message, our_way_s, NOW_S + way_s + our_way_s)
    assert isinstance(heard, Loads)
    assert (heard.told.router, heard.told.sequence, heard.hears_ends) == ("r1", 1, hears_ends)
    assert heard.told.made_at_s == pytest.approx(NOW_S, abs=0.001)
    assert heard.told.word.everything == word.everything
    assert len(heard.told.word.shares) == len(word.shares)
    for one, other in zip(word.shares, heard.told.word.shares, strict=True):
        assert (other.seen_until_s is None) == (one.seen_until_s is None)
        if one.seen_until_s is not None:
            assert other.seen_until_s == pytest.approx(one.seen_until_s, abs=0.0011)
        for name in NodeShare.__struct_fields__:
            if name != "seen_until_s":
                assert getattr(other, name) == getattr(one, name), name


def test_clocks_of_two_machines_are_never_compared() -> None:
    (message,) = said(Word(True, (NodeShare("a", NOW_S - 0.25),)), way_s=0.002)
    heard = wire.loads_of(message, 0.003, 77.0)
    assert isinstance(heard, Loads)
    assert heard.told.made_at_s == pytest.approx(77.0 - 0.005)
    assert heard.told.word.shares[0].seen_until_s == pytest.approx(77.0 - 0.255)


def test_what_is_beyond_bounds_is_told_as_the_bound() -> None:
    share = NodeShare("a", NOW_S - 1e9, 2 * COUNT_MAX, kv_blocks_unseen=-2 * KV_BLOCKS_MAX, sent_tokens=2**60)
    (message,) = said(Word(True, (share, NodeShare("no node's id"))), way_s=1e9)
    heard = wire.loads_of(message, 0.0, NOW_S)
    assert isinstance(heard, Loads)
    (told,) = heard.told.word.shares
    assert (told.requests_held, told.kv_blocks_unseen, told.sent_tokens) == (
        COUNT_MAX,
        -KV_BLOCKS_MAX,
        COUNTER_MAX,
    )
    assert heard.told.made_at_s == NOW_S - wire.WAY_MS_MAX / 1000
    assert told.seen_until_s == heard.told.made_at_s - wire.AGE_MS_MAX / 1000


def test_a_long_word_is_several_messages_of_which_the_first_is_about_everything() -> None:
    word = Word(True, tuple(NodeShare(f"{number:0128}", NOW_S, *[10**6] * 12) for number in range(wire.SHARES_MAX)))
    messages = said(word)
    assert len(messages) > 1
    heard = [wire.loads_of(message, 0.0, NOW_S) for message in messages]
    tolds = [one.told for one in heard if isinstance(one, Loads)]
    assert [told.sequence for told in tolds] == list(range(1, len(messages) + 1))
    assert [told.word.everything for told in tolds] == [True] + [False] * (len(messages) - 1)
    assert [one.node_id for told in tolds for one in told.word.shares] == [one.node_id for one in word.shares]
    assert all(len(message) <= MESSAGE_BYTES_MAX for message in messages)


def loads(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"router": "r1", "sequence": 1, "everything": True}
    share = exchange_pb2.NodeShare(**changes.pop("share", {"node_id": "a"}))
    return exchange_pb2.RouterLoads(**{**fields, "shares": [share], **changes}).SerializeToString()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (loads(router=""), "router: wanted 1..32 letters and digits, got ''"),
        (loads(router="r" * 33), f"router: wanted 1..32 letters and digits, got '{'r' * 33}'"),
        (loads(router="a-b"), "router: wanted 1..32 letters and digits, got 'a-b'"),
        (loads(way_ms=10_001), "way_ms: wanted at most 10000, got 10001"),
        (loads(share={"node_id": ""}), "shares.0.node_id: wanted"),
        (loads(share={"node_id": "a" * 129}), "shares.0.node_id: wanted"),
        (loads(share={"node_id": "a\n"}), "shares.0.node_id: wanted"),
        (loads(share={"node_id": "a", "seen_ago_ms": 10**8 + 1}), "shares.0.seen_ago_ms: wanted at most 100000000"),
        (loads(share={"node_id": "a", "requests_held": 10**9 + 1}), "shares.0.requests_held: wanted 0..1000000000"),
        (loads(share={"node_id": "a", "kv_blocks_unseen": -(10**9) - 1}), "shares.0.kv_blocks_unseen: wanted -1000"),
        (loads(share={"node_id": "a", "sent_tokens": 2**53 + 1}), "shares.0.sent_tokens: wanted 0..9007199254740992"),
        (loads(shares=[exchange_pb2.NodeShare(node_id="a")] * 2), "shares: wanted each node once, got '2 shares of 1"),
        (loads(shares=[exchange_pb2.NodeShare(node_id="a")] * 2001), "shares: wanted at most 2000, got 2001"),
        (b"\xff\xff", "message: wanted a RouterLoads, got 2 bytes of something else"),
        (b"\0" * (MESSAGE_BYTES_MAX + 1), "message: wanted at most 262144 bytes, got 262145"),
    ],
)
def test_a_message_that_is_wrong_somewhere_is_refused_whole(message: bytes, reason: str) -> None:
    refusal = wire.loads_of(message, 0.0, NOW_S)
    assert isinstance(refusal, str)
    assert refusal.startswith(reason)


def test_bounds_themselves_are_taken() -> None:
    share = {"node_id": "a" * 128, "seen_ago_ms": 10**8, "requests_held": 10**9, "kv_blocks_unseen": -(10**9)}
    assert isinstance(wire.loads_of(loads(router="r" * 32, way_ms=10_000, share=share), 0.0, NOW_S), Loads)
    many = [exchange_pb2.NodeShare(node_id=f"n{number}") for number in range(2000)]
    assert isinstance(wire.loads_of(loads(shares=many), 0.0, NOW_S), Loads)


@pytest.mark.parametrize("here", [Here("r1"), Here("r1", is_new=True), Here("r1", leaves=True, key="0123abcd")])
def test_a_router_says_that_it_is_there(here: Here) -> None:
    assert wire.here_of(wire.here_bytes(here)) == here
    assert wire.here_of(wire.here_bytes(Here("not-one"))) == "router: wanted 1..32 letters and digits, got 'not-one'"


@pytest.mark.parametrize("key", ["k" * 33, "a b", "ü"])
def test_a_key_is_some_letters_and_digits(key: str) -> None:
    assert wire.here_of(wire.here_bytes(Here("r1", key="k" * 32))) == Here("r1", key="k" * 32)
    assert str(wire.here_of(wire.here_bytes(Here("r1", key=key)))).startswith("key: wanted at most 32 letters and dig")


@pytest.mark.parametrize("router", ["r", "r" * 32])
def test_all_that_routers_say_begins_with_a_router(router: str) -> None:
    word = Word(True, tuple(NodeShare(f"n{number}") for number in range(3)))
    (loads_said,) = wire.loads_bytes(word, router, lambda: 1, 0.1, NOW_S, hears_ends=True)
    (placed,) = chains.messages(router, [chains.Placed("a", bytes(8), False)])
    (ends,) = endswire.ends_bytes(router, [Answered("r-1", Ending.SERVED)], NOW_S)
    for message in (loads_said, placed, ends, wire.here_bytes(Here(router, is_new=True))):
        assert wire.named_in(message) == router


@pytest.mark.parametrize("message", [b"", b"\n", b"\n\0", b"\n\x21" + b"r" * 33, b"\n\x02r-", b"\x12\x01r"])
def test_what_begins_otherwise_names_nobody(message: bytes) -> None:
    assert wire.named_in(message) is None


def take_all(message: bytes) -> None:
    """Every reader answers, whatever it is given."""
    assert isinstance(wire.loads_of(message, 0.0, NOW_S), Loads | str)
    assert isinstance(wire.here_of(message), Here | str)
    assert isinstance(read(message), tuple | str)
    assert isinstance(wire.named_in(message), str | None)
    assert isinstance(endswire.ends_of(message, "r1", NOW_S), list | str | None)


@given(st.binary(max_size=300))
def test_no_bytes_make_a_reader_fail(message: bytes) -> None:
    take_all(message)


@given(words, st.integers(0, 2**32), st.integers(1, 8))
def test_no_change_of_a_message_makes_a_reader_fail(word: Word, seed: int, changes: int) -> None:
    chance = random.Random(seed)
    placed = [chains.Placed(one.node_id, bytes(8 * chance.randrange(1, 4)), False) for one in word.shares]
    for message in (*said(word), *chains.messages("r1", placed)):
        mutated = bytearray(message)
        for _ in range(changes):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        take_all(bytes(mutated[: chance.randrange(len(mutated) + 1)]))
        take_all(bytes(mutated))
