import json
from pathlib import Path
from typing import Any

import pytest

from extproc.core.policy import RoutingPolicy
from extproc.journal.lines import BEGINNING, encode
from tests.journaled import FLEET, routes, write
from tests.replay.replaying import Edit, command, edited, replayed

HUGE = 10**400


@pytest.mark.parametrize(
    ("call", "edit", "fault"),
    [
        ("finish", lambda line: line.update(now_s="x"), ": now_s: wanted `float`, got `str`"),
        ("finish", lambda line: line.update(now_s=1e300), ": now_s: wanted -1e+12..1e+12, got 1e+300"),
        ("finish", lambda line: line.pop("request_id"), ": wanted a value for `request_id`, got none"),
        ("finish", lambda line: line.update(request_id="r" * 300), ": request_id (length): wanted 0..256, got 300"),
        (
            "finish",
            lambda line: line.update(further=1),
            ": wanted what a journal has there, got Object contains unknown field `further`",
        ),
        (
            "finish",
            lambda line: line.update(call="end"),
            ": call: wanted what a journal has there, got Invalid value 'end'",
        ),
        ("route", lambda line: line.update(policy=99), ": policy: wanted a number that a line before explains, got 99"),
        (
            "route",
            lambda line: line.update(blocks="AAAA"),
            ": blocks (bytes beyond a multiple of 8): wanted 0..0, got 3",
        ),
        (
            "route",
            lambda line: line.update(token_blocks="AAAA"),
            ": token_blocks (bytes beyond a multiple of 8): wanted 0..0, got 3",
        ),
        (
            "route",
            lambda line: line.update(blocks="?"),
            ": blocks: wanted what a journal has there, got Invalid base64 encoded string",
        ),
        ("route", lambda line: line["request"].update(sequences=0), ": request.sequences: wanted 1..1e+06, got 0"),
        (
            "route",
            lambda line: line["request"]["prompt"].update(tokens=HUGE),
            ": request.prompt.tokens: wanted 0..1e+12, got 1000",
        ),
        (
            "route",
            lambda line: line["request"].update(endpoint="x"),
            ": request.endpoint: wanted what a journal has there, got Invalid enum value 'x'",
        ),
        (
            "reported",
            lambda line: line.update(models=99),
            ": models: wanted a number that a line before explains, got 99",
        ),
        (
            "reported",
            lambda line: line["snapshot"].update(weight=-1),
            ": snapshot.weight: wanted 0..1e+06, got -1.0",
        ),
        ("reported", lambda line: line["snapshot"].update(kv_usage=1.5), ": snapshot.kv_usage: wanted 0..1, got 1.5"),
        (
            "reported",
            lambda line: line["snapshot"].update(node_id=""),
            ": snapshot.node_id: wanted 1..256 characters, got 0",
        ),
        ("reported", lambda line: line["snapshot"].update(host=None), ": snapshot.host: wanted `str`, got `null`"),
        (
            "reported",
            lambda line: line["snapshot"].update(state="?"),
            ": snapshot.state: wanted what a journal has there, got Invalid enum value '?'",
        ),
        ("policy", lambda line: line["policy"].update(strategy="x"), ": policy.strategy: wanted one of"),
        ("journal", lambda line: line.update(format=1), ": format: wanted 3, got 1, of extproc '"),
        (
            "journal",
            lambda line: line["settings"].update(retry_after_s=0),
            ": settings.retry_after_s: wanted greater than or equal to 1, got 0",
        ),
    ],
)
def test_a_damaged_line_is_told_by_its_number(path: Path, call: str, edit: Edit, fault: str) -> None:
    write(path, FLEET + routes(2))
    number = edited(path, call, edit)
    found = replayed(path)
    assert str(found.damage[0]).startswith(f"extproc.journal:{number}{fault}")
    assert found.damaged >= 1
    assert found.identical < 2
    assert command(path).exit_code == 1


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"\xff\xfe", "wanted a line of JSON, got JSON is malformed: invalid character (byte 0): b'\\xff\\xfe\\n'"),
        (b'{"format":2}', "wanted a value for `call`, got none"),
        (b"[" * 50_000, "wanted `object`, got `array`"),
        (b'{"call":"tick","now_s":1,"x":' + b"[" * 50_000, "wanted what a journal has there"),
        (b'{"call":"tick"', 'wanted a line of JSON, got Input data was truncated: b\'{"call":"tick"\\n\''),
        (b"x" * 2**20, "wanted at most 1048576 bytes, got more"),
        (b"x" * (5 * 2**20), "wanted at most 1048576 bytes, got more"),
    ],
)
def test_garbage_between_lines_is_told_by_its_number(path: Path, line: bytes, fault: str) -> None:
    write(path, FLEET + routes(2))
    lines = path.read_bytes().splitlines()
    lines.insert(3, line)
    path.write_bytes(b"\n".join(lines))
    found = replayed(path)
    assert found.damaged == 1
    assert str(found.damage[0]).startswith(f"extproc.journal:4: {fault}")
    assert found.not_compared == {"lines before it are damaged": 2}


def test_lines_before_the_first_head_cannot_be_used(path: Path) -> None:
    write(path, FLEET + routes(1))
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[1:]))
    found = replayed(path)
    assert found.decisions == 0
    assert (
        str(found.damage[0])
        == "extproc.journal:1: wanted the first line of a journal before it, got none that can be used"
    )


def with_head(path: Path, **changes: object) -> None:
    """A run more, with another first line."""
    write(path, FLEET + routes(2))
    content = path.read_bytes().splitlines()
    last = max(number for number, line in enumerate(content) if line.startswith(BEGINNING))
    content[last] = encode(json.loads(content[last]) | changes)
    path.write_bytes(b"\n".join(content) + b"\n")


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        ({"format": 1}, "format: wanted 3, got 1, of extproc '9.9'"),
        ({"format": 4, "new_field": 1, "settings": None}, "format: wanted 3, got 4, of extproc '9.9'"),
        ({"format": 2**63}, "format: wanted 3, got 9223372036854775808, of"),
        ({"settings": {"retry_after_s": 0}}, "settings.retry_after_s: wanted greater than or equal to 1, got 0"),
    ],
)
def test_what_follows_a_first_line_that_cannot_be_used_is_one_fault(
    path: Path, head: dict[str, Any], fault: str
) -> None:
    with_head(path, version="9.9", **head)
    with path.open("ab") as file:
        file.write(b'{"call":"of another format"}\n')
    only = replayed(path)
    assert (only.damaged, only.unread, only.cut, only.decisions) == (1, only.lines - 1, 0, 0)
    (told,) = only.damage
    assert str(told).startswith(f"extproc.journal:1: {fault}")
    assert only.unproven == "no decision could be read"
    assert "lines not read" in command(path).stdout
    write(path, FLEET + routes(3))
    before_and_after = replayed(path)
    assert (before_and_after.damage, before_and_after.identical) == ((told,), 3)
    assert not before_and_after.good


def test_a_run_of_another_format_behind_one_of_ours_takes_nothing_from_it(path: Path) -> None:
    write(path, FLEET + routes(3))
    path.write_bytes(path.read_bytes()[:-30])
    with_head(path, format=4, new_field=1)
    found = replayed(path)
    assert (found.identical, found.different, found.not_compared) == (3, 0, {})
    assert (found.damaged, found.cut) == (1, 1)


def test_what_is_no_journal_at_all_is_one_fault(path: Path) -> None:
    path.write_text("# A heading\n\nand some text\n[1]\n")
    found = replayed(path)
    assert (found.damaged, found.unread, found.cut) == (1, 2, 0)
    assert str(found.damage[0]).startswith("extproc.journal:1: wanted a line of JSON, got ")
    assert not found.good


def test_what_breaks_a_rule_of_the_core_is_damage(path: Path) -> None:
    write(path, FLEET + routes(1))
    edited(path, "journal", lambda line: line.update(started_s=-1e12))
    lines = path.read_bytes().splitlines()
    route = next(line for line in lines if b'"route"' in line)
    path.write_bytes(b"\n".join([*lines, route, b'{"call":"tick","now_s":6000}']))
    found = replayed(path)
    assert (found.identical, found.different, found.damaged) == (1, 0, 1)


def test_an_id_that_is_open_already_is_the_journals_fault(path: Path) -> None:
    calls = [call for call in routes(6) if call[0] == "route"]
    write(path, FLEET + calls)
    for which in range(6):
        edited(path, "route", lambda line: line["request"].update(request_id="same"), which)
    found = replayed(path)
    assert (found.identical, found.different, found.damaged) == (1, 0, 5)
    assert all(
        str(one).endswith(": request.request_id: wanted the id of no request that is open, got 'same'")
        for one in found.damage
    )


def test_an_id_may_come_again_once_its_request_is_over_or_where_it_went_nowhere(path: Path) -> None:
    refused = ("route", {"tokens": 500, "chain": (0, 5, 1), "policy": RoutingPolicy(), "model": "nobody's"})
    write(path, [*FLEET, refused, refused, *routes(4)])
    for which in range(3):
        edited(path, "route", lambda line: line["request"].update(request_id="r1"), which)
    found = replayed(path)
    assert (found.decisions, found.damaged) == (6, 0)


@pytest.mark.parametrize("call", ["reported", "route", "finish", "tick"])
def test_time_that_goes_back_is_the_journals_fault_once(path: Path, call: str) -> None:
    write(path, [*FLEET, *routes(3), ("tick", {}), *FLEET, *routes(3), ("tick", {}), *routes(1)])
    number = edited(path, call, lambda line: line.update(now_s=line["now_s"] - 7), 1)
    found = replayed(path)
    assert (found.different, found.damaged) == (0, 1)
    assert str(found.damage[0]).startswith(f"extproc.journal:{number}: now_s: wanted no time before 50")


def test_a_time_far_ahead_is_told_at_the_line_behind_it(path: Path) -> None:
    write(path, FLEET + routes(6))
    number = edited(path, "route", lambda line: line.update(now_s=1e9), 2)
    found = replayed(path)
    assert found.damaged == 1
    assert str(found.damage[0]).startswith(f"extproc.journal:{number + 1}: now_s: wanted no time before 1000000000.0")
