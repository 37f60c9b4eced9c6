"""Requests that wait at a router in simulated time: a node holds one of them at a time."""

from typing import Any

import pytest

from extproc.core.admissionsettings import PriorityClass
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits
from extproc.core.settings import BalancerSettings
from extproc.sim.measures import isolated
from extproc.sim.simulation import Run, Setup
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from tests.sim.fleets import fleet, run, setup
from tests.sim.test_simulation import check_conserved

LONG = RoutingPolicy(limits=Limits(kv_blocks_required=True))
DELAY_S = 0.05


def one(at_s: float, kind: str = "") -> Arrival:
    """Over half of what the node holds."""
    return Arrival(at_s, 10_000, 100, kind=kind)


def waiting(arriving: list[Arrival], queue_s: float = 100.0, **changes: Any) -> Run:
    """Two classes, of which the second may wait, or both."""
    both = changes.pop("both", False)
    classes = {
        "high": PriorityClass(queue_ms_max=round(queue_s * 1000) if both else 0),
        "low": PriorityClass(queue_ms_max=round(queue_s * 1000)),
    }
    settings = BalancerSettings(classes=classes, default_class="low")
    one_node = fleet({"kv_blocks": 1001})
    result = run(arriving, policy=LONG, settings=settings, fleet=one_node, delay_s=DELAY_S, **changes)
    check_conserved(result, len(arriving))
    assert result.ended_s < 100, "refused ones are over, and nobody waits for their answers"
    return result


def test_who_waits_is_sent_when_the_one_before_is_known_to_be_over_and_its_wait_counts() -> None:
    first, second = waiting([one(0.0), one(1.0)]).served
    assert first.queued_s == 0
    assert first.finished_s is not None
    assert second.queued_s == pytest.approx(first.finished_s - 1.0)
    alone = isolated(10_000, 100, StepCost())
    assert second.ttft_s == pytest.approx(second.queued_s + 2 * DELAY_S + alone.prefill_s)


@pytest.mark.parametrize(("margin_s", "refused"), [(0.01, False), (-0.01, True)])
def test_who_waits_is_refused_as_soon_as_its_time_is_up(margin_s: float, refused: bool) -> None:
    first = waiting([one(0.0), one(1.0)]).served[0]
    assert first.finished_s is not None
    queue_s = first.finished_s - 1.0 + margin_s
    _, again = waiting([one(0.0), one(1.0)], queue_s).served
    assert (again.refused, again.complete) == (refused, not refused)


def test_who_may_not_wait_is_refused_at_once() -> None:
    result = waiting([one(0.0), one(1.0, "urgent"), one(1.1)], priorities={"urgent": "high"})
    assert [one.refused for one in result.served] == [False, True, False]
    assert result.classes == ("high", "low")
    assert (result.measures.classes["high"].refused, result.measures.classes["low"].refused) == (1, 0)


def test_a_higher_class_goes_first_and_in_a_class_who_came_first() -> None:
    arriving = [one(0.0), one(1.0), one(1.1), one(1.2, "urgent")]
    served = waiting(arriving, both=True, priorities={"urgent": "high"}).served
    sent = sorted(served, key=lambda one: one.sent_s + one.queued_s)
    assert [one.arrival for one in sent] == [0, 3, 1, 2]


def test_tenants_who_wait_take_turns() -> None:
    arriving = [one(0.0), *(one(1.0 + index / 10, "many") for index in range(3)), one(2.0, "few")]
    served = waiting(arriving, tenants={"many": "a", "few": "b"}).served
    sent = sorted(served, key=lambda one: one.sent_s + one.queued_s)
    assert [one.arrival for one in sent] == [0, 1, 4, 2, 3]


def test_where_some_wait_the_same_run_gives_the_same() -> None:
    arriving = [one(index / 5, "urgent" if index % 3 else "") for index in range(20)]
    runs = [waiting(arriving, 6.0, both=True, priorities={"urgent": "high"}, routers=2) for _ in range(2)]
    assert runs[0] == runs[1]
    assert 0 < runs[0].measures.refused < 20


def test_nobody_has_a_class_and_no_class_has_figures_without_priorities() -> None:
    result = waiting([one(0.0), one(1.0)])
    assert {one.priority for one in result.served} == {""}
    assert (result.classes, result.measures.classes) == ((), {})


@pytest.mark.parametrize(
    ("kind", "policys", "expected"),
    [
        ("chat", None, "interactive"),
        ("chat", "batch", "interactive"),
        ("other", None, "standard"),
        ("other", "batch", "batch"),
        ("other", "unheard-of", "standard"),
        ("", None, "standard"),
    ],
)
def test_a_kind_has_the_class_that_it_is_given_or_the_policys_or_the_default(
    kind: str, policys: str | None, expected: str
) -> None:
    asked = setup(policy=RoutingPolicy(priority=policys), priorities={"chat": "interactive"})
    assert asked.priority(kind) == expected


def test_the_reference_lets_nobody_wait_and_has_figures_of_classes_too() -> None:
    result = run([one(0.0, "chat"), one(0.1)], None, priorities={"chat": "batch"})
    assert [one.priority for one in result.served] == ["batch", "standard"]
    assert [result.measures.classes[name].requests for name in result.classes] == [0, 1, 1]


def test_a_class_that_the_settings_lack_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        run([one(0.0)], priorities={"chat": "unheard-of"})
    assert isinstance(setup(), Setup)
