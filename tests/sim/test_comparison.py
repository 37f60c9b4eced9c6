from dataclasses import replace

import pytest

from extproc.core.cost import STRATEGIES
from extproc.core.settings import BalancerSettings, Fault
from extproc.sim import comparison as comparing
from extproc.sim.compared import MISSED_MAX, Row
from extproc.sim.comparison import Comparison, Contender, compare, contender
from extproc.sim.simulation import Run, Setup, simulate
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from tests.sim.fleets import fleet

pytestmark = pytest.mark.usefixtures("capacities_kept")
KNOWN = ", ".join([*sorted(STRATEGIES), "reference"])


def contenders(*names: str) -> tuple[Contender, ...]:
    found = [contender(name, {}) for name in names]
    return tuple(one for one in found if isinstance(one, Contender))


def comparison(*names: str, **changes: object) -> Comparison:
    values = {
        "trace": "generated:conv",
        "requests": 60,
        "fleet": fleet({"count": 2}),
        "contenders": contenders(*names or ("round-robin", "least-added-delay")),
        "loads": (0.6,),
        "seeds": 2,
    }
    return Comparison(**(values | changes))  # type: ignore[arg-type]


def silent(_: str, __: int, ___: int) -> None:
    pass


def test_there_is_a_row_for_each_strategy_at_each_load_in_this_order() -> None:
    compared = compare(comparison("round-robin", "reference", loads=(0.9, 0.3)), 1, silent)
    assert [(row.load, row.strategy) for row in compared.rows] == [
        (0.9, "round-robin"),
        (0.9, "reference"),
        (0.3, "round-robin"),
        (0.3, "reference"),
    ]
    for row in compared.rows:
        assert row.rate_per_s == pytest.approx(row.load * compared.capacity_per_s)
        assert row.per_node.keys() == {"node-1", "node-2"}
        assert sum(row.per_node.values()) == pytest.approx(1.0)
    assert compared.cut == 0


def test_more_processes_find_the_same_as_one() -> None:
    asked = comparison("round-robin", "reference", "least-added-delay:first_token_weight=4")
    told: list[tuple[str, int, int]] = []
    assert compare(asked, 2, lambda *progress: told.append(progress)) == compare(asked, 1, silent)
    assert told == [("capacity", done, 2) for done in range(3)] + [("runs", done, 6) for done in range(7)]


def test_ratios_are_to_round_robin_at_the_same_load_and_absent_without_it() -> None:
    rows = compare(comparison("least-added-delay", "round-robin", loads=(0.3, 1.5)), 1, silent).rows
    for ours, theirs in ((rows[0], rows[1]), (rows[2], rows[3])):
        assert (theirs.ngood_vs_round_robin, theirs.ttft_p90_vs_round_robin, theirs.slowdown_vs_round_robin) == (
            1,
            1,
            1,
        )
        assert ours.ngood_vs_round_robin == pytest.approx(ours.ngood / theirs.ngood)
        assert ours.ttft_p90_vs_round_robin == pytest.approx((ours.ttft_p90_s or 0.0) / (theirs.ttft_p90_s or 1.0))
        assert ours.slowdown_vs_round_robin == pytest.approx((ours.slowdown or 0.0) / (theirs.slowdown or 1.0))
    (alone,) = compare(comparison("least-added-delay", seeds=1), 1, silent).rows
    assert alone.ngood_vs_round_robin is alone.ttft_p90_vs_round_robin is alone.slowdown_vs_round_robin is None


def test_figures_are_means_over_the_seeds_and_the_spread_is_between_them() -> None:
    def row(seeds: int) -> Row:
        return compare(comparison("round-robin", seeds=seeds, loads=(3.0,), requests=200), 1, silent).rows[0]

    one, two = row(1), row(2)
    assert one.ngood_spread is None
    assert two.ngood_spread is not None
    assert 0 < two.ngood_spread < 1
    second = 2 * two.ngood - one.ngood
    assert two.ngood_spread == pytest.approx(abs(one.ngood - second))


def test_loads_are_shares_of_what_this_fleet_and_engine_can_serve() -> None:
    usual = compare(comparison(seeds=1), 1, silent).capacity_per_s
    halved = StepCost(0.0376, 13.2e-5, 16e-5, 6e-8, 6e-9)
    assert compare(comparison(seeds=1, cost=halved), 1, silent).capacity_per_s == pytest.approx(usual / 2)
    assert compare(comparison(seeds=1, fleet=fleet({})), 1, silent).capacity_per_s == pytest.approx(usual / 2, rel=0.1)


def test_every_run_is_set_up_as_the_comparison_says(monkeypatch: pytest.MonkeyPatch) -> None:
    setups: list[Setup] = []

    def simulated(arrivals: list[Arrival], setup: Setup) -> Run:
        setups.append(setup)
        assert len(arrivals) == 60
        return simulate(arrivals, setup)

    monkeypatch.setattr(comparing, "simulate", simulated)
    changed = {
        "routers": 3,
        "snapshot_interval_s": 0.5,
        "first_tokens": False,
        "kv_events": True,
        "lost_share": 0.1,
        "delay_s": 0.2,
        "settings": BalancerSettings(retry_after_s=7),
        "cost": StepCost(0.02),
        "priorities": {"chat": "batch"},
    }
    asked = comparison("lmetric", "reference", **changed)
    compare(asked, 1, silent)
    policy = asked.contenders[0].policy
    assert [(one.seed, one.policy) for one in setups] == [(0, policy), (0, None), (1, policy), (1, None)]
    for one in setups:
        assert {name: getattr(one, name) for name in changed} == changed
        assert one.fleet is asked.fleet


def test_a_row_has_the_means_of_each_class_where_there_are_priorities() -> None:
    asked = comparison("least-added-delay:ttft_s=0.05", trace="generated:mix", loads=(3.0,), requests=200)
    assert compare(asked, 1, silent).rows[0].classes == {}
    (row,) = compare(replace(asked, priorities={"code": "batch"}), 1, silent).rows
    assert list(row.classes) == ["interactive", "standard", "batch"]
    nobody, standard, batch = row.classes.values()
    assert (nobody.requests, nobody.ngood, nobody.ttft_p50_s) == (0, None, None)
    assert standard.requests + batch.requests == 200
    assert standard.refused + batch.refused == row.refused
    assert standard.refused > 0
    assert batch.queued_p90_s is not None
    assert batch.queued_p90_s > 1
    (first,) = compare(replace(asked, priorities={"code": "batch"}, seeds=1), 1, silent).rows
    assert standard.requests != first.classes["standard"].requests
    assert row.ngood_accepted is not None
    assert row.ngood_accepted > row.ngood


@pytest.mark.parametrize("strategy", ["round-robin", "reference"])
def test_what_comes_too_late_for_some_seed_is_told(strategy: str) -> None:
    never = {"kind": "hang", "at_s": 9000, "for_s": 1}
    plan = fleet({"name": "a", "leaves_at_s": 9000, "faults": [never]}, {"name": "b", "joins_at_s": 1})
    asked = comparison(strategy, fleet=plan, loads=(0.3, 0.9))
    found = compare(asked, 1, silent).missed
    assert [(one.strategy, one.load, one.node, one.event, one.at_s, one.runs) for one in found] == [
        (strategy, load, "a", event, 9000, 2) for load in (0.3, 0.9) for event in ("hang", "leave")
    ]
    assert found[0].felt_until_s > found[1].felt_until_s > found[3].felt_until_s > 0


def test_what_never_happened_is_told_up_to_a_bound() -> None:
    nodes = [
        {"name": f"n{place}", "faults": [{"kind": "error", "at_s": 9000 + 2 * at, "for_s": 1} for at in range(100)]}
        for place in range(6)
    ]
    found = compare(comparison("round-robin", "random", fleet=fleet(*nodes), seeds=1), 1, silent).missed
    assert len(found) == MISSED_MAX == 1000
    assert [sum(one.strategy == name for one in found) for name in ("round-robin", "random")] == [600, 400]


def test_what_was_cut_is_told() -> None:
    short = fleet({"kv_blocks": 65})
    assert compare(comparison(fleet=short, seeds=1), 1, silent).cut > 0


@pytest.mark.parametrize(
    ("text", "strategy", "weight", "waiting_max"),
    [
        ("least-added-delay", "least-added-delay", 3.0, 50),
        ("least-added-delay:first_token_weight=4", "least-added-delay", 4.0, 50),
        ("lmetric:first_token_weight=0.5:leave_after_first_token=true", "lmetric", 0.5, 50),
        ("random:ttft_s=2:wait_fraction=0.25", "random", 3.0, 50),
    ],
)
def test_a_strategy_can_bring_settings_of_its_policy(text: str, strategy: str, weight: float, waiting_max: int) -> None:
    found = contender(text, {"strategy": "random", "first_token_weight": 3, "limits": {"requests_waiting_max": 50}})
    assert isinstance(found, Contender)
    assert found.name == text
    assert found.policy is not None
    assert (found.policy.strategy, found.policy.first_token_weight) == (strategy, weight)
    assert found.policy.limits.requests_waiting_max == waiting_max


def test_a_strategy_can_bring_an_objective() -> None:
    found = contender("least-added-delay:ttft_s=2.5:wait_fraction=0", {"ttft_s": 1})
    assert isinstance(found, Contender)
    assert found.policy is not None
    assert (found.policy.ttft_s, found.policy.wait_fraction) == (2.5, 0)


def test_the_reference_has_no_policy() -> None:
    assert contender("reference", {}) == Contender("reference", None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", f"--strategy: wanted one of {KNOWN}, got ''"),
        ("fastest", f"--strategy: wanted one of {KNOWN}, got 'fastest'"),
        ("x" * 1000, f"--strategy: wanted one of {KNOWN}, got 'xxx"),
        (
            "reference:first_token_weight=1",
            "--strategy: wanted reference without settings, got 'reference:first_token_weight=1'",
        ),
        ("lmetric:first_token_weight", "--strategy: wanted name:setting=value, got 'lmetric:first_token_weight'"),
        ("lmetric:weight=1", "--strategy lmetric: wanted a setting of crowding_weight, first_token_weight, "),
        ("lmetric:strategy=random", "--strategy lmetric: wanted a setting of crowding_weight, "),
        ("lmetric:aliases=a", "--strategy lmetric: wanted a setting of crowding_weight, "),
        ("lmetric:priority=batch", "--strategy lmetric: wanted a setting of crowding_weight, "),
        ("lmetric:ttft_s=0", "--strategy lmetric: ttft_s: wanted greater than 0, got '0'"),
        ("lmetric:first_token_weight=x", "--strategy lmetric: first_token_weight: wanted a"),
        ("lmetric:" + "x" * 1000, "--strategy: wanted name:setting=value, got 'lmetric:xxx"),
    ],
)
def test_what_is_no_strategy_is_a_fault(text: str, fault: str) -> None:
    found = contender(text, {})
    assert isinstance(found, list)
    assert isinstance(found[0], Fault)
    assert str(found[0]).startswith(fault)
    assert len(str(found[0])) < 300


def test_a_row_is_pinned() -> None:
    """Changes with the core, the engine and the workload; then what changed should be known before this is renewed."""
    asked = comparison("round-robin", trace="generated:heavy", loads=(0.9,), requests=150)
    (row,) = compare(asked, 1, silent).rows
    expected = {
        "rate_per_s": 2.3432038100437165,
        "ngood": 0.5266666666666666,
        "ngood_spread": 0.4533333333333333,
        "ttft_p50_s": 3.0254962003280816,
        "ttft_p90_s": 10.389496482794492,
        "ttft_p99_s": 16.908819206272028,
        "tpot_p99_s": 0.35450915753679957,
        "slowdown": 5.646297403158393,
    }
    assert {name: getattr(row, name) for name in expected} == pytest.approx(expected, rel=1e-9)
    assert row.per_node == {"node-1": 0.5, "node-2": 0.5}
