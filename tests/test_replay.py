import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

from extproc import cli
from extproc.core.cost import STRATEGIES
from extproc.core.decision import Chosen
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import Fault
from extproc.core.snapshot import NodeReported
from extproc.journal.balancer import close
from extproc.replay.drive import run
from extproc.replay.follow import Follower
from extproc.replay.other import Other
from extproc.replay.read import open_journal
from extproc.replay.result import Replayed
from tests.core.fleet import NOW_S, SETTINGS, request, snapshot
from tests.journaled import FLEET, LIVES, NODES, POLICIES, Call, journaled, live, routes, write

WAIT: list[Call] = [("wait", {"seconds": 2.0})]
LONG: list[Call] = [*FLEET, *(FLEET + routes(3) + WAIT) * 20]
"""60 requests."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "extproc.journal"


def replayed(path: Path, other: Other | None = None) -> Replayed:
    found = run(path, other, lambda _done, _total: None)
    assert isinstance(found, Replayed), found
    return found


def command(path: Path, *options: str) -> Result:
    result = CliRunner().invoke(cli.main, ["replay", str(path), *options])
    assert not isinstance(result.exception, Exception), result.exception
    return result


# The same policy


@given(LIVES)
def test_every_decision_comes_out_the_same(tmp_path_factory: pytest.TempPathFactory, life: list[Call]) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    write(path, FLEET + life)
    found = replayed(path)
    decisions = sum(call in ("route", "uninspected") for call, _ in life)
    assert (found.decisions, found.identical, found.damaged, found.lines_lost) == (decisions, decisions, 0, 0)
    assert found.good


@given(LIVES, st.integers(1500, 4000))
def test_the_same_through_rotation(
    tmp_path_factory: pytest.TempPathFactory, life: list[Call], file_bytes_max: int
) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    life = [*FLEET, *(call for one in life for call in (one, *WAIT)), *FLEET, *WAIT, *FLEET, *WAIT, *routes(3)]
    write(path, life, file_bytes_max=file_bytes_max, files_max=100)
    found = replayed(path)
    assert len(found.files) > 1
    assert found.runs == 1
    assert found.identical == found.decisions
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
    balancers: list[Follower] = []
    keep = Follower.__init__

    def kept(self: Follower, *arguments: Any) -> None:
        balancers.append(self)
        keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Follower, "__init__", kept)
        one = journaled(path)
        live(one, FLEET + life)
        close(one)
        replayed(path)
    (again,) = balancers
    assert list(again.views()) == list(one.views())
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


def test_progress_is_told_in_bytes(path: Path) -> None:
    write(path, LONG * 10, file_bytes_max=40_000, files_max=9)
    told: list[tuple[int, int]] = []
    assert isinstance(run(path, None, lambda *both: told.append(both)), Replayed)
    size = sum(one.stat().st_size for one in path.parent.iterdir())
    assert told == sorted(told)
    assert told[-1] == (size, size)
    assert len(told) > 2


# Decisions that differ


Edit = Callable[[dict[str, Any]], None]


def edited(path: Path, call: str, edit: Edit, which: int = 0) -> int:
    """Change one line; its number."""
    lines = path.read_bytes().splitlines()
    number = [place for place, line in enumerate(lines) if json.loads(line)["call"] == call][which]
    content = json.loads(lines[number])
    edit(content)
    lines[number] = json.dumps(content).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return number + 1


def test_a_journal_written_anew_by_others_is_the_same(path: Path) -> None:
    """Spaces and the order of keys mean nothing."""
    write(path, FLEET + routes(3))
    lines = [json.dumps(json.loads(line), sort_keys=True, indent=None) for line in path.read_bytes().splitlines()]
    path.write_text("\r\n\n".join(lines))
    assert replayed(path).identical == 3


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
    assert difference["wanted"].get(part) == (value if part != "chosen" else {**value, "fallback": False})  # type: ignore[dict-item]


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


def test_requests_go_where_the_journal_says() -> None:
    one = Follower(SETTINGS, NOW_S - 60)
    for node_id in "ab":
        one.observe(NodeReported(snapshot(node_id)), NOW_S)

    def loads() -> dict[str, int]:
        return {view.snapshot.node_id: view.in_flight for view in one.views()}

    own = one.follow(request("r0"), RoutingPolicy(), NOW_S, None).outcome
    assert isinstance(own, Chosen)
    assert loads() == {"a": 0, "b": 0}, "nobody got it"
    for number in range(1, 4):
        one.follow(request(f"r{number}"), RoutingPolicy(), NOW_S, "a")
    assert loads() == {"a": 3, "b": 0}
    assert one.follow(request("r4"), RoutingPolicy(), NOW_S, "gone").outcome.node_id == "b"  # type: ignore[union-attr]
    assert loads() == {"a": 3, "b": 0}
    one.follow(request("r5", model="nobody's"), RoutingPolicy(), NOW_S, "b")
    assert loads() == {"a": 3, "b": 1}, "refused here, but not then"


# Parts that are missing


def test_without_its_beginning_decisions_are_not_compared_until_the_next_run(path: Path) -> None:
    write(path, LONG, file_bytes_max=10_000, files_max=3)
    found = replayed(path)
    assert len(found.files) == 3
    assert found.not_compared == {"the beginning of its run is gone": found.decisions}
    assert 0 < found.not_compared_same_node <= found.decisions < 60
    assert (found.identical, found.different, found.damaged) == (0, 0, 0)
    assert command(path).exit_code == 1, "nothing was proven"
    write(path, LONG, file_bytes_max=2**20, files_max=3)
    found = replayed(path)
    assert (found.runs, found.identical, found.different) == (2, 60, 0)
    assert sum(found.not_compared.values()) == found.decisions - 60
    result = command(path)
    assert result.exit_code == 0
    assert "the beginning of its run is gone" in result.stdout


def test_a_file_missing_in_between_is_noticed(path: Path) -> None:
    write(path, LONG, file_bytes_max=10_000, files_max=99)
    count = len(replayed(path).files)
    (path.parent / f"{path.name}.{count - 3}").unlink()
    found = replayed(path)
    assert list(found.not_compared) == ["a file before it is missing"]
    assert found.runs == 1
    assert found.identical > 0
    assert found.good


def test_lost_lines_leave_a_doubt(path: Path) -> None:
    write(path, FLEET + routes(4))
    lines = path.read_bytes().splitlines()
    lines.insert(-4, b'{"call":"lost","lines":3}')
    path.write_bytes(b"\n".join(lines))
    found = replayed(path)
    assert (found.identical, found.not_compared) == (2, {"lines before it could not be written": 2})
    assert found.lines_lost == 3
    assert "lines lost" in command(path).stdout


def test_runs_follow_each_other_in_one_journal(path: Path) -> None:
    for _ in range(3):
        write(path, FLEET + routes(4))
    found = replayed(path)
    assert (found.runs, found.identical) == (3, 12)


def test_no_decision_at_all_is_good(path: Path) -> None:
    write(path, FLEET)
    assert command(path).exit_code == 0


def test_ten_files_are_read_in_the_order_of_their_numbers(path: Path) -> None:
    write(path, LONG * 3, file_bytes_max=8000, files_max=100)
    (path.parent / f"{path.name}.tmp").write_bytes(b"no journal")
    (path.parent / f"{path.name}.01").write_bytes(b"no journal")
    found = replayed(path)
    assert len(found.files) > 10
    assert (found.identical, found.damaged) == (180, 0)


# Damage


@given(st.data())
def test_a_journal_cut_anywhere_is_good_up_to_there(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("replay") / "j"
    write(path, FLEET + routes(3))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    found = replayed(path)
    assert (found.damaged, found.different) == (0, 0)
    assert found.good


def test_a_run_that_was_cut_harms_the_next_one_in_nothing(path: Path) -> None:
    write(path, FLEET + routes(2))
    path.write_bytes(path.read_bytes()[:-30])
    write(path, FLEET + routes(2))
    found = replayed(path)
    assert (found.runs, found.identical, found.cut, found.damaged) == (2, 4, 1, 0)
    assert "lines cut" in command(path).stdout


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
            ": snapshot.weight: wanted 1e-300..1e+06, got -1.0",
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
        ("journal", lambda line: line.update(format=2), ": format: wanted 1, got 2"),
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
        == "extproc.journal:2: wanted the first line of a journal before it, got none that can be used"
    )


def test_what_breaks_a_rule_of_the_core_is_damage(path: Path) -> None:
    write(path, FLEET + routes(1))
    edited(path, "journal", lambda line: line.update(started_s=-1e12))
    lines = path.read_bytes().splitlines()
    route = next(line for line in lines if b'"route"' in line)
    path.write_bytes(b"\n".join([*lines, route, b'{"call":"tick","now_s":6000}']))
    found = replayed(path)
    assert (found.identical, found.different) == (1, 1), "its id is not new: an assertion"


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


def test_what_is_no_journal_is_a_fault(tmp_path: Path) -> None:
    for path, reason in [
        (tmp_path / "journal", "No such file or directory"),
        (tmp_path / "no" / "journal", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ]:
        result = command(path)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"{path}: wanted a journal that can be read, got {reason}\n"


def test_what_is_written_meanwhile_is_not_read(path: Path) -> None:
    write(path, FLEET + routes(2))
    journal = open_journal(path)
    assert not isinstance(journal, Fault)
    count = len(path.read_bytes().splitlines())
    with path.open("ab") as file:
        file.write(b'{"call":"tick","now_s":9000}\n')
    path.rename(path.with_suffix(".1"))
    assert len(list(journal)) == count


# Another policy


def test_another_strategy_stands_beside_the_recorded_choices(path: Path) -> None:
    first: list[Call] = [("report", {"node": "a"}), ("report", {"node": "b", "requests_running": 40})]
    write(path, first + routes(6, policy=RoutingPolicy(strategy="least-inflight")))
    found = replayed(path, Other("round-robin"))
    assert (found.identical, found.different) == (6, 0), "the recorded ones are repeated beside it"
    comparison = found.comparison
    assert comparison is not None
    assert comparison.recorded.per_node == {"a": 6}
    assert comparison.would_be.per_node == {"a": 3, "b": 3}
    assert (comparison.decisions, comparison.same_node, comparison.other_node) == (6, 3, 3)
    means = comparison.recorded.uncached_tokens_mean, comparison.would_be.uncached_tokens_mean
    # 5.5 blocks a prompt; five of them are cached at a from the second request on, and none ever at b.
    assert means[0] == pytest.approx((500 + 5 * 116) / 6, rel=0.2)
    assert means[1] is not None
    assert means[1] > 250


def test_the_same_strategy_chooses_the_same(path: Path) -> None:
    write(path, LONG)
    comparison = replayed(path, Other("least-added-delay")).comparison
    assert comparison is not None
    assert (comparison.decisions, comparison.same_node, comparison.other_node) == (60, 60, 0)
    assert comparison.recorded == comparison.would_be


def test_refusals_are_counted_for_both(path: Path, tmp_path: Path) -> None:
    write(path, [("report", {"node": "a", "requests_waiting": 50}), *routes(4)])
    (tmp_path / "policy.yaml").write_text("limits: {requests_waiting_max: 10}")
    result = command(path, "--policy", str(tmp_path / "policy.yaml"), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    comparison = found["comparison"]
    assert (comparison["recorded"]["refused"], comparison["would_be"]["refused"]) == (0, 4)
    assert (comparison["other_node"], comparison["would_be"]["per_node"]) == (4, {})
    assert comparison["would_be"]["uncached_tokens_mean"] is None


def test_a_policys_other_settings_stay_when_only_the_strategy_is_replaced() -> None:
    recorded = POLICIES[0].model_copy(update={"first_token_weight": 7.0})
    assert Other("random").of(recorded) == recorded.model_copy(update={"strategy": "random"})
    assert Other(RoutingPolicy(name="x", strategy="random")).of(recorded).name == recorded.name


def test_the_table_shows_both(path: Path) -> None:
    write(path, LONG)
    text = command(path, "--strategy", "random").stdout
    assert re.search(r"requests to +recorded +random", text)
    for name in ("a", "b", "c", r"nobody \(refused\)", "Envoy's own cluster", "mean uncached tokens"):
        assert re.search(rf"^{name} +[0-9.,]+ +[0-9.,]+ *$", text, re.MULTILINE), name
    assert re.search(r"^identical +60", text, re.MULTILINE)


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


@pytest.mark.parametrize(
    ("options", "content", "fault"),
    [
        (("--strategy", "best"), None, "strategy: wanted one of least-added-delay, "),
        (("--policy", "FILE"), "strategy: best", "strategy: wanted one of least-added-delay, "),
        (("--policy", "FILE"), "[]", "FILE: wanted a mapping, got []"),
        (("--policy", "FILE"), None, "FILE: wanted a readable file, got No such file or directory"),
        (("--policy", "FILE", "--strategy", "random"), "{}", "Usage: "),
    ],
)
def test_what_is_no_policy_is_a_fault(path: Path, options: tuple[str, ...], content: str | None, fault: str) -> None:
    write(path, FLEET)
    file = path.with_suffix(".yaml")
    if content is not None:
        file.write_text(content)
    result = command(path, *(str(file) if option == "FILE" else option for option in options))
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith(fault.replace("FILE", str(file)))
