import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.settings import NodeLimits
from extproc.core.snapshot import (
    Applied,
    Ignored,
    NodeLeft,
    NodeReported,
    NotAllowed,
    Observation,
    OwnLoad,
    ServedModel,
)
from extproc.core.table import SnapshotTable
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


def test_own_load_survives_a_snapshot_and_a_restart(table: SnapshotTable) -> None:
    report(table)
    table.set_own("a", OwnLoad(3, 2, 1))
    report(table, sequence=2)
    report(table, boot_id="boot-2")
    view = table.get("a")
    assert view is not None
    assert view.own == OwnLoad(3, 2, 1)
    table.set_own("nobody", OwnLoad(1, 1, 1))
    assert table.get("nobody") is None


EVENTS = st.one_of(
    st.builds(
        lambda node, boot, sequence, age: NodeReported(
            snapshot(node, boot_id=boot, sequence=sequence, sample_age_s=age)
        ),
        st.sampled_from("abc"),
        st.sampled_from(["x", "y"]),
        st.integers(1, 5),
        st.floats(0, 20),
    ),
    st.builds(NodeLeft, st.sampled_from("abc"), st.sampled_from(["x", "y"])),
)


@given(events=st.lists(st.tuples(EVENTS, st.floats(0, 100)), max_size=40))
def test_any_events_leave_a_bounded_table_whose_sequences_only_rise(
    events: list[tuple[NodeReported | NodeLeft, float]],
) -> None:
    table = SnapshotTable(NodeLimits(nodes_max=2))
    now_s = NOW_S
    for event, passed_s in events:
        now_s += passed_s
        before = {view.snapshot.node_id: view.snapshot for view in table.views()}
        observation = table.apply(event, now_s)
        after = {view.snapshot.node_id: view.snapshot for view in table.views()}
        if not isinstance(observation, Applied):
            assert before == after
        for node_id in before.keys() & after.keys():
            if before[node_id].boot_id == after[node_id].boot_id:
                assert after[node_id].sequence >= before[node_id].sequence
        assert len(table) <= 2
