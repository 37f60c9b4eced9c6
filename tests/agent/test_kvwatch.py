"""Whether all is known of an engine's prefix cache, by the numbers of its messages."""

from typing import Any

import pytest
from msgspec.msgpack import encode

from extproc.agent.kv.watch import ANEW_APART_S, KvWatch

NOW_S = 1000.0
CLEARED = ["AllBlocksCleared"]


def stored(number: int) -> list[Any]:
    return ["BlockStored", [number], None, [number] * 16, 16]


def removed(number: int) -> list[Any]:
    return ["BlockRemoved", [number]]


class Heard:
    """A watch, and what it heard."""

    def __init__(self, publishers: int = 1) -> None:
        self.watch = KvWatch(publishers, 1000)

    def take(
        self, sequence: int, *events: Any, publisher: int = 0, before: int | None = None, now_s: float = NOW_S
    ) -> None:
        self.watch.heard(publisher, sequence, encode([0.0, list(events), 0]), now_s, before)

    @property
    def blocks(self) -> int | None:
        """How many there are; `None`: not known."""
        return len(self.watch.blocks) if self.watch.known else None


def test_what_was_heard_from_the_first_message_on_is_known() -> None:
    heard = Heard()
    assert heard.blocks is None
    heard.take(0, stored(1), stored(2))
    heard.take(1, removed(1))
    assert heard.blocks == 1
    assert heard.watch.missing_before(0, 2) is None
    assert heard.watch.missing_before(0, 5) == 2


def test_who_comes_late_knows_nothing_until_all_is_cleared() -> None:
    heard = Heard()
    assert heard.watch.missing_before(0, 7) == 0
    heard.take(7, stored(1))
    assert not heard.watch.known
    assert heard.watch.counts.gaps == 1
    heard.take(8, stored(2), CLEARED, stored(3), CLEARED, stored(4), stored(5))
    assert heard.blocks == 2
    assert not heard.watch.blocks.cut()[1], "what was not known was not there"


def test_a_gap_ends_what_is_known() -> None:
    heard = Heard()
    heard.take(0, stored(1))
    heard.take(2, stored(2))
    assert not heard.watch.known
    heard.take(3, CLEARED)
    heard.take(4, stored(3))
    assert (heard.blocks, heard.watch.counts.gaps) == (1, 1)


def test_what_is_sent_again_closes_a_gap_and_counts_once() -> None:
    heard = Heard()
    heard.take(0, stored(1))
    assert heard.watch.missing_before(0, 3) == 1
    for sequence in (1, 2, 3, 4):
        heard.take(sequence, stored(10 + sequence), before=3)
    for sequence in (3, 4):
        assert heard.watch.missing_before(0, sequence) is None
        heard.take(sequence, stored(10 + sequence))
    heard.take(5, removed(13), removed(14))
    assert (heard.blocks, heard.watch.counts.gaps) == (3, 0)


def test_what_is_sent_again_in_part_only_closes_no_gap() -> None:
    heard = Heard()
    heard.take(0, stored(1))
    for sequence in (3, 4):
        heard.take(sequence, stored(sequence), before=4)
    heard.take(4, stored(4))
    assert (heard.blocks, heard.watch.counts.gaps) == (None, 1)


def test_numbers_that_begin_anew_are_another_engines() -> None:
    heard = Heard()
    for sequence in range(5):
        heard.take(sequence, stored(sequence))
    assert heard.watch.missing_before(0, 0) is None
    heard.take(0, stored(9))
    assert heard.blocks == 1
    heard.take(1, stored(8))
    assert heard.watch.missing_before(0, 0) is None
    assert heard.watch.missing_before(0, 1) == 0, "the next engine's first message is missing"
    heard.take(1, stored(7))
    assert heard.blocks is None


def test_an_engine_that_began_anew_has_nothing_and_is_noticed_once() -> None:
    heard = Heard(2)
    for publisher in (0, 1):
        heard.take(0, stored(1), publisher=publisher)
        heard.take(1, stored(2), publisher=publisher)
    heard.watch.began_anew(NOW_S)
    assert heard.blocks == 0
    heard.take(0, stored(1))
    heard.take(0, stored(1), publisher=1)
    heard.take(1, stored(3))
    assert heard.blocks == 2
    heard.take(0, stored(5), now_s=NOW_S + 100)
    heard.watch.began_anew(NOW_S + 100 + ANEW_APART_S)
    assert heard.blocks == 1, "the first publisher told it already, the other has nothing"
    heard.watch.began_anew(NOW_S + 101)
    assert heard.blocks == 0
    heard.take(0, stored(1), now_s=NOW_S + 200)
    heard.take(1, stored(1))
    heard.take(0, stored(1), now_s=NOW_S + 300)
    heard.watch.began_anew(NOW_S + 300.1 + ANEW_APART_S)
    assert heard.blocks == 0, "that was another time"


def test_an_engine_that_did_not_begin_anew_after_all_is_not_known() -> None:
    heard = Heard()
    heard.take(0, stored(1))
    heard.watch.began_anew(NOW_S)
    assert heard.watch.missing_before(0, 1) == 0
    heard.take(1, stored(2))
    assert heard.blocks is None


def test_an_engine_that_has_said_nothing_yet_has_nothing() -> None:
    heard = Heard()
    heard.watch.all_heard_again(0)
    assert heard.blocks == 0
    heard.take(0, stored(1))
    heard.watch.all_heard_again(0)
    assert heard.blocks == 1


def test_each_publisher_has_its_own_order() -> None:
    heard = Heard(2)
    heard.take(0, stored(1))
    assert heard.blocks is None, "nothing was heard of the other"
    heard.take(0, stored(1), publisher=1)
    heard.take(1, stored(2), publisher=1)
    heard.take(3, publisher=1)
    assert heard.blocks is None
    heard.take(4, CLEARED, publisher=1)
    assert heard.blocks == 1, "what the first one has was never in doubt"


@pytest.mark.parametrize(
    ("payload", "known"),
    [
        (b"\xc1", False),
        (encode([0.0, [["BlockRemoved", 7]], 0]), False),
        (encode([0.0, [["BlockStored", 7]], 0]), True),
        (encode([0.0, [["BlockMoved", 7]], 0]), True),
    ],
)
def test_what_may_have_been_a_removal_ends_what_is_known(payload: bytes, known: bool) -> None:
    heard = Heard()
    heard.take(0, stored(1))
    heard.watch.heard(0, 1, payload, NOW_S)
    assert heard.watch.known == known
    counts = heard.watch.counts
    assert counts.malformed + counts.left_out == 1
    heard.take(2, CLEARED, stored(2), stored(3))
    assert heard.blocks == 2


def test_a_report_has_what_changed_since_the_one_before() -> None:
    heard = Heard()
    assert not heard.watch.report("n", "b").known
    heard.take(0, stored(1), stored(2))
    one = heard.watch.report("n", "b")
    assert (one.known, len(one.stored), len(one.removed), set(one.everything)) == (True, 2, 0, set(one.stored))
    heard.take(1, removed(1), stored(3), removed(3))
    two = heard.watch.report("n", "b")
    assert (len(two.stored), set(two.removed) < set(one.stored), len(two.everything)) == (0, True, 1)
    heard.take(9)
    three = heard.watch.report("n", "b")
    assert (three.known, len(three.removed), three.everything) == (False, 1, ())
