"""Which first tokens count, from when on, and what was known of their nodes: on journals of a few calls."""

from pathlib import Path
from typing import Any

import pytest

from extproc.core.outcome import Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.snapshot import NodeState
from extproc.correlate import gather as gathering
from extproc.correlate.gather import Gathered, Wanted, gather
from extproc.correlate.result import correlated
from tests.core.fleet import snapshot
from tests.correlate.recorded import command
from tests.journaled import FLEET, FULL, Call, asks, journaled, live, write
from tests.replay.replaying import edited


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def found_in(path: Path, wanted: Wanted = Wanted()) -> Gathered:  # noqa: B008 - a value
    found = gather(path, wanted, lambda _done, _total: None)
    assert isinstance(found, Gathered), found
    return found


def wait(seconds: float) -> Call:
    return ("wait", {"seconds": seconds})


def sent(**changes: Any) -> Call:
    return ("route", {"tokens": 500, "chain": (0, 0, 0), "policy": RoutingPolicy()} | changes)


def first_token(which: int = 0) -> Call:
    return ("first_token", {"which": which})


REPORT: Call = ("report", {"node": "a"})
LISTED = RoutingPolicy(destination="override-host", destinations_max=3)


def test_of_a_request_that_waited_the_time_counts_from_going(path: Path) -> None:
    write(path, [*FULL, *asks(1), wait(2.0), *FLEET, ("admit", {"calls": 1}), wait(0.5), first_token()])
    found = found_in(path)
    assert list(found.ttft_s) == [pytest.approx(0.51)]
    assert list(found.signals["age_s"]) == [pytest.approx(0.005)]


def test_of_requests_that_are_let_go_together_each_knows_those_before_it(path: Path) -> None:
    life = [FULL[0], *asks(3, chain=(0, 0, 0)), wait(2.0), REPORT, ("admit", {"calls": 1})]
    write(path, [*life, *map(first_token, (2, 1, 0))])
    found = found_in(path)
    assert list(found.signals["n"]) == [0, 1, 2]
    assert list(found.signals["w_tokens"]) == [0, 500, 1000]


def test_what_a_node_without_a_fresh_snapshot_serves_is_left_out(path: Path) -> None:
    write(path, [sent(), first_token(), REPORT, wait(5.0), sent(), first_token()])
    found = found_in(path)  # the first one goes to the node of the configuration, of which no agent has told anything
    assert (found.chosen, found.stale, len(found.ttft_s)) == (2, 2, 0)
    assert {"z", "a"} == set(found.names["node"])


def test_what_another_node_serves_is_left_out(path: Path) -> None:
    served: Call = ("served", {"which": 0, "host": snapshot("b").host})
    write(path, [*FLEET, sent(policy=LISTED), served, first_token()])
    found = found_in(path)
    assert (found.chosen, found.moved, len(found.ttft_s)) == (1, 1, 0)


TOLD = dict.fromkeys(("host", "model", "output_tokens", "used_tokens")) | {"which": 0, "ending": Ending.SERVED}


@pytest.mark.parametrize("end", [("finish", {"which": 0}), ("answered", TOLD | {"over": True})])
def test_what_ends_before_a_first_token_is_told(path: Path, end: Call) -> None:
    write(path, [REPORT, sent(), ("answered", TOLD | {"over": False}), end, first_token()])
    found = found_in(path)
    assert (found.chosen, found.without, len(found.ttft_s)) == (1, 1, 0)


def test_what_is_refused_or_not_ready_goes_nowhere(path: Path) -> None:
    write(path, [("report", {"node": "a", "state": NodeState.LOADING}), sent(), sent(model="nobody's")])
    assert found_in(path).chosen == 0


def test_no_more_than_so_many_are_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "REQUESTS_MAX", 2)
    write(path, [REPORT, sent(), first_token(), sent(), first_token(), sent(), first_token()])
    found = correlated(found_in(path))
    assert (found.requests, found.left_out) == (2, 1)


def test_requests_that_never_end_do_not_fill_the_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "OPEN_MAX", 2)
    write(path, [REPORT, sent(), sent(), sent(), first_token(0), first_token(1), first_token(2)])
    assert len(found_in(path).ttft_s) == 2


def test_runs_and_files_follow_each_other_and_no_request_outlives_its_run(path: Path) -> None:
    write(path, [REPORT, sent(), first_token(), sent()])
    path.rename(path.with_suffix(".1"))
    write(path, [REPORT, wait(1.0), first_token(-2), sent(), first_token()])
    found = found_in(path)
    assert (len(found.ttft_s), found.replayed.runs) == (2, 2), "r2 was open in the first one only"


def test_what_is_told_of_an_answer_before_its_end_does_not_end_it(path: Path) -> None:
    write(path, [REPORT, sent(), ("answered", TOLD | {"over": False}), first_token()])
    assert len(found_in(path).ttft_s) == 1


def test_a_first_token_from_before_its_request_went_is_none(path: Path) -> None:
    write(path, [REPORT, sent(), first_token()])

    def before(line: dict[str, Any]) -> None:
        line["now_s"] -= 0.01

    edited(path, "first_token", before)
    found = found_in(path)
    assert (len(found.ttft_s), found.replayed.damaged) == (0, 1)


def test_no_more_than_so_many_names_are_remembered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "NAMES_MAX", 1)
    write(path, [sent(), REPORT, wait(5.0), sent()])
    found = found_in(path)
    assert (found.chosen, list(found.names["node"])) == (2, ["z"])


def test_where_a_runs_beginning_is_gone_it_says_so(path: Path) -> None:
    write(path, [REPORT, sent(), first_token()])

    def middle(line: dict[str, Any]) -> None:
        line |= {"begins": False, "part": 3}

    edited(path, "journal", middle)
    found = correlated(found_in(path))
    assert (found.requests, found.decisions_not_compared) == (1, 1)
    assert "beginning" in " ".join(command(path).stdout.split())


def test_where_decisions_come_out_otherwise_it_says_so(path: Path) -> None:
    write(path, [*FLEET, sent(), first_token()])

    def other(line: dict[str, Any]) -> None:
        line["decided"]["chosen"]["reason"] = "another"

    edited(path, "route", other)
    assert correlated(found_in(path)).decisions_different == 1
    assert "come out otherwise" in " ".join(command(path).stdout.split())


def test_an_id_that_is_open_already_counts_once(path: Path) -> None:
    write(path, [REPORT, sent(), sent(), first_token(1)])

    def same(line: dict[str, Any]) -> None:
        line["request"]["request_id"] = "r1"

    edited(path, "route", same, 1)
    found = found_in(path)
    assert (found.chosen, len(found.ttft_s)) == (1, 1)


def test_a_damaged_line_forgets_who_is_open(path: Path) -> None:
    one = journaled(path)
    live(one, [REPORT, sent()])
    one.close()
    path.write_bytes(path.read_bytes() + b"{\n" + b'{"call":"first_token","now_s":5061,"request_id":"r1"}\n')
    assert len(found_in(path).ttft_s) == 0
