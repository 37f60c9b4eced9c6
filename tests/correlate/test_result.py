"""What is said of each signal, of numbers of which it is known how they came about."""

import math
import random

import pytest

from extproc.correlate.gather import Gathered
from extproc.correlate.result import Correlated, Says, correlated
from extproc.correlate.signals import SIGNALS
from extproc.replay.drive import Replay

REQUESTS = 3000


@pytest.fixture(scope="module")
def found() -> Correlated:
    """A prompt's size and the queue make the first token late; KV use follows the size, and n says nothing.

    The batch is known of every other request, the decode step of nineteen.
    """
    gathered, chance = Gathered(Replay().result()), random.Random(5)
    for number in range(REQUESTS):
        own, queue = chance.random(), chance.random()
        gathered.ttft_s.append(own + queue)
        known = {
            "uncached_tokens": own,
            "requests_waiting": queue,
            "kv_usage": own + chance.random() / 2,
            "n": chance.random(),
            "requests_running": queue if number % 2 else math.nan,
            "decode_ms_per_token": queue if number < 19 else math.nan,
            "age_s": own * 3,
            "active_decodes": 7.0,
        }
        for signal in SIGNALS:
            gathered.signals[signal.name].append(known.get(signal.name, math.nan))
    return correlated(gathered)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("uncached_tokens", Says.TELLS),
        ("requests_waiting", Says.TELLS),
        ("requests_running", Says.TELLS),
        ("kv_usage", Says.NOTHING),
        ("n", Says.NOTHING),
        ("age_s", Says.NOTHING),
        ("active_decodes", Says.CONSTANT),
        ("decode_ms_per_token", Says.UNSURE),
        ("gpu_utilization", Says.ABSENT),
    ],
)
def test_it_is_said_beside_the_requests_size(found: Correlated, name: str, says: Says) -> None:
    assert {row.signal: row.says for row in found.rows}[name] is says


def test_alone_a_signal_that_follows_the_size_seems_to_tell(found: Correlated) -> None:
    (row,) = [row for row in found.rows if row.signal == "kv_usage"]
    assert row.rho is not None
    assert row.rho_beside is not None
    assert row.rho.low > 0.3
    assert abs(row.rho_beside.value) < 0.1


def test_of_what_is_known_now_and_then_only_that_counts(found: Correlated) -> None:
    rows = {row.signal: row for row in found.rows}
    assert (rows["requests_running"].known, rows["decode_ms_per_token"].known) == (0.5, 19 / REQUESTS)
    whole, half = rows["requests_waiting"].rho_beside, rows["requests_running"].rho_beside
    assert whole is not None
    assert half is not None
    assert half.value == pytest.approx(whole.value, abs=0.05)


def test_what_tells_most_stands_first_and_what_says_nothing_last(found: Correlated) -> None:
    assert {found.rows[0].signal, found.rows[1].signal} == {"requests_waiting", "requests_running"}
    best = [row.rho_beside or row.rho for row in found.rows]
    values = [one.value for one in best if one is not None]
    assert values == sorted(values, reverse=True)
    assert all(one is None for one in best[len(values) :])


def test_the_times_are_those_of_all_requests(found: Correlated) -> None:
    assert found.ttft_p50_s == pytest.approx(1.0, abs=0.05)
    assert found.ttft_p90_s == pytest.approx(2 - math.sqrt(0.2), abs=0.06)
