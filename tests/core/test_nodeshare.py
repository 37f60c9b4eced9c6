"""Our share of a node's load, as others are told of it."""

from extproc.core.nodeshare import Pending
from extproc.core.peershares import NodeShare
from tests.core.books import Books


def test_of_a_request_for_several_answers_no_more_is_claimed_than_the_sample_shows() -> None:
    """It asks for four, of which two have begun."""
    books = Books()
    books.send("r", 9.0, tokens=100, sequences=4)
    books.sample(10.0, pending=2)
    assert books.pending("a") == Pending(2, 2, 2, 100)
    share = books.share("a", 10.0)
    assert (share.prefills_claimed, share.prefills_shown, share.tokens_shown) == (2, 2, 100)


def test_what_has_begun_since_the_sample_is_claimed_and_not_shown() -> None:
    books = Books()
    for number in range(3):
        books.send(f"r{number}", 9.0 + number / 10, tokens=100)
    books.sample(10.0, pending=5)
    books.first_token("r1", 10.1)
    assert books.pending("a") == Pending(5, 3, 2, 200)


def test_a_node_of_which_nothing_is_known_has_nothing() -> None:
    books = Books()
    assert books.pending("a") == Pending(None)
    assert books.share("a", 10.0) == NodeShare("a")
    books.send("r", 9.0, tokens=100)
    assert books.pending("a") == Pending(None)
    assert books.share("a", 10.0).seen_until_s is None
