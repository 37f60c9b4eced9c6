"""Lines about requests that waited, where some are wrong or missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extproc.replay.other import Other
from tests.journaled import FLEET, FULL, Call, asks, write
from tests.replay.replaying import Edit, command, edited, replayed
from tests.replay.sessions import ADMIT, CROWD, HOUR, SESSION

FAULTS: list[Any] = [
    (
        "route",
        lambda line: line["decided"]["queued"].update(until_s=1e11),
        ": decided.queued.until_s: wanted 5060.02..8",
    ),
    (
        "route",
        lambda line: line["decided"]["queued"].update(until_s=0.0),
        ": decided.queued.until_s: wanted 5060.02..8",
    ),
    ("route", lambda line: line["decided"]["queued"].update(until_s="x"), ": decided.queued.until_s: wanted `float`"),
    ("route", lambda line: line["decided"].update(model="m" * 300), ": decided.model (length): wanted 0..256, got 300"),
    (
        "route",
        lambda line: line["request"].update(tenant="t" * 300),
        ": request.tenant (length): wanted 0..256, got 300",
    ),
    (
        "route",
        lambda line: line["request"].update(priority="p" * 300),
        ": request.priority (length): wanted 0..256, got",
    ),
    ("route", lambda line: line["request"].update(body_bytes=-1), ": request.body_bytes: wanted 0..1.1259e+15, got -1"),
    (
        "recount",
        lambda line: line["request"].update(tenant="x"),
        ": request.tenant: wanted the one that waits, got 'x'",
    ),
    ("admit", lambda line: line.update(request_id="x"), ": request_id: wanted the id of one that waits, got 'x'"),
    ("admit", lambda line: line.update(request_id="r3"), ": request_id: wanted the id of one that waits, got 'r3'"),
    ("admit", lambda line: line.update(left=5), ": left: wanted 0, one less than in the line before, got 5"),
    ("admit", lambda line: line.update(left=-1), ": left: wanted 0..1000, got -1"),
    ("admit", lambda line: line.update(left=1001), ": left: wanted 0..1000, got 1001"),
    ("admit", lambda line: line.update(now_s=line["now_s"] + 1), ": now_s: wanted 5060"),
    ("admit", lambda line: line.pop("decided"), ": wanted a value for `decided`, got none"),
    (
        "admit",
        lambda line: line["decided"].update(queued={"reason": "", "until_s": 6000.0}),
        ": decided: wanted the end of its waiting, got that it waits",
    ),
    ("drain", lambda line: line.update(request_id="r2"), ": request_id: wanted the id of one that waits, got 'r2'"),
    (
        "answered",
        lambda line: line["answered"].update(used_tokens=-1),
        ": answered.used_tokens: wanted 0..1e+12, got -1",
    ),
    ("journal", lambda line: line["settings"]["classes"].clear(), ": settings.classes: wanted Dictionary should have"),
]


@pytest.mark.parametrize(("call", "edit", "fault"), FAULTS)
def test_a_hostile_line_about_waiting_is_damage(path: Path, call: str, edit: Edit, fault: str) -> None:
    answered = ("answered", {"which": 0, "ending": "served", "host": None, "model": None, "over": False})
    life: list[Call] = [*FULL, *asks(3), ("recount", {"which": 0, "tokens": 7}), *FLEET, ADMIT, *FULL, answered]
    write(path, [*life, *asks(1), ("drain", {})])
    number = edited(path, call, edit, 2 if call == "admit" and "r3" not in fault else 0)
    if "'r3'" in fault:  # it goes twice
        number = edited(path, call, lambda _: None, 2)
    found = replayed(path)
    assert str(found.damage[0]).startswith(f"extproc.journal:{number}{fault}")
    assert found.identical + found.different + sum(found.not_compared.values()) == found.decisions
    assert command(path, "--strategy", "random").exit_code == 1


def test_another_call_among_the_lines_of_one_is_damage(path: Path) -> None:
    write(path, [*CROWD, *FLEET, ADMIT])
    lines = path.read_bytes().splitlines()
    lines.insert(-3, b'{"call":"tick","now_s":5061}')
    path.write_bytes(b"\n".join(lines))
    found = replayed(path)
    assert str(found.damage[0]).endswith(": wanted the rest of the call before, got another call")
    assert found.different == 0


def lost(path: Path, is_lost: Callable[[dict[str, Any]], bool]) -> None:
    """Lines could not be written."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    kept = [{"call": "lost", "lines": 1} if is_lost(line) else line for line in lines]
    path.write_text("\n".join(json.dumps(line) for line in kept))


@pytest.mark.parametrize("which", ["r1", "r2", "r7"])
def test_who_is_not_known_to_wait_is_no_damage_where_lines_are_missing(path: Path, which: str) -> None:
    decisions = write(path, [*CROWD, *FLEET, ADMIT, ADMIT, *CROWD, *FLEET, ADMIT])
    lost(path, lambda line: line["call"] == "route" and line["request"]["request_id"] == which)
    for other in (None, Other("random")):
        found = replayed(path, other)
        assert (found.damaged, found.different, found.decisions) == (0, 0, len(decisions) - 1)


def test_whose_end_is_missing_holds_nobody_up_for_ever(path: Path) -> None:
    tick: Call = ("tick", {})
    write(path, [*FULL, *asks(2), ("finish", {"which": 1}), *HOUR, tick, *FLEET, *asks(20)])
    lost(path, lambda line: line["call"] == "finish")
    comparison = replayed(path, Other("least-added-delay")).comparison
    assert comparison is not None
    assert comparison.same_node == comparison.decisions == 23


def test_without_its_beginning_those_who_waited_then_are_no_damage(path: Path) -> None:
    write(path, SESSION * 6, file_bytes_max=10_000, files_max=3)
    found = replayed(path, Other("random"))
    assert found.not_compared == {"the beginning of its run is gone": found.decisions}
    assert found.damaged == 0


def test_who_waits_is_open(path: Path) -> None:
    write(path, [*FULL, *asks(2)])
    edited(path, "route", lambda line: line["request"].update(request_id="r1"), 1)
    found = replayed(path)
    assert str(found.damage[0]).endswith(": request.request_id: wanted the id of no request that is open, got 'r1'")
