import os
from pathlib import Path

import pytest

from extproc.core.policy import RoutingPolicy
from extproc.journal import balancer as journal
from extproc.journal import file as journalfile
from extproc.journal.balancer import close
from tests.core.fleet import request
from tests.irregular import IRREGULAR, irregular
from tests.journal.writing import NOW_S, Disk, Faults, calls_of, flushed, lines_of, start
from tests.journaled import FLEET, live, routes
from tests.waiting import until

POLICY = RoutingPolicy()


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


@pytest.mark.parametrize("kind", ["notes", *IRREGULAR])
async def test_what_takes_the_place_of_the_file_is_left_as_it_is(path: Path, kind: str) -> None:
    faults = Faults()
    one = start(path, faults)
    path.rename(path.with_suffix(".moved"))  # noqa: ASYNC240
    if kind == "notes":
        path.write_bytes(b"my notes")  # noqa: ASYNC240
    else:
        irregular(path, kind)
    one.finish("r1", NOW_S)
    await flushed(one, NOW_S + 10)
    assert faults.count >= 1
    if kind == "notes":
        assert path.read_bytes() == b"my notes"  # noqa: ASYNC240
    path.rename(path.with_suffix(".kept"))  # noqa: ASYNC240
    one.finish("r2", NOW_S + 20)
    close(one)
    assert calls_of(path) == ["journal", "lost", "finish"]


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
    assert one.unwritten_bytes <= 3000
    assert faults.count > 100
    disk.free.set()
    await until(lambda: one.unwritten_bytes == 0)
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
