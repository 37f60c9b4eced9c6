"""What other routers told, in a journal: the same decisions come of it again."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from extproc.core.peershares import COUNT_MAX, SHARE_BOUNDS, NodeShare, PeerTold, Word
from extproc.core.sharing import NODES_TOLD_MAX
from extproc.exchange import wire
from extproc.journal.balancer import close
from extproc.journal.lines import FORMAT
from extproc.replay.bounds import ID_CHARS_MAX
from extproc.replay.other import Other
from extproc.tokens.blocks import PROMPT_BLOCKS_MAX
from tests.journal.writing import NOW_S
from tests.journaled import FLEET, Call, journaled, routes, write
from tests.replay.replaying import Edit, edited, replayed

HEAVY = (0, 9, 9, 9, 0, 0, 0, 0, 0, 9000, 9000, 9000)
"""Nine requests, with much to compute."""
CHAIN = tuple(2**64 - 1 - place for place in range(5))
TOLD: list[Call] = [
    (
        "peer",
        {
            "router": "p",
            "sequence": 1,
            "age_s": 0.0,
            "everything": True,
            "shares": [("a", 0.001, HEAVY), ("b", 0.001, HEAVY)],
        },
    ),
]
PLACED: list[Call] = [("placed", {"node_id": "b", "blocks": CHAIN, "computed": True})]
TOO_LONG = b64encode(bytes(8 * (PROMPT_BLOCKS_MAX + 1))).decode()
LEFT: list[Call] = [("peer_left", {"router": "p"})]
ASKED = routes(3)


def without(path: Path, call: bytes) -> None:
    """Take lines out of a journal."""
    kept = [line for line in path.read_bytes().splitlines(True) if not line.startswith(b'{"call":"' + call + b'"')]
    path.write_bytes(b"".join(kept))


@pytest.mark.parametrize(("told", "call"), [(TOLD, b"peer"), (PLACED, b"placed")], ids=["loads", "prompts"])
def test_decisions_by_what_others_told_come_out_the_same_and_not_without_it(
    path: Path, told: list[Call], call: bytes
) -> None:
    write(path, FLEET + told + ASKED)
    found = replayed(path)
    assert (found.identical, found.different, found.damaged) == (3, 0, 0)
    without(path, call)
    assert replayed(path).different > 0


def test_a_router_that_left_counts_no_more(path: Path) -> None:
    write(path, FLEET + TOLD + LEFT + ASKED)
    assert replayed(path).identical == 3
    without(path, b"peer_left")
    assert replayed(path).different > 0


def test_another_strategy_decides_by_the_same_words(path: Path) -> None:
    """What the others would have done by it nobody knows: they did what they did."""
    write(path, FLEET + TOLD + ASKED)
    found = replayed(path, Other("least-inflight"))
    assert (found.identical, found.damaged) == (3, 0)
    assert found.comparison is not None
    assert found.comparison.decisions == 3


@pytest.mark.parametrize(
    ("call", "edit", "fault"),
    [
        ("peer", lambda line: line.update(router=""), ": router (length): wanted 1..256, got 0"),
        ("peer", lambda line: line.update(sequence=-1), ": sequence: wanted 0..1.84467e+19, got -1"),
        ("peer", lambda line: line.update(made_at_s=2e12), ": made_at_s: wanted -1e+12..1e+12, got 2000000000000.0"),
        (
            "peer",
            lambda line: line["shares"][0].__setitem__(0, ""),
            ": shares.0.node_id (length): wanted 1..256, got 0",
        ),
        ("peer", lambda line: line["shares"][1].__setitem__(1, -2e12), ": shares.1.seen_until_s: wanted -1e+12..1e+12"),
        (
            "peer",
            lambda line: line["shares"][0].__setitem__(2, -1),
            ": shares.0.requests_held: wanted 0..1e+09, got -1",
        ),
        ("peer", lambda line: line["shares"][0].__setitem__(7, -(2**60)), ": shares.0.kv_blocks_unseen: wanted -1e+09"),
        (
            "peer",
            lambda line: line["shares"][0].__setitem__(13, 10**18),
            ": shares.0.sent_tokens: wanted 0..9.0072e+15",
        ),
        ("peer", lambda line: line["shares"][0].__setitem__(3, "x"), ": shares[0][3]: wanted `int`, got `str`"),
        (
            "peer",
            lambda line: line.update(shares=line["shares"] * (NODES_TOLD_MAX // 2 + 1)),
            f": shares (length): wanted 0..{NODES_TOLD_MAX}, got {NODES_TOLD_MAX + 2}",
        ),
        ("placed", lambda line: line.update(node_id="n" * 257), ": node_id (length): wanted 1..256, got 257"),
        (
            "placed",
            lambda line: line.update(blocks="AAAA"),
            ": blocks (bytes beyond a multiple of 8): wanted 0..0, got 3",
        ),
        ("placed", lambda line: line.update(blocks=TOO_LONG), ": blocks (length): wanted 0..4096, got 4097"),
        ("peer_left", lambda line: line.update(router="r" * 257), ": router (length): wanted 1..256, got 257"),
    ],
)
def test_a_damaged_line_is_told_by_its_number(path: Path, call: str, edit: Edit, fault: str) -> None:
    write(path, FLEET + TOLD + PLACED + LEFT + ASKED)
    number = edited(path, call, edit)
    (damage,) = replayed(path).damage
    assert str(damage).startswith(f"extproc.journal:{number}{fault}")


def test_the_most_and_the_least_that_a_word_may_say_can_be_read_again(path: Path) -> None:
    one = journaled(path)
    for which, sequence in ((0, 0), (1, 2**64 - 1)):
        numbers: dict[str, Any] = {name: bounds[which] for name, bounds in SHARE_BOUNDS.items()}
        names = [f"{place:0128d}" for place in range(NODES_TOLD_MAX)]
        word = Word(everything=True, shares=tuple(NodeShare(name, NOW_S, **numbers) for name in names))
        assert one.peer(PeerTold("p", sequence, NOW_S, word), NOW_S)
    close(one)
    found = replayed(path)
    assert (found.damage, found.lines_lost) == ((), 0)
    assert COUNT_MAX == 10**9


def test_journals_from_before_are_of_the_same_format() -> None:
    """Only kinds of lines were added, and a reader of before tells each of them as damaged."""
    assert FORMAT == 3


def test_whatever_the_bus_may_say_can_be_read_again() -> None:
    assert tuple(SHARE_BOUNDS) == NodeShare.__struct_fields__[2:], "messages are read by these names, in this order"
    assert wire.SHARES_MAX == NODES_TOLD_MAX
    assert max(wire.ROUTER_CHARS_MAX, wire.NODE_ID_CHARS_MAX) <= ID_CHARS_MAX
