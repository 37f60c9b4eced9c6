"""What nodes told of their caches, in a journal: the same decisions come of it again."""

from pathlib import Path

import pytest

from tests.core.fleet import MODEL
from tests.journaled import FLEET, Call, routes, write
from tests.replay.replaying import Edit, edited, replayed

CHAIN = tuple(2**64 - 1 - place for place in range(20))
TOLD: list[Call] = [
    ("kv_blocks", {"node_id": "b", "boot_id": "boot-1", "everything": True, "stored": CHAIN, "removed": ()}),
    ("kv_blocks", {"node_id": "b", "boot_id": "boot-1", "everything": False, "stored": (), "removed": CHAIN[10:]}),
]
ASKED = routes(3, chain=(0, 20, 0))


def test_decisions_by_what_nodes_told_come_out_the_same(path: Path) -> None:
    decisions = write(path, FLEET + TOLD + ASKED)
    assert [one.uncached_tokens for one in decisions] == [500 - 160, *[one.uncached_tokens for one in decisions[1:]]]
    found = replayed(path)
    assert (found.identical, found.different, found.damaged) == (3, 0, 0)
    assert decisions[0].model == MODEL


def test_without_what_they_told_they_do_not(path: Path) -> None:
    write(path, FLEET + TOLD + ASKED)
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b'"kv_blocks"' not in line))
    assert replayed(path).different > 0


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda line: line.update(stored="AAAA"), ": stored (bytes beyond a multiple of 8): wanted 0..0, got 3"),
        (lambda line: line.update(removed="AAAA"), ": removed (bytes beyond a multiple of 8): wanted 0..0, got 3"),
        (lambda line: line.update(node_id=""), ": node_id (length): wanted 1..256, got 0"),
        (lambda line: line.update(boot_id="b" * 300), ": boot_id (length): wanted 1..256, got 300"),
    ],
)
def test_a_damaged_line_is_told_by_its_number(path: Path, edit: Edit, fault: str) -> None:
    write(path, FLEET + TOLD + ASKED)
    number = edited(path, "kv_blocks", edit)
    (damage,) = replayed(path).damage
    assert str(damage) == f"extproc.journal:{number}{fault}"
