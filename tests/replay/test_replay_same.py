import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.journal.balancer import close
from tests.journaled import FLEET, LIVES, NODES, POLICIES, Call, journaled, live, routes, write
from tests.replay.replaying import LONG, WAIT, followers, replayed, state_of


@given(LIVES)
def test_every_decision_comes_out_the_same(tmp_path_factory: pytest.TempPathFactory, life: list[Call]) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    decisions = len(write(path, FLEET + life))
    found = replayed(path)
    assert (found.decisions, found.identical, found.damaged, found.lines_lost) == (decisions, decisions, 0, 0)
    assert found.good is (decisions > 0)


@given(LIVES, st.integers(1500, 4000))
def test_the_same_through_rotation(
    tmp_path_factory: pytest.TempPathFactory, life: list[Call], file_bytes_max: int
) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    life = [*FLEET, *(call for one in life for call in (one, *WAIT)), *FLEET, *WAIT, *FLEET, *WAIT, *routes(3)]
    decisions = len(write(path, life, file_bytes_max=file_bytes_max, files_max=100))
    found = replayed(path)
    assert len(found.files) > 1
    assert found.runs == 1
    assert found.identical == decisions
    assert found.good, found


ROUTE: Call = routes(1)[0]
HOUR: Call = ("wait", {"seconds": 3600.0})
RESTART: list[Call] = [("report", {"node": node_id, "boot_id": "boot-2"}) for node_id in NODES]
CACHED: Call = ("route", {**ROUTE[1], "chain": (0, 40, 0)})


@example([ROUTE, ("leave", {"which": 0}), HOUR, ("tick", {}), *FLEET])
@example([CACHED, ("settle", {}), *RESTART, *WAIT, CACHED])
@example([CACHED, *RESTART, *WAIT, CACHED])
@given(LIVES)
def test_the_state_is_the_same_in_the_end(tmp_path_factory: pytest.TempPathFactory, life: list[Call]) -> None:
    """More than decisions show: what the balancer knows of each node. When it was settled makes no difference."""
    path = tmp_path_factory.mktemp("replay") / "j"
    one = journaled(path)
    live(one, FLEET + life)
    close(one)
    with followers() as made:
        replayed(path)
    (again,) = made
    assert state_of(again) == state_of(one)
    assert again.requests_open == one.requests_open
    assert again.decisions(100) == one.decisions(100)


def test_another_process_with_other_hashes_finds_the_same(path: Path) -> None:
    """Nothing may rest on the order of a set."""
    write(path, [*LONG, *routes(5, policy=POLICIES[-1])])
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        arguments = [sys.executable, "-m", "extproc", "replay", str(path), "--json"]
        result = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
        assert json.loads(result.stdout)["identical"] == 65


def test_a_journal_written_anew_by_others_is_the_same(path: Path) -> None:
    """Spaces and the order of keys mean nothing."""
    write(path, FLEET + routes(3))
    lines = [json.dumps(json.loads(line), sort_keys=True, indent=None) for line in path.read_bytes().splitlines()]
    path.write_text("\r\n\n".join(lines))
    assert replayed(path).identical == 3


def test_runs_follow_each_other_in_one_journal(path: Path) -> None:
    for _ in range(3):
        write(path, FLEET + routes(4))
    found = replayed(path)
    assert (found.runs, found.identical) == (3, 12)
