"""The command on journals in which it is known what first tokens depend on."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from extproc.core.policy import RoutingPolicy
from extproc.correlate import gather as gathering
from extproc.correlate.gather import Gathered, Wanted, gather
from extproc.correlate.result import correlated
from extproc.correlate.signals import SIGNALS
from tests.correlate.recorded import MODEL, command, recorded
from tests.journaled import LIVES, Call, write


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "journal"
    recorded(path)
    return path


def as_json(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(*arguments, "--json").stdout)
    return found


def rows(*arguments: str | Path) -> dict[str, dict[str, Any]]:
    return {row["signal"]: row for row in as_json(*arguments)["rows"]}


def found_in(path: Path, wanted: Wanted = Wanted()) -> Gathered:  # noqa: B008 - a value
    found = gather(path, wanted, lambda _done, _total: None)
    assert isinstance(found, Gathered), found
    return found


def test_what_first_tokens_depend_on_is_told_from_what_they_do_not(journal: Path) -> None:
    found = rows(journal)
    assert set(found) == {signal.name for signal in SIGNALS}
    assert found["requests_waiting"]["says"] == "tells"
    assert found["requests_waiting"]["rho_beside"]["value"] > 0.95
    assert found["gpu_utilization"]["rho_beside"]["low"] < 0 < found["gpu_utilization"]["rho_beside"]["high"]
    assert found["kv_usage"]["says"] == "falls"
    assert found["requests_running"]["says"] == "constant"
    assert found["prefill_latency_ms"] == {
        "signal": "prefill_latency_ms",
        "text": "mean prefill, ms",
        "known": 0.0,
        "says": "absent",
        "rho": None,
        "rho_beside": None,
        "ttft_s_by_fifth": [],
    }
    assert found["uncached_tokens"]["rho"]["low"] > 0.1
    assert found["uncached_tokens"]["rho_beside"] is None
    fifths = found["requests_waiting"]["ttft_s_by_fifth"]
    assert fifths == sorted(fifths)
    assert fifths[-1] - fifths[0] == pytest.approx(0.26, abs=0.05)


def test_the_request_itself_is_not_counted_among_what_was_there(journal: Path) -> None:
    found = found_in(journal)
    waiting, batch = found.signals["requests_waiting"], found.signals["requests_running"]
    assert list(found.signals["n"]) == [one + other for one, other in zip(waiting, batch, strict=True)]
    assert list(found.signals["age_s"]) == pytest.approx([0.1] * 400)


def test_the_time_counts_from_going_there(journal: Path) -> None:
    found = found_in(journal)
    own, waiting = found.signals["uncached_tokens"], found.signals["requests_waiting"]
    expected = [one * 0.02 + tokens * 0.0001 for one, tokens in zip(waiting, own, strict=True)]
    assert list(found.ttft_s) == pytest.approx(expected)


def test_the_table_shows_every_signal_and_the_plot_is_drawn(journal: Path, tmp_path: Path) -> None:
    result = command(journal, "--plot", tmp_path / "signals.svg")
    assert result.exit_code == 0
    assert all(signal.name in result.stdout for signal in SIGNALS)
    assert "400 first tokens of 400 requests" in result.stdout
    assert "tells: the first token comes later" in result.stdout
    assert "unsure:" in result.stdout
    assert "nan" not in result.stdout
    assert "requests_waiting: tells" in (tmp_path / "signals.svg").read_text()


def test_without_first_tokens_it_says_how_to_get_them(tmp_path: Path) -> None:
    recorded(tmp_path / "journal", 30, first_tokens=False)
    result = command(tmp_path / "journal", "--plot", tmp_path / "signals.png")
    assert result.exit_code == 1
    assert "30 requests went to a node" in result.stdout
    assert "show the first piece of each answer" in " ".join(result.stdout.split())
    assert not (tmp_path / "signals.png").exists()


@pytest.mark.parametrize(
    ("wanted", "requests"),
    [
        ((), 400),
        (("--node", "a"), 400),
        (("--model", MODEL), 400),
        (("--arm", "strategy"), 400),
    ],
)
def test_requests_can_be_picked(journal: Path, wanted: tuple[str, ...], requests: int) -> None:
    assert as_json(journal, *wanted)["requests"] == requests


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (("--node", "b"), "--node: wanted one of this journal's ('a'), got 'b'"),
        (("--model", "other"), f"--model: wanted one of this journal's ('{MODEL}'), got 'other'"),
        (("--arm", "control", "--node", "a"), "--arm: wanted one of this journal's ('strategy'), got 'control'"),
        (("--node", "\x1b[2J"), r"--node: wanted one of this journal's ('a'), got '\x1b[2J'"),
    ],
)
def test_what_is_not_there_is_refused_and_it_says_what_is(journal: Path, wanted: tuple[str, ...], told: str) -> None:
    result = command(journal, *wanted)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{told}\n")


def test_of_too_many_names_none_is_called_unknown(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "NAMES_MAX", 1)
    assert "0 requests went to a node" in command(journal, "--node", "b").stdout


def test_the_arms_of_a_canary_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    recorded(path, 60, policy=RoutingPolicy(strategy="round-robin", canary=50))
    arms = [as_json(path, "--arm", arm)["requests"] for arm in ("strategy", "control")]
    assert sum(arms) == 60
    assert min(arms) > 10
    own = found_in(path, Wanted(arm="control")).signals["uncached_tokens"]
    assert len(set(own)) > 10, "turns do not ask for a prompt's size, but it is known"


def test_few_requests_prove_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "journal", 19)
    says = {row["says"] for row in rows(tmp_path / "journal").values()}
    assert says == {"unsure", "absent"}


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LIVES)
def test_whatever_happened_every_first_token_is_of_one_request_and_nothing_is_negative(
    lives: Path, life: list[Call]
) -> None:
    for old in lives.parent.iterdir():
        old.unlink()
    write(lives, life)
    found = found_in(lives)
    first_tokens = sum(call == "first_token" for call, _ in life)
    assert len(found.ttft_s) <= first_tokens
    assert len(found.ttft_s) + found.stale + found.moved + found.without <= found.chosen
    assert all(value >= 0 for value in found.ttft_s)
    assert {len(values) for values in found.signals.values()} == {len(found.ttft_s)}
    correlated(found)


def test_a_journal_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("hello\n")
    result = command(tmp_path / "journal")
    assert result.exit_code == 1
    assert command(tmp_path / "nowhere").exit_code == 1


def test_a_damaged_line_is_told(journal: Path, tmp_path: Path) -> None:
    lines = journal.read_bytes().splitlines()
    lines[len(lines) // 2] = b"{"
    (tmp_path / "journal").write_bytes(b"\n".join(lines) + b"\n")
    result = command(tmp_path / "journal")
    assert "1 of" in result.stdout
    assert "damaged" in result.stdout
