import json
from pathlib import Path

import pytest

from extproc.core.policy import RoutingPolicy
from extproc.journal import balancer as journal
from extproc.journal.balancer import close
from tests.journal.writing import NOW_S, Faults, calls_of, flushed, lines_of, start
from tests.journaled import FLEET, Call, routes, write


def test_policies_and_models_are_written_once(path: Path) -> None:
    same = RoutingPolicy()
    write(path, FLEET + routes(3) + routes(3, policy=same) + routes(3, policy=RoutingPolicy(strategy="random")))
    calls = calls_of(path)
    assert (calls.count("models"), calls.count("policy"), calls.count("route")) == (1, 2, 9)


def files_of(path: Path) -> list[Path]:
    return sorted(path.parent.iterdir(), key=lambda one: -int(one.suffix[1:]) if one.suffix[1:].isdigit() else 0)


WAIT: list[Call] = [("wait", {"seconds": 2.0})]


async def test_a_tick_writes_whatever_waits(path: Path) -> None:
    one = start(path, Faults())
    one.finish("r1", NOW_S)
    one.finish("r2", NOW_S + 0.1)
    await flushed(one, NOW_S + 0.2)
    assert calls_of(path) == ["journal", "finish", "finish", "tick"]
    close(one)


def test_files_are_bounded_and_so_is_their_number(path: Path) -> None:
    write(path, [*FLEET, *(routes(1) + WAIT) * 40], file_bytes_max=4000, files_max=3)
    files = files_of(path)
    assert [one.name for one in files] == ["extproc.journal.2", "extproc.journal.1", "extproc.journal"]
    assert all(one.stat().st_size <= 4000 for one in files)
    heads = [lines_of(one)[0] for one in files]
    assert len({head["run"] for head in heads}) == 1
    last = heads[-1]["part"]
    assert last > 3
    assert [(head["part"], head["begins"]) for head in heads] == [(part, False) for part in range(last - 2, last + 1)]


def test_each_file_explains_its_numbers(path: Path) -> None:
    write(path, [*FLEET, *(FLEET + routes(1) + WAIT) * 20], file_bytes_max=6000, files_max=50)
    files = files_of(path)
    assert len(files) > 3
    for one in files:
        explained = set()
        for line in lines_of(one):
            match line["call"]:
                case "policy" | "models":
                    explained.add(line["number"])
                case "reported":
                    assert line["models"] in explained
                case "route":
                    assert line["policy"] in explained


def test_numbers_are_given_anew_when_there_are_too_many(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = [RoutingPolicy(name=name) for name in ("first", "second", "first", "third", "first")]
    write(path, routes(1, policy=policies[0]))
    line_bytes = max(len(line) for line in path.read_bytes().splitlines() if b'"policy"' in line and b"first" in line)
    path.unlink()
    monkeypatch.setattr(journal, "NAMES_BYTES_MAX", 5 * line_bytes // 2)
    write(path, [call for policy in policies for call in routes(1, policy=policy)])
    named = [line["policy"]["name"] for line in lines_of(path) if line["call"] == "policy"]
    assert named == ["first", "second", "third", "first"]
    numbers = [line["number"] for line in lines_of(path) if line["call"] == "policy"]
    assert numbers == [0, 1, 2, 3], "none means two things"


def test_the_next_run_goes_on_in_the_same_file(path: Path) -> None:
    write(path, routes(1))
    with path.open("ab") as file:
        file.write(b'{"call":"tick","now')
    write(path, routes(2))
    content = path.read_bytes().splitlines()
    assert content.count(b'{"call":"tick","now') == 1
    assert [json.loads(line)["begins"] for line in content if b'"begins"' in line] == [True, True]
