"""What others have at a node, put together with what we have there.

| its sample | our sample | its word | of what it had sent since its own, ours does not show |
|---|---|---|---|
| 10 | 10 | 10.4 | all |
| 10.2 | 10 | 10.4 | all |
| 10 | 10.1 | 10.4 | three quarters |
| 10 | 10.4 | 10.4 | nothing |
| none, or long ago | 10 | 10.4 | what it sent for 0.4 of 2 s |
| any | none | 10.4 | all |
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.core.loads import in_flight, own_tokens_ahead, prefill_tokens_ahead
from extproc.core.nodeshare import Pending
from extproc.core.peerload import NO_PEER_LOAD, SENT_LATELY_S, PeerLoad, Said, sum_of, unseen_part, with_peers
from extproc.core.peershares import SHARE_BOUNDS, NodeShare
from extproc.core.snapshot import ALWAYS, NEVER, NO_LOAD, Learned, OwnLoad
from tests.core.fleet import NOW_S, view
from tests.core.words import busy, share

LEARNED = Learned(prefill_tokens_per_s=1000.0, prefill_tokens_mean=100.0)
FLEET_RATE = 500.0


@pytest.mark.parametrize(
    ("its_sample", "our_sample", "part"),
    [
        (10.0, 10.0, 1.0),
        (10.2, 10.0, 1.0),
        (10.0, 10.1, 0.75),
        (10.0, 10.2, 0.5),
        (10.0, 10.4, 0.0),
        (10.0, 11.0, 0.0),
        (None, 10.0, 0.2),
        (0.0, 10.0, 0.2),
        (None, 10.4 - SENT_LATELY_S, 1.0),
        (None, 10.4, 0.0),
        (None, NEVER, 1.0),
        (10.0, NEVER, 1.0),
        (10.5, 10.0, 1.0),
        (10.5, 10.6, 0.0),
    ],
)
def test_the_part_that_our_sample_does_not_show(its_sample: float | None, our_sample: float, part: float) -> None:
    assert SENT_LATELY_S == 2.0
    assert unseen_part(its_sample, 10.4, our_sample) == pytest.approx(part)


def said(one: NodeShare, made_at_s: float = NOW_S) -> Said:
    return Said(1, made_at_s, one)


def together(own: OwnLoad, pending: Pending, *words: Said, seen_until_s: float = NOW_S) -> OwnLoad:
    return with_peers(own, pending, sum_of(words, seen_until_s), LEARNED, FLEET_RATE)


def test_of_a_younger_sample_a_part_is_in_it() -> None:
    """Four requests of 400 tokens since 0.5 s before the word; our sample is from the middle. Two more had begun."""
    one = busy(
        requests=4,
        tokens=400,
        seen_until_s=NOW_S - 0.5,
        requests_held=9,
        sequences_finished=2,
        kv_blocks_unseen=-8,
        prefills_claimed=6,
        prefills_shown=4,
        tokens_shown=1000,
    )
    assert sum_of([said(one)], NOW_S - 0.5) == PeerLoad(NOW_S, 9, 4, 4, 4, 2, -8, 6, 1000, 400, 400)
    assert sum_of([said(one)], NOW_S - 0.25) == PeerLoad(NOW_S, 9, 4, 2, 2, 1, -4, 4 + 1 + 2, 1200, 200, 400)
    assert sum_of([said(one)], NOW_S) == PeerLoad(NOW_S, 9, 4, 0, 0, 0, 0, 4 + 4, 1400, 0, 400)


@pytest.mark.parametrize(
    ("sampled", "ours", "theirs", "tokens", "others"),
    [
        (5, 2, 3, 200 + 300, 0),
        (8, 2, 3, 200 + 300, 3),
        (3, 3, 3, (300 + 300) / 2, 0),
        (0, 0, 3, 0, 0),
        (4, 4, 0, 400, 0),
    ],
)
def test_pending_prefills_of_a_sample_are_of_whom_claims_them(
    sampled: int, ours: int, theirs: int, tokens: float, others: int
) -> None:
    """Of more claims than there are prefills some have begun, of each a part; of fewer the rest is of yet others."""
    own = OwnLoad(prefill_tokens=ours * 100 + 50, prefills_of_others=sampled - ours, work_since_s=ALWAYS)
    pending = Pending(sampled, ours, ours, ours * 100)
    word = said(share(prefills_claimed=theirs, prefills_shown=theirs, tokens_shown=theirs * 100))
    found = together(own, pending, word)
    assert (found.prefill_tokens, found.prefills_of_others) == (tokens + 50, others)


def test_without_a_sample_nobodys_claims_are_doubted() -> None:
    word = said(share(prefills_claimed=3, prefills_shown=3, tokens_shown=300))
    assert together(NO_LOAD, Pending(), word, seen_until_s=NEVER).prefill_tokens == 300
    assert together(NO_LOAD, Pending(0), word).prefill_tokens == 0, "our sample shows that all have begun"


def test_work_that_shrinks_has_shrunk_until_the_word_and_what_it_tells_comes_on_top() -> None:
    own = OwnLoad(prefill_tokens=900, work_tokens=900.0, work_since_s=NOW_S - 0.5, prefills_of_others=2)
    pending = Pending(2, 0, 0, 0)
    word = said(busy(tokens=300, prefills_claimed=2, prefills_shown=2, tokens_shown=150))
    found = together(own, pending, word)
    assert found.work_tokens == 900 - 1000 * 0.5 + (150 - 2 * 100) + 300
    assert found.work_since_s == NOW_S
    late = together(replace(own, work_since_s=NOW_S + 1), pending, word)
    assert (late.work_tokens, late.work_since_s) == (900 - 50 + 300, NOW_S + 1)
    first = together(NO_LOAD, Pending(), said(busy(tokens=300)), seen_until_s=NEVER)
    assert (first.work_tokens, first.work_since_s) == (300, ALWAYS)
    nothing_yet = replace(NO_LOAD, work_since_s=NEVER)
    assert together(nothing_yet, Pending(), said(busy(tokens=300)), seen_until_s=NEVER).work_since_s == NOW_S


def test_what_we_sent_shrinks_at_the_rate_of_the_fleet_and_what_others_sent_is_as_they_tell() -> None:
    own = OwnLoad(tokens_unstarted=900, sent_tokens=800.0, sent_since_s=NOW_S - 0.5)
    word = said(busy(tokens_unstarted=7000, sent_tokens=300))
    found = together(own, Pending(0), word)
    assert (found.tokens_unstarted, found.sent_tokens, found.sent_since_s) == (900 + 300, 800 - 250 + 300, NOW_S)
    seen = view(own=found)
    assert own_tokens_ahead(seen, FLEET_RATE, NOW_S + 0.25) == 850 - 125
    told_firsts = together(replace(own, sent_since_s=ALWAYS), Pending(0), word)
    assert own_tokens_ahead(view(own=told_firsts), FLEET_RATE, NOW_S + 9) == 1200


def test_nothing_of_others_changes_nothing_but_the_time() -> None:
    own = OwnLoad(3, 2, 2, 1, 7, 400, 2, 600.0, NOW_S, 500, 450.0, NOW_S, 3, frozenset({"x"}), 1)
    assert together(own, Pending(3, 1, 1, 100), said(share())) == own


COUNTS = st.integers(0, 2**60) | st.integers(0, 9)
ABSURD = st.builds(
    NodeShare,
    st.just("a"),
    st.none() | st.floats(-1e9, 1e9) | st.floats(NOW_S - 1, NOW_S + 1),
    **{name: COUNTS for name, (least, _) in SHARE_BOUNDS.items() if least == 0},
    kv_blocks_unseen=st.integers(-(2**60), 2**60),
)


@given(
    st.lists(st.tuples(ABSURD, st.floats(NOW_S - 3, NOW_S)), min_size=1, max_size=4),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from([NEVER, NOW_S - 0.5, NOW_S, 0.0]),
    st.booleans(),
)
def test_whatever_others_say_no_count_is_negative_and_ours_stand(
    words: list[tuple[NodeShare, float]], pending: int, claimed: int, seen_until_s: float, tells: bool
) -> None:
    claimed = min(pending, claimed)
    since_s = ALWAYS if tells else NOW_S - 0.25
    own = OwnLoad(
        sequences_open=claimed + 2,
        sequences_unseen=2,
        requests_unseen=2,
        requests_held=claimed + 2,
        prefill_tokens=claimed * 10 + 20,
        prefills_of_others=pending - claimed,
        work_tokens=claimed * 10 + 20 + (pending - claimed) * 100,
        work_since_s=since_s,
        tokens_unstarted=claimed * 10 + 20,
        sent_tokens=claimed * 10,
        sent_since_s=since_s,
    )
    ours = Pending(None if seen_until_s == NEVER else pending, claimed, claimed, claimed * 10)
    found = together(own, ours, *(Said(1, made_at_s, one) for one, made_at_s in words), seen_until_s=seen_until_s)
    assert found.requests_held >= own.requests_held
    assert found.sequences_open >= own.sequences_open
    assert found.sequences_unseen >= own.sequences_unseen
    assert found.prefill_tokens >= 20, "what no sample shows is ours, and there"
    assert found.prefills_of_others >= 0
    seen = view(own=found, requests_running=pending, requests_waiting=0)
    assert in_flight(seen.snapshot, found) >= own.requests_held
    for ahead in (prefill_tokens_ahead(seen, NOW_S + 0.1), own_tokens_ahead(seen, 1000.0, NOW_S + 0.1)):
        assert ahead >= 0


@given(ABSURD, st.integers(0, 20), st.integers(0, 20), st.sampled_from([NEVER, NOW_S - 0.5, NOW_S]))
def test_on_what_was_sent_no_sample_bears(one: NodeShare, pending: int, claimed: int, seen_until_s: float) -> None:
    """So nodes that hide their pending prefills, or their totals, are compared like those that tell (decision 23)."""
    own = OwnLoad(sequences_open=3, tokens_unstarted=900, sent_tokens=800.0, sent_since_s=NOW_S - 0.5)
    found = [
        with_peers(own, ours, sum_of([said(one)], seen_s), learned, FLEET_RATE)
        for ours, seen_s, learned in (
            (Pending(pending, min(pending, claimed), 0, 0), seen_until_s, LEARNED),
            (Pending(0), NOW_S - 0.25, Learned(20_000.0, 3.0)),
        )
    ]
    told, hides = ((a.sequences_open, a.tokens_unstarted, a.sent_tokens, a.sent_since_s) for a in found)
    assert told == hides


CHANGES: dict[str, Callable[[int], dict[str, Any]]] = {
    "requests_held": lambda n: {"requests_held": n},
    "sequences_open": lambda n: {"sequences_open": n},
    "sequences_unseen": lambda n: {"sequences_unseen": n},
    "tokens_unseen": lambda n: {"tokens_unseen": n},
}


@pytest.mark.parametrize("name", CHANGES)
def test_more_of_others_is_never_less_load(name: str) -> None:
    seen = []
    for count in (0, 5, 50):
        own = together(NO_LOAD, Pending(0), said(share(**CHANGES[name](count))))
        one = view(own=own, requests_running=None if name == "sequences_open" else 0)
        seen.append((one.in_flight, one.prefill_tokens_pending))
    assert seen == sorted(seen)
    assert seen[0] < seen[1] < seen[2]


def test_no_word_is_no_load() -> None:
    assert sum_of([], NOW_S) == NO_PEER_LOAD
