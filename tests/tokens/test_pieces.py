from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.tokens.pieces import ENTRY_BYTES, PIECES_MAX, KnownPieces, cut

MARK = "<|im_start|>"
TEXTS = st.lists(st.sampled_from([MARK, "a", "user\nhi", "<|im_", "start|>", "é", ""])).map("".join)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("plain", ["plain"]),
        (MARK, [MARK]),
        (f"{MARK}a{MARK}b", [f"{MARK}a", f"{MARK}b"]),
        (f"<s>{MARK}a", ["<s>", f"{MARK}a"]),
        (f"{MARK}{MARK}", [MARK, MARK]),
        ("<|im_<|im_start|>start|>", ["<|im_", f"{MARK}start|>"]),
    ],
)
def test_a_text_is_cut_before_each_boundary(text: str, pieces: list[str]) -> None:
    assert cut(text, MARK) == pieces


@given(text=TEXTS)
def test_pieces_are_the_whole_text_and_hold_one_boundary_each(text: str) -> None:
    pieces = cut(text, MARK)
    assert "".join(pieces) == text
    assert all(piece.count(MARK) == 1 for piece in pieces[1:])
    assert all(pieces)


def test_behind_a_number_of_boundaries_is_one_piece() -> None:
    """Else one prompt of control tokens would push out everybody's counts."""
    pieces = cut(f"{MARK}a" * (PIECES_MAX + 5), MARK)
    assert len(pieces) == PIECES_MAX
    assert pieces[-1] == f"{MARK}a" * 6


def test_without_a_boundary_a_text_is_one_piece() -> None:
    assert cut(f"{MARK}a{MARK}b", None) == [f"{MARK}a{MARK}b"]


def test_known_pieces_are_added_up_and_the_others_are_left_to_encode() -> None:
    known = KnownPieces(10 * ENTRY_BYTES)
    first = known.look_up(["a", "é", "a"], seed=1)
    assert (first.pieces, first.known_tokens, first.new_bytes) == (["a", "é", "a"], 0, 4)
    known.keep(first.keys, [5, 7, 5])
    second = known.look_up(["a", "new", "é", "a"], seed=1)
    assert (second.pieces, second.known_tokens, second.new_bytes) == (["new"], 17, 3)


def test_another_seed_knows_nothing() -> None:
    known = KnownPieces(10 * ENTRY_BYTES)
    known.keep(known.look_up(["a"], seed=1).keys, [5])
    assert known.look_up(["a"], seed=2).known_tokens == 0


@pytest.mark.parametrize("bytes_max", [0, ENTRY_BYTES - 1])
def test_no_room_keeps_nothing(bytes_max: int) -> None:
    known = KnownPieces(bytes_max)
    known.keep(known.look_up(["a"], seed=1).keys, [5])
    assert known.bytes_held == 0
    assert known.look_up(["a"], seed=1).known_tokens == 0


def test_lone_surrogates_have_no_bytes_to_hash() -> None:
    with pytest.raises(UnicodeEncodeError):
        KnownPieces(ENTRY_BYTES).look_up(["\ud800"], seed=1)


class LeastRecentlyUsed(RuleBasedStateMachine):
    """The counts beside the plainest model of them, with room for four."""

    def __init__(self) -> None:
        super().__init__()
        self.known = KnownPieces(4 * ENTRY_BYTES + 1)
        self.model: OrderedDict[str, int] = OrderedDict()

    @rule(pieces=st.lists(st.sampled_from("abcdefgh"), max_size=6))
    def counts(self, pieces: list[str]) -> None:
        found = self.known.look_up(pieces, seed=7)
        new = [piece for piece in pieces if piece not in self.model]
        assert found.pieces == new
        assert found.known_tokens == sum(self.model[piece] for piece in pieces if piece in self.model)
        for piece in pieces:
            if piece in self.model:
                self.model.move_to_end(piece)
        self.known.keep(found.keys, [ord(piece) for piece in found.pieces])
        for piece in new:
            self.model[piece] = ord(piece)
            self.model.move_to_end(piece)
        while len(self.model) > 4:
            self.model.popitem(last=False)

    @invariant()
    def bounded(self) -> None:
        assert self.known.bytes_held == len(self.model) * ENTRY_BYTES <= 4 * ENTRY_BYTES


TestLeastRecentlyUsed = LeastRecentlyUsed.TestCase
