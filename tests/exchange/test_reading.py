"""Messages with prompts, as others may have made them."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.core.peershares import PromptPlaced
from extproc.exchange import chains
from extproc.exchange.placements import CHECKED_AT_ONCE, PLACES_MAX, WrongPlacementsError, placements_of, prompts_of
from extproc.pb import exchange_pb2
from tests.exchange.reading import read


def block(*numbers: int) -> bytes:
    return chains.bytes_of(numbers)


def message(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"router": "r1", "node_ids": ["a"], "placements": [{"blocks": block(1), "sent": [0]}]}
    return exchange_pb2.Placements(**{**fields, **changes}).SerializeToString()


WHOLE = {"blocks": block(*range(4096)), "sent": [0]}
NAMES = [f"n{number}" for number in range(48)]
MANY = [f"n{number}" for number in range(4096)]


def wide(placements: int) -> list[dict[str, Any]]:
    """As many nodes as may be named, by so many placements."""
    each = PLACES_MAX // placements
    return [{"blocks": block(number), "sent": range(each)} for number in range(placements)]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (message(router="?"), "router: wanted"),
        (message(node_ids=["a", "b c"]), "node_ids.1: wanted"),
        (message(node_ids=["a"] * 4097), "node_ids: wanted at most 4096, got 4097"),
        (message(placements=[{"shared": 1}]), "placements.0.shared: wanted at most 0, got 1"),
        (message(placements=[{"blocks": block(1, 2)}, {"shared": 3}]), "placements.1.shared: wanted at most 2, got 3"),
        (message(placements=[{"blocks": block(*range(4097))}]), "placements.0: wanted at most 4096 blocks, got 4097"),
        (message(placements=[{"blocks": block(1), "computed": [1]}]), "placements.0: wanted places of 1 nodes, got 1"),
        (
            message(placements=[{"blocks": block(1), "sent": [0, 0]}]),
            "placements.0: wanted each node once, got '2 of 1",
        ),
        (
            message(placements=[{"blocks": block(1), "sent": [0], "computed": [0]}]),
            "placements.0: wanted each node once, got '2 of 1",
        ),
        (
            message(placements=[WHOLE] + [{"shared": 4096, "sent": [0]}] * 48),
            "placements: wanted at most 200000 blocks, at all nodes together, got 200704",
        ),
        (
            message(placements=[WHOLE, {"shared": 4096, "sent": range(48)}], node_ids=NAMES),
            "placements: wanted at most 200000 blocks, at all nodes together, got 200704",
        ),
        (
            message(placements=[WHOLE] + [{"shared": 4096}] * 48),
            "placements: wanted at most 200000 blocks, at all nodes together, got 200704",
        ),
        (
            message(placements=[*wide(4), {"blocks": block(1), "sent": [0]}], node_ids=MANY),
            "placements: wanted at most 16384 nodes, all together, got 16385",
        ),
        (
            message(placements=[{"sent": [0] * 200_000}]),
            "placements: wanted at most 16384 nodes, all together, got 2000",
        ),
        (message(placements=[{}] * (PLACES_MAX + 1)), "placements: wanted at most 16384, got 16385"),
        (message(placements=[{"blocks": bytes(9)}]), "placements.0.blocks: wanted 8 bytes each, got '9 bytes'"),
        (b"\x08", "message: wanted a Placements"),
        (bytes(MESSAGE_BYTES_MAX + 1), "message: wanted at most 262144 bytes, got 262145"),
    ],
)
def test_a_message_that_is_wrong_somewhere_is_refused_whole(wrong: bytes, reason: str) -> None:
    refusal = read(wrong)
    assert isinstance(refusal, str)
    assert refusal.startswith(reason)


def test_what_is_wrong_at_the_end_is_known_before_anything_is_given() -> None:
    found = placements_of(message(placements=[{"blocks": block(1), "sent": [0]}] * 2000 + [{"shared": 2}]))
    assert isinstance(found, exchange_pb2.Placements)
    given: list[PromptPlaced | None] = []
    with pytest.raises(WrongPlacementsError, match=r"placements\.2000\.shared: wanted at most 1, got 2"):
        given.extend(prompts_of(found))
    assert set(given) <= {None}


def test_bounds_themselves_are_taken() -> None:
    found = read(message(placements=[WHOLE] + [{"shared": 4096, "sent": [0]}] * 47))
    assert isinstance(found, tuple)
    assert (len(found[1]), len(found[1][-1].blocks)) == (48, 4096)
    found = read(message(placements=wide(4), node_ids=MANY))
    assert isinstance(found, tuple)
    assert len(found[1]) == PLACES_MAX
    assert read(message(placements=[{}] * PLACES_MAX)) == ("r1", [])


def test_placements_of_a_kind_to_come_are_passed_over() -> None:
    """They have no blocks, or no nodes in the fields of today; those behind them mean what they say."""
    told = [{"blocks": block(1, 2)}, {"shared": 1, "blocks": block(3), "sent": [0]}, {}, {"sent": [0]}]
    assert read(message(placements=[*told, {"blocks": block(9), "computed": [0]}])) == (
        "r1",
        [PromptPlaced("a", (1, 3), False), PromptPlaced("a", (9,), True)],
    )


sizes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 700)), min_size=1, max_size=12)


@given(sizes)
def test_others_have_a_turn_before_much_is_done(parts: list[tuple[int, int, int]]) -> None:
    """Whatever a message consists of: placements with or without blocks, with or without nodes."""
    placements: list[dict[str, Any]] = [
        {"blocks": block(*range(blocks)), "sent": range(nodes)} for blocks, nodes, times in parts for _ in range(times)
    ]
    found = placements_of(message(placements=placements, node_ids=NAMES))
    assert isinstance(found, exchange_pb2.Placements)
    work = [one is not None for one in prompts_of(found)]
    longest = max(len(list(run)) for given, run in itertools.groupby(work) if given) if any(work) else 0
    assert longest <= CHECKED_AT_ONCE * 4, "of those of which each tells of four nodes"
    assert work.count(False) >= 2 * (len(placements) // CHECKED_AT_ONCE), "once checked, once given"
