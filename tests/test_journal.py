import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import fields
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from extproc.config import parse
from extproc.core.balancer import Balancer
from extproc.core.decision import Decision
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.settings import Fault
from extproc.core.snapshot import NodeLeft, NodeReported, Snapshot
from extproc.journal import balancer as journal
from extproc.journal import file as journalfile
from extproc.journal.balancer import JournaledBalancer, balancer, close
from extproc.journal.lines import Decided, as_written, decided_of, encode, packed, unpacked
from tests.core.fleet import request, snapshot
from tests.journaled import FLEET, LIVES, START_S, Call, config, journaled, live, no_fault, routes, write
from tests.waiting import until

POLICY = RoutingPolicy()
NOW_S = START_S + 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "extproc.journal"


def lines_of(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def calls_of(path: Path) -> list[str]:
    return [line["call"] for line in lines_of(path)]


def test_without_a_path_there_is_no_journal() -> None:
    one = balancer(config(None), START_S, no_fault)
    assert type(one) is Balancer
    close(one)


def test_a_journal_begins_with_what_its_lines_rest_on(path: Path) -> None:
    close(journaled(path))
    (head,) = lines_of(path)
    assert head["started_s"] == START_S
    assert head["settings"]["ejection"]["share_max"] == 1
    assert (head["format"], head["part"], head["begins"]) == (1, 0, True)
    assert "listen" not in head["settings"], "the balancer's settings only"


def test_each_call_is_one_line(path: Path) -> None:
    one = journaled(path)
    one.observe(NodeReported(snapshot("a", models=None, kv_usage=None)), NOW_S)
    one.observe(NodeLeft("z", "boot-1"), NOW_S)
    asked = request("r1", prompt_blocks=(1, 2**64 - 1), trace_id="t")
    decision = one.route(asked, POLICY, NOW_S)
    uninspected = one.route_uninspected("u1", "t", NOW_S)
    one.recount(asked)
    one.first_token("r1", NOW_S)
    one.leave("r1", NOW_S)
    one.answered(Answered("r1", Ending.SERVED, output_tokens=7), NOW_S)
    one.finish("r1", NOW_S)
    one.tick(NOW_S)
    one.settle()
    one.would_route(asked, POLICY, NOW_S)
    close(one)
    lines = lines_of(path)
    told = lines[1].pop("snapshot")
    known = {field.name: getattr(snapshot("a"), field.name) for field in fields(Snapshot)}
    assert told == {
        name: value for name, value in known.items() if value is not None and name not in ("models", "kv_usage")
    } | {"state": "ready"}
    assert [line.pop("call") for line in lines] == [
        *["journal", "reported", "left", "policy", "route", "route_uninspected", "recount", "first_token", "leave"],
        *["answered", "finish", "tick"],
    ]
    as_json = json.loads(json.dumps(lines[4]))
    assert as_json["request"]["prompt_blocks"] == []
    assert as_json["blocks"] == "AQAAAAAAAAD//////////w=="
    assert as_json["decided"]["chosen"]["node_id"] == "a"
    assert lines[1:] == [
        {"now_s": NOW_S},
        {"now_s": NOW_S, "node_id": "z", "boot_id": "boot-1"},
        {"number": 0, "policy": POLICY.model_dump()},
        {**as_json, "now_s": NOW_S, "policy": 0, "decided": written(decision)},
        {"now_s": NOW_S, "request_id": "u1", "trace_id": "t", "decided": written(uninspected)},
        {"request": as_json["request"], "blocks": as_json["blocks"]},
        {"now_s": NOW_S, "request_id": "r1"},
        {"now_s": NOW_S, "request_id": "r1"},
        {
            "now_s": NOW_S,
            "answered": {"request_id": "r1", "ending": "served", "host": None, "model": None, "output_tokens": 7}
            | {"over": True},
        },
        {"now_s": NOW_S, "request_id": "r1"},
        {"now_s": NOW_S},
    ]


def written(decision: Decision) -> Any:
    return json.loads(encode(decided_of(decision)))


@given(LIVES)
def test_a_journaled_balancer_decides_as_any_other(tmp_path_factory: pytest.TempPathFactory, life: list[Call]) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with_journal, without = journaled(folder / "j"), balancer(config(None), START_S, no_fault)
    assert isinstance(without, Balancer)
    for one in (with_journal, without):
        live(one, FLEET + life)
    close(with_journal)
    assert with_journal.decisions(100) == without.decisions(100)
    assert list(with_journal.views()) == list(without.views())


def test_a_decision_comes_back_as_it_was_but_for_costs_without_end(path: Path) -> None:
    one = journaled(path)
    live(one, FLEET + routes(1, policy=RoutingPolicy(strategy="power-of-two")))
    close(one)
    (decision,) = one.decisions(1)
    decided = decided_of(decision)
    assert as_written(decided) == decided, "two of three nodes have a cost, and as many are kept"
    (kept, _) = decided.candidates
    endless = replace(decided, candidates=(kept._replace(cost=float("inf")),))
    assert as_written(endless) == replace(decided, candidates=(kept._replace(cost=None),))


def test_blocks_are_eight_bytes_each() -> None:
    blocks = (0, 1, 2**63, 2**64 - 1)
    assert unpacked(packed(blocks)) == blocks
    assert len(packed(blocks)) == 32
    assert unpacked(packed(())) == ()


def test_policies_and_models_are_written_once(path: Path) -> None:
    same = RoutingPolicy()
    write(path, FLEET + routes(3) + routes(3, policy=same) + routes(3, policy=RoutingPolicy(strategy="random")))
    calls = calls_of(path)
    assert (calls.count("models"), calls.count("policy"), calls.count("route")) == (1, 2, 9)


def files_of(path: Path) -> list[Path]:
    return sorted(path.parent.iterdir(), key=lambda one: -int(one.suffix[1:]) if one.suffix[1:].isdigit() else 0)


WAIT: list[Call] = [("wait", {"seconds": 2.0})]


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


# Faults at the start


def fault_of(path: Path) -> str:
    fault = balancer(config(path), START_S, no_fault)
    assert isinstance(fault, Fault), fault
    return str(fault)


def test_a_folder_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "journal"
    assert fault_of(path) == f"journal.path: wanted a file that can be written, got {path}: No such file or directory"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert fault_of(tmp_path).endswith(f"{tmp_path}: Is a directory")


def test_a_device_is_no_file() -> None:
    assert fault_of(Path("/dev/null")).endswith("/dev/null: no regular file")
    assert Path("/dev/null").is_char_device()


def test_two_processes_do_not_write_one_journal(path: Path) -> None:
    with path.open("ab") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        assert fault_of(path).endswith(f"{path}: another process writes it")
    assert path.read_bytes() == b""


def test_settings_are_read_from_the_configuration(tmp_path: Path) -> None:
    read = parse({"journal": {"path": "a/journal", "file_bytes_max": "4MiB", "files_max": 2}}, folder=tmp_path)
    assert not isinstance(read, list), read
    assert read.journal.path == tmp_path / "a/journal"
    assert (read.journal.file_bytes_max, read.journal.files_max) == (4 * 2**20, 2)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"files_max": 1}, "journal.files_max: wanted greater than or equal to 2, got 1"),
        ({"files_max": 101}, "journal.files_max: wanted less than or equal to 100, got 101"),
        ({"file_bytes_max": "1MiB"}, "journal.file_bytes_max: wanted greater than or equal to 4194304, got 1048576"),
        ({"path": ""}, "journal.path: wanted a path, got ''"),
    ],
)
def test_settings_have_bounds(settings: dict[str, Any], fault: str) -> None:
    faults = parse({"journal": settings})
    assert isinstance(faults, list)
    assert [str(one) for one in faults] == [fault]


# Faults later


class Faults:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


class Disk(FileIO):
    """A file that takes half of what is to be written, or nothing until it may."""

    full = False
    free = threading.Event()

    def write(self, content: Any, /) -> int:
        assert Disk.free.wait(30), "nobody let it go"
        if Disk.full:
            super().write(bytes(content[: len(content) // 2]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Disk]]:
    monkeypatch.setattr(journalfile, "FileIO", Disk)
    Disk.full = False
    Disk.free.set()
    yield Disk
    Disk.free.set()


def start(path: Path, faults: Faults) -> JournaledBalancer:
    one = balancer(config(path), START_S, faults)
    assert isinstance(one, JournaledBalancer)
    return one


async def flushed(one: JournaledBalancer, now_s: float) -> None:
    """Everything that was called so far, and a tick more, is written or lost."""
    one.tick(now_s)
    await until(lambda: one.waiting_bytes == 0)


async def test_a_full_disk_stops_nothing_and_what_was_lost_is_told(path: Path, disk: type[Disk]) -> None:
    faults = Faults()
    one = start(path, faults)
    disk.full = True
    live(one, routes(1))
    await flushed(one, NOW_S + 10)
    one.tick(NOW_S + 11)
    await flushed(one, NOW_S + 20)
    assert faults.count == 4, "so often it was tried"
    disk.full = False
    live(one, routes(1), "s")
    await flushed(one, NOW_S + 30)
    one.tick(NOW_S + 40)
    close(one)
    lines = lines_of(path)
    calls = ["journal", "journal", "lost", "policy", "route", "finish", "tick", "tick"]
    assert [line["call"] for line in lines] == calls
    assert lines[2]["lines"] == 6
    assert [line["part"] for line in lines[:2]] == [0, 1]


async def test_a_file_that_is_gone_is_begun_anew(path: Path) -> None:
    faults = Faults()
    one = start(path, faults)
    live(one, routes(1), "r")
    await flushed(one, NOW_S + 10)
    path.rename(path.with_suffix(".kept"))  # noqa: ASYNC240
    live(one, routes(1), "s")
    await flushed(one, NOW_S + 20)
    os.truncate(path, 0)  # as logrotate's copytruncate does
    live(one, routes(1), "t")
    close(one)
    assert calls_of(path.with_suffix(".kept"))[0] == "journal"
    assert calls_of(path) == ["journal", "policy", "route", "finish"]
    assert lines_of(path)[0]["part"] == 2
    assert faults.count == 0


async def test_a_folder_that_is_gone_may_come_back(tmp_path: Path) -> None:
    path, faults = tmp_path / "folder" / "journal", Faults()
    path.parent.mkdir()
    one = start(path, faults)
    path.unlink()
    path.parent.rmdir()
    one.finish("r1", NOW_S)
    await flushed(one, NOW_S + 10)
    assert faults.count >= 1
    path.parent.mkdir()
    one.finish("r2", NOW_S + 20)
    close(one)
    assert calls_of(path) == ["journal", "lost", "finish"]


async def test_a_disk_that_hangs_holds_nobody_up(path: Path, disk: type[Disk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journalfile, "WAITING_BYTES_MAX", 3000)
    faults = Faults()
    one = start(path, faults)
    disk.free.clear()
    for second in range(200):
        one.finish(f"r{second}", NOW_S + second)
    assert one.waiting_bytes <= 3000
    assert faults.count > 100
    disk.free.set()
    await until(lambda: one.waiting_bytes == 0)
    one.finish("last", NOW_S + 200)
    close(one)
    lines = lines_of(path)
    written = [line["request_id"] for line in lines if line["call"] == "finish"]
    (lost,) = [line["lines"] for line in lines if line["call"] == "lost"]
    assert written == [*(f"r{number}" for number in range(len(written) - 1)), "last"]
    assert len(written) + lost == 201


def test_faults_are_logged_once_in_a_while(path: Path, disk: type[Disk], capsys: pytest.CaptureFixture[str]) -> None:
    one = start(path, Faults())
    disk.full = True
    for second in range(10):
        one.finish("r1", NOW_S + second)
    close(one)
    assert capsys.readouterr().out.count("lines of the journal lost") == 1


def test_what_json_cannot_hold_is_lost_and_no_more(path: Path) -> None:
    faults = Faults()
    one = start(path, faults)
    live(one, FLEET)
    decision = one.route(request("r1", trace_id="\ud800"), POLICY, NOW_S + 1)
    one.route(request("r2", prompt_blocks=(2**64,)), POLICY, NOW_S + 1)
    one.route(request("r3"), POLICY, NOW_S + 1)
    close(one)
    assert decision.trace_id == "\ud800"
    assert faults.count == 2
    assert calls_of(path)[-3:] == ["lost", "lost", "route"]


def test_a_line_over_the_limit_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LINE_BYTES_MAX", 2000)
    faults = Faults()
    one = start(path, faults)
    one.route(request("r1", prompt_blocks=tuple(range(300))), POLICY, NOW_S)
    close(one)
    assert faults.count == 1
    assert calls_of(path) == ["journal", "policy", "lost"]


def test_an_error_of_the_balancer_is_written_and_goes_through(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Decision:
        raise ZeroDivisionError

    one = journaled(path)
    monkeypatch.setattr(Balancer, "route", broken)
    with pytest.raises(ZeroDivisionError):
        one.route(request("r1"), POLICY, NOW_S)
    close(one)
    line = lines_of(path)[-1]
    assert (line["call"], line["request"]["request_id"]) == ("route", "r1")
    assert "decided" not in line


def test_whatever_a_line_repeats_of_a_request_is_no_text() -> None:
    """The journal must hold nothing of a prompt: whoever adds a field to a request decides about it here."""
    assert set(InferenceRequest.__struct_fields__) == {
        *["request_id", "model", "endpoint", "prompt", "output_tokens_max", "prompt_blocks", "sequences", "trace_id"]
    }
    assert set(Decided.__struct_fields__) == {
        *["strategy", "chosen", "refused", "unknown", "phase", "uncached_tokens", "candidates"]
    }
