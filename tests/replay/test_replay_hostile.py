import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.cost import STRATEGIES
from extproc.replay.other import Other
from tests.journaled import FLEET, LIVES, Call, routes, write
from tests.replay.replaying import command, edited, replayed

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["a", "r1", 0, -1, 2**63, 1e308, 1e12]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def _mutated(line: bytes, data: st.DataObject) -> bytes:
    """One value of a line replaced or left out, some bytes changed, or all of it."""
    match data.draw(st.sampled_from(["value", "value", "gone", "bytes", "whole"])):
        case "value" | "gone" as kind:
            content = json.loads(line)
            places = [place for place in _places(content) if place]
            *way, last = data.draw(st.sampled_from(places))
            inner = content
            for key in way:
                inner = inner[key]
            if kind == "gone":
                del inner[last]
            else:
                inner[last] = data.draw(JSON)
            return json.dumps(content).encode()
        case "bytes":
            at = data.draw(st.integers(0, len(line)))
            return line[:at] + data.draw(st.binary(max_size=4)) + line[at + data.draw(st.integers(0, 4)) :]
        case _:
            return data.draw(st.binary(max_size=20))


@given(LIVES, st.data())
def test_no_journal_makes_a_replay_raise(
    tmp_path_factory: pytest.TempPathFactory, life: list[Call], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    write(path, FLEET + life + routes(2))
    lines = path.read_bytes().splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["change", "change", "change", "drop", "repeat", "swap"])):
            case "change":
                try:
                    lines[at] = _mutated(lines[at], data)
                except ValueError:
                    lines[at] = b""  # it was no JSON any more
            case "drop" if len(lines) > 1:
                del lines[at]
            case "repeat":
                lines.insert(data.draw(st.integers(0, len(lines))), lines[at])
            case _:
                with_that = data.draw(st.integers(0, len(lines) - 1))
                lines[at], lines[with_that] = lines[with_that], lines[at]
    path.write_bytes(b"\n".join(lines))
    other = data.draw(st.none() | st.sampled_from(sorted(STRATEGIES)).map(Other))
    found = replayed(path, other)
    counted = found.identical + found.different + sum(found.not_compared.values())
    assert counted == found.decisions
    result = command(path)
    assert result.exit_code in (0, 1)
    assert "\x1b" not in result.stdout
    json.loads(command(path, "--json").stdout)


@given(st.binary(max_size=300))
def test_no_file_makes_a_replay_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    path.write_bytes(content)
    assert replayed(path).decisions == 0


def test_hostile_names_do_not_reach_the_terminal_as_they_are(path: Path) -> None:
    write(path, FLEET + routes(1))

    def edit(line: dict[str, Any]) -> None:
        line["request"]["request_id"] = "[red]\x1b[2Jx"
        line["decided"]["chosen"]["node_id"] = "\x1b]0;x\x07"

    edited(path, "route", edit)
    for text in (command(path, "--strategy", "random").stdout, command(path).stdout):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "[red]\\x1b[2Jx" in text
