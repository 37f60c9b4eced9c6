"""A node's work, put together of its sample and our ledger."""

from typing import Any

import pytest

from extproc.core.loads import idle, in_flight, pending_prefills, unchanged
from extproc.core.snapshot import Learned, OwnLoad
from tests.core.fleet import snapshot, view


@pytest.mark.parametrize(
    ("running", "waiting", "unseen", "finished", "expected"),
    [
        (0, 0, 0, 0, 0),
        (3, 4, 0, 0, 7),
        (3, 4, 5, 2, 10),
        (3, 0, 0, 3, 0),
        (1, 0, 0, 3, 0),  # ends of what it never told of: never under 0
        (None, 4, 5, 2, 20),
        (3, None, 5, 2, 20),
        (None, None, 0, 0, 20),
    ],
)
def test_in_flight_is_the_samples_with_what_came_since_and_without_what_ended_since(
    running: int | None, waiting: int | None, unseen: int, finished: int, expected: int
) -> None:
    """Where the sample does not tell, it is what we have open: 20."""
    own = OwnLoad(sequences_open=20, sequences_unseen=unseen, sequences_finished=finished)
    one = snapshot(requests_running=running, requests_waiting=waiting)
    assert in_flight(one, own) == expected
    assert view(own=own, requests_running=running, requests_waiting=waiting).in_flight == expected


@pytest.mark.parametrize(
    ("pending", "waiting", "expected"), [(3, 9, 3), (0, 9, 0), (None, 9, 9), (None, 0, 0), (None, None, 0)]
)
def test_pending_prefills_are_the_engines_queue_where_it_does_not_tell(
    pending: int | None, waiting: int | None, expected: int
) -> None:
    assert pending_prefills(snapshot(pending_prefills=pending, requests_waiting=waiting)) == expected


@pytest.mark.parametrize(
    ("running", "waiting", "expected"), [(0, 0, True), (1, 0, False), (0, 1, False), (None, 0, False), (0, None, False)]
)
def test_what_is_not_told_may_be_there(running: int | None, waiting: int | None, expected: bool) -> None:
    assert idle(snapshot(requests_running=running, requests_waiting=waiting)) is expected


def test_the_work_of_others_is_their_prompts_by_their_mean() -> None:
    own = OwnLoad(prefill_tokens=70, prefills_of_others=4)
    assert view(own=own, learned=Learned(prefill_tokens_mean=250.0)).prefill_tokens_pending == 1070


STEP_SIGNALS = [
    "requests_running",
    "requests_waiting",
    "kv_usage",
    "pending_prefills",
    "active_decodes",
    "first_tokens_total",
    "prefill_tokens_total",
    "prefix_queries_total",
]


@pytest.mark.parametrize("signal", STEP_SIGNALS)
def test_a_sample_is_new_by_anything_that_a_step_of_the_engine_changes(signal: str) -> None:
    one: dict[str, Any] = {signal: 1}
    hidden: dict[str, Any] = {signal: None}
    assert not unchanged(snapshot(**one), snapshot())
    assert not unchanged(snapshot(**hidden), snapshot(**one))


def test_a_sample_is_not_new_by_its_time_or_by_what_changes_beside_the_engines_steps() -> None:
    later = snapshot(sequence=9, sample_age_s=0.3, round_trip_s=0.01, gpu_utilization=0.9, weight=2.0)
    assert unchanged(later, snapshot())
