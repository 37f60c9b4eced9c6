"""Each line of the ledger's formula, by examples.

Times are seconds; where a test names none, t is 10 and δ is 0.
"""

import pytest

from tests.core.books import Books


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.mark.parametrize(
    ("sent_s", "delay_s", "extra"),
    [(9.0, 0.0, 0), (9.99, 0.0, 0), (10.0, 0.0, 1), (11.0, 0.0, 1), (9.49, 0.5, 0), (9.5, 0.5, 1), (9.51, 0.5, 1)],
)
def test_what_was_sent_after_t_less_the_way_is_not_in_the_sample(
    books: Books, sent_s: float, delay_s: float, extra: int
) -> None:
    books.send("r1", sent_s)
    books.sample(delay_s=delay_s)
    assert (books.extra, books.load("a").requests_unseen) == (extra, extra)


@pytest.mark.parametrize(
    ("sent_s", "closed_s", "delay_s", "extra"),
    [
        (9.0, 9.9, 0.0, 0),
        (9.0, 10.0, 0.0, 0),
        (9.0, 10.1, 0.0, -1),
        (9.0, 10.5, 0.5, 0),
        (9.0, 10.51, 0.5, -1),
        (10.1, 10.9, 0.0, 0),
        (9.6, 10.9, 0.5, 0),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_was_in_the_sample_and_closed_after_t_and_the_way_is_gone(
    books: Books, sent_s: float, closed_s: float, delay_s: float, extra: int, late: bool
) -> None:
    """Whether its end or the sample is told first: the way back of an end counts, too."""
    books.send("r1", sent_s)
    if not late:
        books.close("r1", closed_s)
    books.sample(delay_s=delay_s)
    if late:
        books.close("r1", closed_s)
    assert books.extra == extra
    books.sample(closed_s + delay_s, delay_s=delay_s)
    assert books.extra == 0


def test_a_request_weighs_its_sequences(books: Books) -> None:
    books.send("r1", 9.0, sequences=4)
    books.send("r2", 11.0, sequences=3)
    assert books.load("a").sequences_open == books.extra == 7
    books.sample()
    assert (books.extra, books.load("a").requests_unseen) == (3, 1)
    books.close("r1", 12.0)
    assert books.extra == 3 - 4


@pytest.mark.parametrize(
    ("first_s", "pending", "delay_s", "tokens", "others"),
    [
        (None, 1, 0.0, 100, 0),  # not begun: the one that the sample calls pending
        (None, 0, 0.0, 0, 0),  # begun, and we were not told
        (9.9, 1, 0.0, 0, 1),  # begun before t: the one in the sample is another's
        (10.1, 1, 0.0, 0, 0),  # begun since
        (10.4, 1, 0.5, 0, 1),  # told after t, begun before
        (10.6, 1, 0.5, 0, 0),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_first_token_before_t_proves_a_pending_one_anothers_and_one_after_t_ends_its_own(
    books: Books, first_s: float | None, pending: int, delay_s: float, tokens: int, others: int, late: bool
) -> None:
    books.send("r1", 9.0)
    late = late and first_s is not None and first_s > 10.0 + delay_s
    if first_s is not None and not late:
        books.first_token("r1", first_s)
    books.sample(pending=pending, delay_s=delay_s)
    if first_s is not None and late:
        books.first_token("r1", first_s)
    assert (books.tokens, books.others) == (tokens, others)


def test_what_the_sample_does_not_show_is_pending_until_its_first_token(books: Books) -> None:
    books.sample()
    books.send("r1", 11.0, tokens=700)
    assert books.tokens == 700
    assert books.first_token("r1", 12.0) is not None
    assert books.first_token("r1", 13.0) is None, "the first only"
    assert books.first_token("never sent", 13.0) is None
    assert (books.tokens, books.extra) == (0, 1), "it decodes"


def test_pending_ones_are_the_newest_because_engines_serve_first_come_first(books: Books) -> None:
    for number, tokens in enumerate((1, 20, 300, 4000), start=1):
        books.send(f"r{number}", 5.0 + number, tokens)
    for pending, expected in ((0, 0), (1, 4000), (2, 4300), (3, 4320), (4, 4321)):
        books.sample(10.0 + pending, pending)
        assert (books.tokens, books.others) == (expected, 0)
    books.sample(15.0, 7)
    assert (books.tokens, books.others) == (4321, 3), "more than ours are others'"


def test_a_pending_request_of_several_answers_is_as_many(books: Books) -> None:
    books.send("r1", 8.0, tokens=5, sequences=2)
    books.send("r2", 9.0, tokens=70, sequences=4)
    books.sample(pending=4)
    assert (books.tokens, books.others) == (70, 0)
    books.sample(pending=5)
    assert (books.tokens, books.others) == (75, 0), "some of its answers have begun: it counts whole, and nobody's else"


def test_a_request_that_was_aborted_while_pending_is_not_anothers_work(books: Books) -> None:
    """The sample still shows it. Left unmatched, it would count as a prompt of mean length."""
    books.send("r1", 8.0, tokens=500)
    books.send("r2", 9.0, tokens=70)
    books.close("r2", 10.2)
    books.sample(pending=2)
    assert (books.tokens, books.others, books.extra) == (500, 0, -1)
    books.close("r1", 10.3)
    assert (books.tokens, books.others, books.extra) == (0, 0, -2)


def test_what_ended_before_the_sample_does_not_stand_for_a_pending_one(books: Books) -> None:
    books.send("r1", 8.0)
    books.close("r1", 9.0)
    books.sample(pending=1)
    assert (books.tokens, books.others) == (0, 1)


def test_kv_blocks_of_later_requests_are_taken_and_those_of_later_ends_free(books: Books) -> None:
    books.send("r1", 8.0, kv_blocks=30)
    books.send("r2", 9.0, kv_blocks=7)
    books.close("r2", 9.5)
    books.send("r3", 11.0, kv_blocks=100)
    books.close("r1", 12.0)
    books.sample()
    assert books.load("a").kv_blocks_unseen == 100 - 30
    books.close("r3", 13.0)
    assert books.load("a").kv_blocks_unseen == -30
    books.sample(12.5)
    assert books.load("a").kv_blocks_unseen == -100
    books.sample(13.0)
    assert books.load("a").kv_blocks_unseen == 0


def test_a_better_count_moves_what_it_is_part_of_and_nothing_else(books: Books) -> None:
    for number, at_s in ((1, 7.0), (2, 8.0), (3, 11.0)):
        books.send(f"r{number}", at_s)
    books.sample(pending=1)
    for number, expected in ((1, (200, 10)), (2, (600, 10)), (3, (1000, 50))):
        books.resize(f"r{number}", kv_blocks=50, uncached_tokens=500)
        assert (books.tokens, books.load("a").kv_blocks_unseen) == expected
