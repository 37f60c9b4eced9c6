"""What keeps the ledger right where samples are late, ends are never told, and engines begin anew."""

import pytest

from extproc.core.nodeledger import CLOSED_KEPT_MAX
from extproc.core.snapshot import NO_LOAD
from tests.core.books import Books
from tests.core.fleet import counts_of


@pytest.fixture
def books() -> Books:
    return Books()


def test_a_late_sample_counts_what_happened_since_it_was_taken(books: Books) -> None:
    """It may arrive seconds later: the order of arrival proves nothing."""
    books.send("r1", 8.0, tokens=1)
    books.send("r2", 9.0, tokens=20)
    books.send("r3", 10.5, tokens=300)
    books.first_token("r1", 11.0)
    books.close("r2", 12.0)
    books.send("r4", 13.0, tokens=4000)
    books.sample(pending=2)
    assert (books.extra, books.tokens, books.others) == (2 - 1, 4300, 0)


def test_a_sample_older_than_the_one_before_does_no_harm_and_the_next_heals_it(books: Books) -> None:
    """Sequences rise, but an age may be measured wrong. What was over in the sample before stays over."""
    books.send("r1", 8.0)
    books.send("r2", 9.5)
    books.close("r1", 9.8)
    books.sample(10.0)
    books.sample(9.0)
    assert (books.extra, books.load("a").sequences_open) == (1, 1)
    books.sample(11.0)
    assert books.extra == 0


def test_a_sample_that_says_what_the_one_before_said_shows_nothing_new(books: Books) -> None:
    books.sample(idle=True)
    books.send("r1", 10.5, tokens=9000)
    books.repeat(11.0, idle=True)
    assert (books.extra, books.tokens) == (1, 9000)
    books.sample(12.0, pending=1)
    assert (books.extra, books.tokens) == (0, 9000)


def test_an_end_that_is_told_after_an_idle_sample_leaves_nothing_however_long_none_follows(books: Books) -> None:
    books.send("r1", 9.0, kv_blocks=4000)
    books.sample(10.0, idle=True)
    books.close("r1", 10.1)
    for at_s in (11.0, 12.0, 13.0):
        books.repeat(at_s, idle=True)
        assert (books.extra, books.load("a").kv_blocks_unseen) == (0, 0)
    books.send("r2", 13.5, kv_blocks=10)
    assert (books.extra, books.load("a").kv_blocks_unseen) == (1, 10)


def test_a_busy_sample_that_comes_late_still_shows_what_closed_after_it(books: Books) -> None:
    books.send("r1", 9.0)
    books.sample(9.5, idle=True)
    books.close("r1", 10.5)
    books.sample(10.0)
    assert (books.extra, books.load("a").kv_blocks_unseen) == (-1, -10)


def test_closing_is_idempotent_and_leaves_nothing(books: Books) -> None:
    books.send("r1", 9.0, sequences=4)
    assert books.close("r1", 9.5) is not None
    assert books.close("r1", 9.6) is None
    assert books.close("never opened", 9.7) is None
    assert counts_of(books.load("a")) == NO_LOAD
    assert len(books) == 0


def test_a_restart_empties_the_node_and_open_streams_end_by_themselves(books: Books) -> None:
    books.send("open", 8.0)
    books.send("left", 8.0)
    books.leave("left", 8.5)
    books.send("left later", 8.0)
    books.sample(pending=3)
    books.restarted("a")
    books.sample(11.0)
    assert counts_of(books.load("a")) == NO_LOAD
    assert len(books) == 2, "the streams that are open"
    books.leave("left later", 12.0)
    assert books.first_token("open", 12.0) is not None
    books.resize("open", 500, 500)
    assert books.close("open", 13.0) is not None
    assert counts_of(books.load("a")) == NO_LOAD
    assert len(books) == 0


def test_the_second_idle_sample_ends_what_was_left_and_no_open_stream(books: Books) -> None:
    for request_id, at_s in (("left", 8.0), ("open", 8.0), ("left, sent late", 10.5)):
        books.send(request_id, at_s)
        if request_id != "open":
            books.leave(request_id, at_s + 0.1)
    books.sample(10.0, idle=True)
    assert len(books) == 3, "one idle sample proves nothing"
    books.sample(11.0, idle=True)
    assert [books.get(one) is None for one in ("left", "open", "left, sent late")] == [True, False, False]
    books.sample(12.0, idle=True)
    assert [books.get(one) is None for one in ("open", "left, sent late")] == [False, True]
    assert books.load("a").sequences_open == 1
    books.close("open", 13.0)
    assert len(books) == 0


def test_idle_samples_with_a_busy_one_between_end_nothing(books: Books) -> None:
    books.send("left", 8.0)
    books.leave("left", 8.5)
    for at_s, idle in ((10.0, True), (11.0, False), (12.0, True)):
        books.sample(at_s, idle=idle)
    assert len(books) == 1


def test_unchanged_idle_samples_end_what_was_left_all_the_same(books: Books) -> None:
    books.sample(9.0, idle=True)
    books.send("left", 9.5)
    books.leave("left", 9.6)
    for at_s, extra in ((10.0, 1), (11.0, 0)):
        books.repeat(at_s, idle=True)
        assert books.extra == extra
    assert len(books) == 0


def test_what_was_left_long_ago_is_over_and_an_open_stream_never_is(books: Books) -> None:
    for request_id, at_s in (("left early", 8.0), ("left late", 8.1), ("open", 8.2)):
        books.send(request_id, at_s)
    books.sample(pending=3)
    books.leave("left early", 20.0)
    books.leave("left late", 30.0)
    assert books.purge(19.9) == set()
    assert books.purge(20.0) == {"a"}
    assert (books.load("a").sequences_open, books.tokens, books.others) == (2, 200, 1)
    assert books.purge(1e9) == {"a"}
    assert [books.get(one) is None for one in ("left late", "open")] == [True, False]


def test_what_closed_is_kept_only_as_long_as_a_sample_may_show_it(books: Books) -> None:
    """Also where a node tells nothing, so that all of its samples are alike."""
    books.sample(0.0)
    for number in range(50):
        books.send(f"r{number}", number + 0.1)
        books.close(f"r{number}", number + 0.2)
        books.repeat(number + 1.0)
        assert len(books._nodes["a"].closed) == 0
    for number in range(CLOSED_KEPT_MAX + 5):
        books.send(f"s{number}", 100.0)
        books.close(f"s{number}", 101.0)
    assert len(books._nodes["a"].closed) == CLOSED_KEPT_MAX
