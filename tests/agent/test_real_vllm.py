"""A recorded run of a real vLLM behind the agent, read again: `make real-vllm` made it, and makes it anew."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bench.realvllm.agreement import TOLERANCES, Agreement, with_clients, with_log
from bench.realvllm.checks import checks_of
from bench.realvllm.recording import Recording, Values, page_of, recorded, series_of, written
from extproc.agent.engines import vllm
from extproc.agent.engines.reading import MEASURED, EngineReading
from tests.agent.pages import SAMPLES, sample

RUN = SAMPLES / "vllm_0.32.0_run.jsonl"


@pytest.fixture(scope="module")
def run() -> Recording:
    return recorded(RUN)


def read_again(run: Recording) -> Iterator[tuple[float, EngineReading]]:
    """Each page, as the adapter reads it after those before it."""
    look: Any = None
    for t_s, series in run.pages:
        reading, look = vllm.ADAPTER.read({"/metrics": page_of(series)}, look)
        yield t_s, reading


def reported(fields: Values) -> dict[str, Any]:
    return {name: fields[name] for name in MEASURED if name in fields}


def test_the_recorded_pages_give_the_recorded_reports(run: Recording) -> None:
    readings = list(read_again(run))
    compared = 0
    for t_s, fields in run.snapshots:
        if fields["state"] != "ready":
            continue
        reading = next(one for at_s, one in reversed(readings) if at_s <= t_s)
        doubted = {name for name, _ in fields["absent"]}
        read = {name: value for name in MEASURED if (value := getattr(reading, name)) is not None}
        told = {name: value for name, value in read.items() if name not in doubted}
        assert reported(fields) == pytest.approx(told, abs=1e-6), t_s
        compared += 1
    assert compared >= 80


def test_the_recorded_run_has_what_makes_vllm_hard_to_read(run: Recording) -> None:
    ready = [fields for _, fields in run.snapshots if fields["state"] == "ready"]
    assert max(one["requests_waiting"] for one in ready) > 5
    assert max(one["kv_usage"] for one in ready) > 0.9
    assert any(float(series['vllm:num_preemptions_total{engine="0",model_name="m"}']) > 3 for _, series in run.pages)
    assert {"stop", "sleep", "wake up"} <= {phase for _, phase in run.phases}
    assert any(reading.asleep for _, reading in read_again(run))
    assert [reading.restarted for _, reading in read_again(run)].count(True) == 1
    assert run.answers[0][1]["prompt_tokens_left"] > 0  # clients left before their first token


def test_the_recorded_reports_agree_with_vllms_own_log_and_with_the_clients(run: Recording) -> None:
    found = with_log(run) + with_clients(run)
    assert [one.what for one in found if not one.holds] == []
    assert all(one.compared >= 20 for one in found)
    assert {one.what for one in found} == TOLERANCES.keys()


def test_totals_states_boots_and_models_of_the_recorded_run_are_right(run: Recording) -> None:
    checks = checks_of(run)
    assert [(one.what, one.wanted, one.got) for one in checks if not one.holds] == []
    assert len(checks) > 20


def shifted(run: Recording, name: str, by: float) -> Recording:
    """The same run, with one of the agent's numbers too high."""
    snapshots = [(t_s, {**one, name: one[name] + by} if name in one else one) for t_s, one in run.snapshots]
    return replace(run, snapshots=snapshots)


@pytest.mark.parametrize(
    ("name", "by", "blamed"),
    [
        ("requests_running", 2, {"requests_running", "active_decodes"}),
        ("requests_waiting", 2, {"requests_waiting"}),
        ("kv_usage", 0.03, {"kv_usage"}),
        ("prefix_hits_total", 100, {"hit_rate"}),
        ("active_decodes", 2, {"active_decodes", "requests"}),
        ("pending_prefills", 3, {"requests"}),
    ],
)
def test_a_number_that_is_off_does_not_agree(run: Recording, name: str, by: float, blamed: set[str]) -> None:
    wrong = shifted(run, name, by)
    assert {one.what for one in with_log(wrong) + with_clients(wrong) if not one.holds} == blamed


@pytest.mark.parametrize("name", ["first_tokens_total", "prefill_tokens_total", "prefix_hits_total"])
def test_a_total_that_is_off_by_one_is_found(run: Recording, name: str) -> None:
    wrong = checks_of(shifted(run, name, 1))
    assert {one.what.partition(": ")[2] for one in wrong if not one.holds} == {name}


def test_what_was_never_compared_does_not_hold() -> None:
    assert not any(one.holds for one in with_log(Recording()) + with_clients(Recording()))
    assert not Agreement("a", "b", 0, 0, 0.0, 0.0, 0.0, 0, 1.0).holds


def test_a_recording_is_read_as_it_was_written(run: Recording, tmp_path: Any) -> None:
    written(run, tmp_path / "run.jsonl")
    assert recorded(tmp_path / "run.jsonl") == run
    assert (tmp_path / "run.jsonl").stat().st_size < RUN.stat().st_size * 1.1  # changes only


def test_a_page_of_the_wanted_series_reads_as_the_whole_page_does() -> None:
    for name in ("vllm_0.32.0_cpu_load_3.prom", "vllm_0.32.0_cpu_after.prom"):
        page = sample(name)
        series = series_of(page)
        assert len(page_of(series)) < len(page) / 5
        assert vllm.read(page_of(series), None) == vllm.read(page, None)
