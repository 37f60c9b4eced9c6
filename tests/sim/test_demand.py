from pathlib import Path

import pytest

from extproc.core.settings import Fault
from extproc.sim.demand import SPAN_S_MAX, Demand, Span, arrivals, span
from extproc.sim.workloads import generated

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Requests at 0, 1, 3, 6 and 10 s of the trace, which begins at 5 s."""
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + "".join(f"{5 + at_s},{100 + at_s},5\n" for at_s in (0, 1, 3, 6, 10)))
    return str(file)


def demand(trace: str, **changes: object) -> Demand:
    return Demand(**({"trace": trace, "requests": 100} | changes))  # type: ignore[arg-type]


def times(asked: Demand, seed: int = 0) -> list[float]:
    found = arrivals(asked, seed)
    assert not isinstance(found, Fault), found
    return [one.at_s for one in found]


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({}, [0, 1, 3, 6, 10]),
        ({"requests": 3}, [0, 1, 3]),
        ({"requests": 1}, [0]),
        ({"for_s": 6.0}, [0, 1, 3]),  # up to it, without it
        ({"for_s": 6.5}, [0, 1, 3, 6]),
        ({"rate_factor": 2.0}, [0, 0.5, 1.5, 3, 5]),
        ({"rate_factor": 0.5}, [0, 2, 6, 12, 20]),
        ({"rate_factor": 2.0, "for_s": 3.0}, [0, 0.5, 1.5]),
        ({"rate_factor": 2.0, "requests": 2}, [0, 0.5]),
        ({"rate_factor": 2.0, "requests": 1}, [0]),
    ],
)
def test_a_trace_keeps_its_pace_or_is_played_faster_or_slower(
    trace: str, changes: dict[str, object], at: list[float]
) -> None:
    assert times(demand(trace, **changes)) == pytest.approx(at)


def test_a_file_is_read_from_its_beginning_whatever_the_seed_and_never_repeated(trace: str) -> None:
    assert arrivals(demand(trace), 0) == arrivals(demand(trace), 7)
    assert len(times(demand(trace, requests=100))) == 5


def test_what_is_generated_is_chosen_by_the_seed_and_keeps_its_pace() -> None:
    asked = demand("generated:conv", requests=50)
    first = generated("conv", 50, 3)
    assert times(asked, 3) == pytest.approx([one.at_s - first[0].at_s for one in first])
    assert times(asked, 3) != times(asked, 4)
    assert times(asked, 3)[0] == 0


def test_requests_that_all_come_at_one_moment_stay_there(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + "7,1,1\n7,2,2\n")
    assert times(demand(str(file), rate_factor=3.0)) == [0, 0]
    assert span(demand(str(file))) == Span(2, 0.0, 2, 3)


def test_how_much_it_is_is_told(trace: str) -> None:
    found = span(demand(trace, requests=4, rate_factor=2.0))
    assert isinstance(found, Span)
    assert (found.requests, found.span_s, found.trace_requests) == (4, 3.0, 5)
    assert found.mean_tokens == 108  # 107.5: prompts of 100, 101, 103 and 106, answers of 5
    assert found.rate_per_s == 1.0
    assert Span(1, 0.0, None, 2).rate_per_s is None
    made = span(demand("generated:conv", requests=30))
    assert isinstance(made, Span)
    assert (made.requests, made.trace_requests) == (30, None)


def test_longer_than_a_day_is_refused_unless_less_of_it_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEADER + f"0,1,1\n{SPAN_S_MAX:.0f},1,1\n")
    assert times(demand(str(file))) == [0, SPAN_S_MAX]
    file.write_text(HEADER + f"0,1,1\n{SPAN_S_MAX + 1:.0f},1,1\n")
    wanted = "--trace: wanted at most 86400 s from the first request to the last (--for takes less of it), got 86401 s"
    assert str(arrivals(demand(str(file)), 0)) == str(span(demand(str(file)))) == wanted
    assert times(demand(str(file), for_s=SPAN_S_MAX)) == [0]
    assert times(demand(str(file), rate_factor=1.1))[-1] < SPAN_S_MAX


@pytest.mark.parametrize(("name", "at"), [("generated:what", "--trace"), ("none.csv", "none.csv")])
def test_what_cannot_be_read_is_a_fault(name: str, at: str) -> None:
    for found in (arrivals(demand(name), 0), span(demand(name))):
        assert isinstance(found, Fault)
        assert found.path == at
