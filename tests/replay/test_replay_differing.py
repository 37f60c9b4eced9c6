import json
from pathlib import Path

import pytest

from extproc.replay.follow import Follower
from tests.journaled import FLEET, routes, write
from tests.replay.replaying import command, edited, replayed


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("uncached_tokens", 7, "uncached_tokens: wanted 7, got 500"),
        ("strategy", "lmetric", 'strategy: wanted "lmetric", got "least-added-delay"'),
        ("phase", "prefill-heavy", 'phase: wanted "prefill-heavy", got "decode"'),
        ("phase", None, 'phase: wanted nothing, got "decode"'),
        ("candidates", [["z", 0.5, None]], 'candidates: wanted [["z",0.5,null]], got [["'),
        ("chosen", {"node_id": "z", "host": "h", "reason": "r"}, 'chosen: wanted {"node_id":"z"'),
    ],
)
def test_a_decision_that_differs_is_told_by_its_parts(path: Path, part: str, value: object, told: str) -> None:
    write(path, FLEET + routes(1))
    number = edited(path, "route", lambda line: line["decided"].update({part: value}))
    result = command(path)
    assert result.exit_code == 1
    assert f"extproc.journal:{number}: r1: {told}" in result.stdout.replace("\n", "")
    found = json.loads(command(path, "--json").stdout)
    assert (found["different"], found["identical"], found["good"]) == (1, 0, False)
    (difference,) = found["differences"]
    assert (difference["where"], difference["request_id"]) == (f"extproc.journal:{number}", "r1")
    assert difference["got"]["chosen"]["node_id"] in "abc"
    assert difference["wanted"].get(part) == (value if part != "chosen" else {**value, "fallback": False, "others": []})  # type: ignore[dict-item]


def test_an_error_where_there_was_none_differs_and_one_again_does_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, FLEET + routes(2))
    edited(path, "route", lambda line: line.pop("decided"), 1)
    found = replayed(path)
    assert (found.different, found.identical) == (1, 1)
    assert found.differences[0].wanted is None
    monkeypatch.setattr(Follower, "follow", lambda *_: 1 / 0)
    found = replayed(path)
    assert (found.different, found.identical) == (1, 1)
    assert found.differences[0].got is None


def test_the_first_twenty_are_listed_and_all_are_counted(path: Path) -> None:
    write(path, FLEET + routes(30))
    for which in range(30):
        edited(path, "route", lambda line: line["decided"].update(uncached_tokens=7), which)
    found = replayed(path)
    assert (found.different, len(found.differences)) == (30, 20)
