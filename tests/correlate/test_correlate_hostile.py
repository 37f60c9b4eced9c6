import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.correlate.recorded import command
from tests.journaled import FLEET, LIVES, Call, routes, write
from tests.replay.replaying import edited
from tests.replay.test_replay_hostile import _mutated


def _no_constant(name: str) -> None:
    raise AssertionError(name)


@given(LIVES, st.data())
def test_no_journal_makes_it_raise(
    tmp_path_factory: pytest.TempPathFactory, life: list[Call], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("correlate") / "j"
    first: Call = ("first_token", {"which": 0})
    write(path, FLEET + life + routes(1) + routes(1)[:1] + [first])
    lines = path.read_bytes().splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        try:
            lines[at] = _mutated(lines[at], data)
        except ValueError:
            lines[at] = b""  # it was no JSON any more
    path.write_bytes(b"\n".join(lines))
    result = command(path)
    assert result.exit_code in (0, 1)
    assert "\x1b" not in result.output
    if result.exit_code == 0:
        json.loads(command(path, "--json").stdout, parse_constant=_no_constant)


def test_names_of_nodes_and_models_do_not_reach_the_terminal_as_they_are(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("correlate") / "j"
    write(path, [FLEET[0], *routes(1)[:1]])

    def report(line: dict[str, Any]) -> None:
        line["snapshot"]["node_id"] = "[red]\x1b]0;x\x07"

    def route(line: dict[str, Any]) -> None:
        line["decided"]["chosen"]["node_id"] = "[red]\x1b]0;x\x07"

    edited(path, "reported", report)
    edited(path, "route", route)
    for text in (command(path).output, command(path, "--node", "b").output):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert r"'[red]\x1b]0;x\x07'" in text
