"""Cold starts, what nodes can do, and nodes that serve several models."""

from dataclasses import replace

import pytest

from extproc.core.coldstarts import UNSEEN_S, ColdStarts
from extproc.core.forecastsettings import ForecastSettings
from extproc.core.nodepace import GAP_S_MAX, OFF_MAX, PRIOR_SHARE, SHORTEST_S, NodePaces
from extproc.core.settings import ExpectedRates
from extproc.core.snapshot import NodeState, Snapshot
from tests.core.forecasting import LATER_S, forecast, nodes, of, snapshot, steady, view

LOADING, READY, DRAINING = NodeState.LOADING, NodeState.READY, NodeState.DRAINING
SETTINGS = ForecastSettings(models_max=3)


@pytest.fixture
def starts() -> ColdStarts:
    return ColdStarts(SETTINGS, 0.0)


def begin(starts: ColdStarts, seconds: float, boot: str = "one", at_s: float = LATER_S, model: str = "m") -> None:
    # What it will serve is not known before it is ready.
    starts.observe(snapshot(state=LOADING, boot_id=boot, models=None), at_s)
    starts.observe(snapshot(state=LOADING, boot_id=boot, models=None), at_s + seconds / 2)
    starts.observe(snapshot(state=READY, boot_id=boot, models=(model,)), at_s + seconds)


def test_a_cold_start_is_as_long_as_a_node_was_loading(starts: ColdStarts) -> None:
    assert starts.expected_s("m") == SETTINGS.cold_start_s
    begin(starts, 80)
    assert starts.expected_s("m") == 80
    begin(starts, 50, "two")
    assert starts.expected_s("m") == pytest.approx(80 - 0.3 * 30)
    assert starts.expected_s("other") == SETTINGS.cold_start_s


@pytest.mark.parametrize(("seconds", "taken_s"), [(0.5, 30), (30, 30), (31, 31), (120, 120), (5000, 120)])
def test_a_cold_start_is_taken_to_be_within_its_bounds(starts: ColdStarts, seconds: float, taken_s: float) -> None:
    begin(starts, seconds)
    assert starts.expected_s("m") == taken_s


def test_an_engine_that_did_not_answer_for_a_moment_did_not_start(starts: ColdStarts) -> None:
    begin(starts, 80)
    begin(starts, 30)
    assert starts.expected_s("m") == 80
    starts.forget("a")
    begin(starts, 50)
    assert starts.expected_s("m") == pytest.approx(71), "it is another node now"


def test_a_node_that_is_ready_at_once_and_one_that_began_before_us_say_nothing(starts: ColdStarts) -> None:
    starts.observe(snapshot(state=READY), LATER_S)
    begin(starts, 100, "two", at_s=UNSEEN_S - 1)
    assert starts.expected_s("m") == SETTINGS.cold_start_s
    begin(starts, 100, "three", at_s=UNSEEN_S)
    assert starts.expected_s("m") == 100


def test_draining_is_no_step_of_a_start(starts: ColdStarts) -> None:
    starts.observe(snapshot(state=LOADING), LATER_S)
    starts.observe(snapshot(state=DRAINING), LATER_S + 10)
    starts.observe(snapshot(state=READY), LATER_S + 70)
    assert starts.expected_s("m") == 70


def test_models_whose_starts_are_remembered_are_bounded(starts: ColdStarts) -> None:
    for number in range(4):
        begin(starts, 100, f"boot {number}", model=f"m{number}")
    assert [starts.expected_s(f"m{number}") for number in range(4)] == [SETTINGS.cold_start_s, 100, 100, 100]


def test_the_forecast_looks_as_far_ahead_as_a_node_takes_to_start() -> None:
    read = forecast()
    for state, at_s in ((LOADING, LATER_S), (READY, LATER_S + 110)):
        read.observed(view(snapshot(state=state), at_s), at_s)
    assert of(read, nodes(LATER_S + 200), LATER_S + 200).cold_start_s == 110


def busy(number: int, step_ms: float | None = 40.0, tokens: int = 5000, decodes: int = 10) -> Snapshot:
    return replace(
        snapshot(),
        sequence=number,
        prefill_tokens_total=number * tokens,
        active_decodes=decodes,
        decode_ms_per_token=step_ms,
    )


@pytest.fixture
def paces() -> NodePaces:
    return NodePaces(ExpectedRates())


def rate_after(paces: NodePaces, *reports: Snapshot, seconds: float = 1.0) -> float:
    for number, one in enumerate(reports):
        paces.observe(view(one, LATER_S + number * seconds))
    return paces.of(view(reports[-1], LATER_S)).tokens_per_s


def test_a_node_is_taken_to_do_less_than_the_balancer_learned_until_it_shows(paces: NodePaces) -> None:
    power = paces.of(view(snapshot(), LATER_S, rate=9000))
    assert power.tokens_per_s == pytest.approx(9000)  # PRIOR_SHARE of what stands in the view
    assert power.step_s == ExpectedRates().decode_s_per_token
    assert power.kv_tokens == 25_000 * 16
    assert paces.of(view(snapshot(kv_blocks_total=None), LATER_S)).kv_tokens is None


def test_what_a_step_takes_over_the_shortest_one_is_work(paces: NodePaces) -> None:
    # The shortest step lasts 20 ms, others 40: half of the time is work, of 5000 + 1.7 · 10/0.04 tokens a second.
    reports = [busy(0, 20.0), *(busy(number) for number in range(1, 2000))]
    assert rate_after(paces, *reports) == pytest.approx(2 * (5000 + 1.7 * 250), rel=0.05)
    assert paces.of(view(busy(1), LATER_S)).step_s == pytest.approx(0.02)


def test_a_node_that_always_works_as_much_says_nothing_of_what_it_can_do(paces: NodePaces) -> None:
    assert rate_after(paces, *(busy(number) for number in range(500))) == pytest.approx(10_000)


def test_the_shortest_step_is_forgotten_in_the_end(paces: NodePaces) -> None:
    for number, step_ms in enumerate((20.0, 40.0, 40.0, 40.0)):
        paces.observe(view(busy(number, step_ms), LATER_S + number * (SHORTEST_S + 1)))
        assert paces.of(view(busy(1), LATER_S)).step_s == pytest.approx(0.02 if number < 2 else 0.04)


@pytest.mark.parametrize(
    "reports",
    [
        pytest.param([busy(0, decodes=1), busy(1, decodes=1)], id="hardly used"),
        pytest.param([busy(0), busy(1, step_ms=None)], id="no steps"),
        pytest.param([busy(5), busy(1)], id="counters went back"),
        pytest.param([busy(0), replace(busy(9), prefill_tokens_total=None)], id="no totals"),
        pytest.param([busy(0), replace(busy(9), boot_id="two")], id="began anew"),
        pytest.param([busy(0)], id="one report"),
    ],
)
def test_what_tells_nothing_changes_nothing(paces: NodePaces, reports: list[Snapshot]) -> None:
    assert rate_after(paces, *reports) == pytest.approx(10_000)


def test_a_gap_between_reports_tells_nothing(paces: NodePaces) -> None:
    reports = [busy(0, 20.0), busy(1)]
    assert rate_after(paces, *reports, seconds=GAP_S_MAX + 1) == pytest.approx(10_000)
    paces.forget("a")
    assert rate_after(paces, *reports, seconds=GAP_S_MAX) != pytest.approx(10_000)


def test_a_node_that_lies_is_believed_within_bounds(paces: NodePaces) -> None:
    learned = view(busy(1), LATER_S).learned.prefill_tokens_per_s
    much = [busy(number, 20.0 if not number else 40.0, tokens=10**9) for number in range(50)]
    assert rate_after(paces, *much) == pytest.approx(OFF_MAX * learned)
    paces.forget("a")
    little = [busy(number, 0.001 if not number else 1000.0, tokens=0) for number in range(1000)]
    assert rate_after(paces, *little) == pytest.approx(learned / OFF_MAX)
    paces.forget("a")
    assert rate_after(paces, busy(0)) == pytest.approx(PRIOR_SHARE * learned)


def test_models_on_the_same_nodes_need_all_of_them_together() -> None:
    read = forecast()
    steady(read, LATER_S, LATER_S + 600, 20, model="a")
    now_s = steady(read, LATER_S, LATER_S + 600, 10, model="b")
    members = nodes(now_s, 4, models=("a", "b", "c"))
    found = read.of(members, now_s)
    assert [one.model for one in found] == ["a", "b", "c"]
    assert {one.nodes_needed for one in found} == {4}  # 3 / 0.9
    assert [one.saturation for one in found] == pytest.approx([3 / 0.9 / 4] * 3)


def test_models_on_nodes_of_their_own_do_not_share() -> None:
    read = forecast()
    steady(read, LATER_S, LATER_S + 600, 30, model="a")
    now_s = steady(read, LATER_S, LATER_S + 600, 10, model="b")
    members = [
        *(view(snapshot(f"a{number}", models=("a",)), now_s) for number in range(4)),
        view(snapshot("b0", models=("b",)), now_s),
    ]
    assert [one.nodes_needed for one in read.of(members, now_s)] == [4, 2]


def test_a_model_s_work_is_spread_over_all_that_serve_it() -> None:
    read = forecast()
    steady(read, LATER_S, LATER_S + 600, 20, model="a")
    now_s = steady(read, LATER_S, LATER_S + 600, 40, model="b")
    # b goes to four nodes, two of which serve a too: 2 of its 4 nodes' work lie there, beside the 2 of a.
    members = [
        *(view(snapshot(f"ab{number}", models=("a", "b")), now_s) for number in range(2)),
        *(view(snapshot(f"b{number}", models=("b",)), now_s) for number in range(2)),
    ]
    found = {one.model: one.saturation * one.nodes_ready for one in read.of(members, now_s)}
    assert found == {"a": pytest.approx(4 / 0.9), "b": pytest.approx((4 + 2) / 0.9)}


def test_bursts_of_a_model_come_to_all_its_nodes_at_once_however_these_differ() -> None:
    read = forecast()
    for second in range(600):
        for _ in range(100 if second % 64 < 8 else 4):
            read.arrived("a", 1000, LATER_S + second)
    now_s = LATER_S + 600
    one, two = (
        of(
            read,
            [
                *(view(snapshot(f"a{number}", models=("a",)), now_s) for number in range(2)),
                *(view(snapshot(f"b{number}", models=others), now_s) for number in range(2)),
            ],
            now_s,
            "a",
        )
        for others in (("a",), ("a", "b"))
    )
    assert one.nodes_needed >= 4
    assert two.saturation == pytest.approx(one.saturation)


def test_models_are_bounded_and_the_one_asked_for_the_longest_ago_goes() -> None:
    read = forecast(models_max=3)
    for second, model in enumerate("abca"):
        read.arrived(model, 10, LATER_S + second)
    read.arrived("d", 10, LATER_S + 10)
    now_s = LATER_S + 20
    members = nodes(now_s, models=tuple("abcdefgh"))
    assert [one.model for one in read.of(members, now_s)] == ["a", "c", "d"], "those asked for come before the others"
    assert [one.model for one in read.of(members, now_s + 1e6)] == ["a", "b", "c"]


def test_answers_of_models_that_nobody_asked_for_are_not_remembered() -> None:
    read = forecast()
    for _ in range(100):
        read.answered("m", 10_000, LATER_S)
    read.arrived("m", 10, LATER_S)
    assert of(read, nodes(LATER_S + 1), LATER_S + 1).output_tokens_per_s == 0
