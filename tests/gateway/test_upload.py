"""One request's body, against what all may fill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import ServeLimits
from extproc.gateway.budget import BodyBudget
from extproc.gateway.upload import Overflow, Upload

LIMITS = ServeLimits(body_bytes_max=2000, body_bytes_total_max=5000, body_claim_bytes_min=100)


def upload(budget: BodyBudget | None = None) -> Upload:
    return Upload(budget or BodyBudget(5000), LIMITS)


@pytest.mark.parametrize(
    ("amount", "reserved", "expected"),
    [
        (0, 5000, None),
        (99, 5000, None),
        (100, 4900, None),
        (100, 4901, Overflow.NO_ROOM),
        (2000, 0, None),
        (2001, 0, Overflow.TOO_LARGE),
        (10**18, 5000, Overflow.TOO_LARGE),
    ],
)
def test_an_announced_body_must_be_short_enough_and_a_long_one_find_room(
    amount: int, reserved: int, expected: Overflow | None
) -> None:
    budget = BodyBudget(5000)
    budget.bytes_held = reserved
    one = upload(budget)
    assert one.announced(amount) is expected
    assert budget.bytes_claimed == (amount if expected is None and amount >= 100 else 0)
    one.drop()
    assert budget.bytes_reserved == reserved


def test_pieces_are_one_body_and_take_their_share_until_it_is_dropped() -> None:
    budget = BodyBudget(5000)
    one = upload(budget)
    assert one.announced(150) is None
    for piece in (b"he", b"", b"ll", b"o"):
        assert one.add(piece) is None
    assert one.whole() == one.whole() == b"hello"
    assert (one.bytes_come, budget.bytes_held, budget.bytes_claimed) == (5, 5, 0)
    one.drop()
    one.drop()
    assert budget.bytes_reserved == 0
    assert one.bytes_come == 5, "how long it was is still known"


def test_no_piece_is_an_empty_body() -> None:
    assert upload().whole() == b""


def test_one_piece_is_not_copied() -> None:
    one = upload()
    piece = b"x" * 1000
    one.add(piece)
    assert one.whole() is piece


def test_bytes_that_are_not_needed_here_go_and_still_count() -> None:
    budget = BodyBudget(5000)
    one = upload(budget)
    one.add(b"x" * 1000)
    one.forget()
    assert one.whole() == b""
    assert (one.bytes_come, budget.bytes_held) == (1000, 1000)
    one.drop()
    assert budget.bytes_held == 0


@given(pieces=st.lists(st.binary(max_size=700), max_size=12), others=st.integers(0, 5000))
def test_a_body_is_taken_up_to_its_limit_and_to_what_others_leave(pieces: list[bytes], others: int) -> None:
    budget = BodyBudget(5000)
    budget.bytes_held = others
    one = upload(budget)
    come = b""
    for piece in pieces:
        overflow = one.add(piece)
        come += piece
        if len(come) > 2000:
            assert overflow is Overflow.TOO_LARGE
        elif len(come) > 5000 - others:
            assert overflow is Overflow.NO_ROOM
        else:
            assert overflow is None
        if overflow is not None:
            break
        assert (one.whole(), one.bytes_come, budget.bytes_held) == (come, len(come), others + len(come))
    one.drop()
    assert budget.bytes_held == others
    assert budget.bytes_claimed == 0
