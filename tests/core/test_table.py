import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.settings import NodeLimits
from extproc.core.snapshot import (
    Applied,
    Ignored,
    Learned,
    NodeLeft,
    NodeReported,
    NodeState,
    NotAllowed,
    Observation,
    OwnLoad,
    ServedModel,
)
from extproc.core.table import SEQUENCE_JUMP_MAX, SnapshotTable
from tests.core.fleet import MODEL, NOW_S, snapshot

LIMITS = NodeLimits()


def report(table: SnapshotTable, now_s: float = NOW_S, **changes: object) -> Observation:
    return table.apply(NodeReported(snapshot(**changes)), now_s)  # type: ignore[arg-type]


@pytest.fixture
def table() -> SnapshotTable:
    return SnapshotTable(LIMITS)


def boot(table: SnapshotTable) -> str:
    view = table.get("a")
    assert view is not None
    return view.snapshot.boot_id


def test_repeated_and_older_sequences_are_ignored(table: SnapshotTable) -> None:
    assert report(table, sequence=5, kv_usage=0.5) == Applied()
    assert isinstance(report(table, sequence=5, kv_usage=0.1), Ignored)
    assert isinstance(report(table, sequence=4, kv_usage=0.1), Ignored)
    assert report(table, sequence=6, kv_usage=0.6) == Applied()
    view = table.get("a")
    assert view is not None
    assert view.snapshot.kv_usage == 0.6


def test_a_report_that_jumps_far_is_refused_while_the_node_is_fresh(table: SnapshotTable) -> None:
    report(table, sequence=7)
    for made_up in (8 + SEQUENCE_JUMP_MAX, 2**64 - 1):
        observation = report(table, sequence=made_up)
        assert isinstance(observation, NotAllowed)
        assert observation.reason == f"sequence: wanted at most {SEQUENCE_JUMP_MAX} more than 7, got {made_up}"
    assert report(table, sequence=7 + SEQUENCE_JUMP_MAX) == Applied()
    assert report(table, sequence=2**64 - 1, now_s=NOW_S + LIMITS.fresh_s) == Applied()  # nobody knows how long it was


@pytest.mark.parametrize("made_up", [3, 2**64 - 1])
def test_no_report_is_a_boots_last_word(table: SnapshotTable, made_up: int) -> None:
    report(table, sequence=made_up)
    for passed_s in (0.0, LIMITS.fresh_s - 0.001):
        assert isinstance(report(table, sequence=2, now_s=NOW_S + passed_s), Ignored)
    stale_s = NOW_S + LIMITS.fresh_s
    assert isinstance(report(table, sequence=made_up, now_s=stale_s), Ignored)  # the same again
    assert isinstance(report(table, sequence=2, sample_age_s=LIMITS.fresh_s, now_s=stale_s), Ignored)  # it comes late
    assert report(table, sequence=2, now_s=stale_s) == Applied()
    assert isinstance(report(table, sequence=1, now_s=stale_s), Ignored)
    assert report(table, sequence=3, now_s=stale_s) == Applied()


def test_a_new_boot_starts_its_sequences_again(table: SnapshotTable) -> None:
    report(table, sequence=50)
    assert report(table, boot_id="boot-2", sequence=1) == Applied()
    assert boot(table) == "boot-2"


def test_a_late_word_of_the_boot_before_is_not_heard_while_the_new_one_is_fresh(table: SnapshotTable) -> None:
    report(table, sequence=50)
    report(table, boot_id="boot-2", sequence=1)
    assert isinstance(report(table, boot_id="boot-1", sequence=51), Ignored)
    assert boot(table) == "boot-2"
    later_s = NOW_S + LIMITS.fresh_s
    assert report(table, later_s, boot_id="boot-1", sequence=52) == Applied()


def test_a_boot_that_was_over_before_it_was_heard_of_is_not_heard(table: SnapshotTable) -> None:
    """Its engine began anew at once; its only sample comes after that of the next boot."""
    report(table, sequence=50)
    report(table, NOW_S + 3, boot_id="boot-3")
    assert isinstance(report(table, NOW_S + 4, boot_id="boot-2", sample_age_s=1.5), Ignored)
    assert isinstance(report(table, NOW_S + 4, boot_id="boot-2", sample_age_s=0.8, round_trip_s=0.5), Ignored)
    assert boot(table) == "boot-3"


def test_agents_that_share_a_node_id_do_not_take_turns(table: SnapshotTable) -> None:
    heard = []
    for sequence in range(1, 5):
        for name in ("x", "y", "z"):
            report(table, NOW_S + sequence, boot_id=name, sequence=sequence)
            heard.append(boot(table))
    assert heard == ["x", "y"] + ["z"] * 10


def test_a_sample_older_than_the_table_trusts_is_refused(table: SnapshotTable) -> None:
    assert report(table, sample_age_s=LIMITS.stale_s) == Applied()
    assert isinstance(report(table, sequence=2, sample_age_s=LIMITS.stale_s + 0.001), NotAllowed)


def test_a_full_table_refuses_new_nodes_and_hears_the_old_ones() -> None:
    table = SnapshotTable(NodeLimits(nodes_max=2))
    assert report(table, node_id="a") == Applied()
    assert report(table, node_id="b") == Applied()
    assert isinstance(report(table, node_id="c"), NotAllowed)
    assert report(table, node_id="b", sequence=2) == Applied()


def test_model_lists_outlive_a_snapshot_that_knows_none(table: SnapshotTable) -> None:
    report(table)
    report(table, sequence=2, models=None)
    report(table, boot_id="boot-2", models=None)
    view = table.get("a")
    assert view is not None
    assert view.snapshot.models == (ServedModel(MODEL, context_length_tokens=8192),)
    report(table, boot_id="boot-2", sequence=2, models=())
    view = table.get("a")
    assert view is not None
    assert view.context_lengths == {}


def test_a_goodbye_removes_the_boot_it_names_and_no_other(table: SnapshotTable) -> None:
    report(table)
    assert isinstance(table.apply(NodeLeft("a", "boot-0"), NOW_S), Ignored)
    assert isinstance(table.apply(NodeLeft("b", "boot-1"), NOW_S), Ignored)
    assert len(table) == 1
    assert table.apply(NodeLeft("a", "boot-1"), NOW_S) == Applied()
    assert len(table) == 0


def test_a_silent_node_is_forgotten_only_after_member_s(table: SnapshotTable) -> None:
    report(table)
    assert table.prune(NOW_S + LIMITS.member_s - 0.001) == []
    assert table.prune(NOW_S + LIMITS.member_s) == ["a"]
    assert len(table) == 0


def test_own_load_and_what_was_learned_survive_a_snapshot_and_a_restart(table: SnapshotTable) -> None:
    """The balancer clears them where they must not; the table only shows what it is told."""
    own, learned = OwnLoad(3, 2, 1), Learned(5000.0, 700.0)
    report(table)
    table.renew("a", own, learned)
    report(table, sequence=2)
    report(table, boot_id="boot-2")
    view = table.get("a")
    assert view is not None
    assert (view.own, view.learned) == (own, learned)
    table.renew("nobody", own, learned)
    assert table.get("nobody") is None


def test_a_sample_is_older_than_its_arrival_by_its_age_and_by_its_way(table: SnapshotTable) -> None:
    """The way is half of what the agent measured as a round trip."""
    report(table, sample_age_s=0.3, round_trip_s=0.1)
    view = table.get("a")
    assert view is not None
    assert view.sampled_at_s == pytest.approx(NOW_S - 0.35)


def test_a_node_is_found_by_where_it_is_reached(table: SnapshotTable) -> None:
    report(table, node_id="a", host="10.0.0.1:1")
    report(table, node_id="b", host="10.0.0.2:1")
    assert [table.at(f"10.0.0.{number}:1") for number in (1, 2, 3)] == ["a", "b", None]
    report(table, node_id="a", host="10.0.0.3:1", sequence=2)
    assert [table.at(f"10.0.0.{number}:1") for number in (1, 2, 3)] == [None, "b", "a"]
    report(table, NOW_S + 5.1, node_id="c", host="10.0.0.2:1")
    assert table.at("10.0.0.2:1") == "c", "the latest to say so"
    table.apply(NodeLeft("b", "boot-1"), NOW_S)
    assert table.at("10.0.0.2:1") == "c"
    table.apply(NodeLeft("c", "boot-1"), NOW_S)
    assert table.at("10.0.0.2:1") is None


def test_the_host_of_a_fresh_node_is_no_other_nodes(table: SnapshotTable) -> None:
    report(table, node_id="a", host="10.0.0.1:1")
    report(table, node_id="b", host="10.0.0.2:1")
    wanted = "host: wanted one that no other node has, got that of a"
    for node_id, sequence in (("b", 2), ("c", 1)):
        seen = report(table, NOW_S + 4.9, node_id=node_id, host="10.0.0.1:1", sequence=sequence)
        assert seen == NotAllowed(wanted)
        assert table.at("10.0.0.1:1") == "a"
    assert table.get("c") is None
    assert report(table, NOW_S + 4.9, node_id="b", host="10.0.0.2:1", sequence=2) == Applied()
    assert report(table, NOW_S + 5, node_id="b", host="10.0.0.1:1", sequence=3) == Applied(), "a is stale"
    assert report(table, NOW_S + 5, node_id="a", host="10.0.0.1:1", sequence=2) != Applied()
    assert report(table, NOW_S + 5, node_id="a", host="10.0.0.2:1", sequence=2) == Applied(), "b left it"


def test_a_node_is_ready_since_it_was_called_so_for_the_first_time_in_a_row(table: SnapshotTable) -> None:
    states = [
        (NodeState.LOADING, "boot-1", 1.0),
        (NodeState.READY, "boot-1", 2.0),
        (NodeState.READY, "boot-1", 2.0),
        (NodeState.DRAINING, "boot-1", None),
        (NodeState.READY, "boot-1", 5.0),
        (NodeState.READY, "boot-2", 6.0),
        (NodeState.READY, "boot-2", 6.0),
    ]
    for second, (state, boot_id, since_s) in enumerate(states, start=1):
        report(table, NOW_S + second, state=state, boot_id=boot_id, sequence=second)
        view = table.get("a")
        assert view is not None
        assert since_s is None or view.ready_since_s == NOW_S + since_s


def test_adapters_that_are_not_loaded_are_served_and_told_apart(table: SnapshotTable) -> None:
    report(table, models=(ServedModel(MODEL), ServedModel("tuned", loaded=False)))
    view = table.get("a")
    assert view is not None
    assert view.context_lengths == {MODEL: None, "tuned": None}
    assert view.adapters_unloaded == {"tuned"}


EVENTS = st.one_of(
    st.builds(
        lambda node, boot, sequence, age: NodeReported(
            snapshot(node, boot_id=boot, sequence=sequence, sample_age_s=age)
        ),
        st.sampled_from("abc"),
        st.sampled_from(["x", "y"]),
        st.integers(1, 5) | st.integers(SEQUENCE_JUMP_MAX, SEQUENCE_JUMP_MAX + 5),
        st.floats(0, 20),
    ),
    st.builds(NodeLeft, st.sampled_from("abc"), st.sampled_from(["x", "y"])),
)


@given(events=st.lists(st.tuples(EVENTS, st.floats(0, 100)), max_size=40))
def test_any_events_leave_a_bounded_table_whose_sequences_only_rise_while_nodes_are_fresh(
    events: list[tuple[NodeReported | NodeLeft, float]],
) -> None:
    table = SnapshotTable(NodeLimits(nodes_max=2))
    now_s = NOW_S
    for event, passed_s in events:
        now_s += passed_s
        before = {view.snapshot.node_id: view.snapshot for view in table.views()}
        sampled_at_s = {view.snapshot.node_id: view.sampled_at_s for view in table.views()}
        observation = table.apply(event, now_s)
        after = {view.snapshot.node_id: view.snapshot for view in table.views()}
        if not isinstance(observation, Applied):
            assert before == after
        by_host = {view.snapshot.host: view.snapshot.node_id for view in table.views()}
        assert {host: table.at(host) for host in by_host} == by_host
        for node_id in before.keys() & after.keys():
            if before[node_id].boot_id == after[node_id].boot_id and now_s - sampled_at_s[node_id] < LIMITS.fresh_s:
                assert 0 <= after[node_id].sequence - before[node_id].sequence <= SEQUENCE_JUMP_MAX
        assert len(table) <= 2
