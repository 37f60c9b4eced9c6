"""Which static nodes are members, whatever agents say and however long they say nothing."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.settings import NodeLimits
from extproc.core.snapshot import Applied, NodeLeft, NodeReported, NotAllowed
from extproc.core.staticsettings import StaticNode
from extproc.core.table import SnapshotTable
from tests.core.fleet import NOW_S, snapshot

HOSTS = tuple(f"10.2.0.{number}:80" for number in range(1, 5))
STATIC = tuple(StaticNode(host=host, node_id=node_id) for host, node_id in zip(HOSTS[:3], "abc", strict=True))
IDS = st.sampled_from("abxy")
LIMITS = NodeLimits(member_s=30.0)

REPORTS = st.tuples(st.just("report"), IDS, st.sampled_from(HOSTS))
GOODBYES = st.tuples(st.just("goodbye"), IDS, st.just(""))
TICKS = st.tuples(st.just("tick"), st.just(""), st.just(""))


class Model:
    """The rule again, looked up anew each time instead of kept up to date."""

    def __init__(self) -> None:
        self.agents: dict[str, tuple[str, float]] = {}
        self.members = {one.node_id for one in STATIC}
        self.away_until_s: dict[str, float] = {}

    def spoken_for(self) -> set[str]:
        return {one.node_id for one in STATIC for node_id in self.agents if self.speaks(node_id, one)}

    def speaks(self, node_id: str, one: StaticNode) -> bool:
        return node_id == one.node_id or self.agents[node_id][0] == one.host

    def is_taken(self, host: str, node_id: str, now_s: float) -> bool:
        return any(
            other != node_id and at == host and now_s - told_s < LIMITS.fresh_s
            for other, (at, told_s) in self.agents.items()
        )

    def report(self, node_id: str, host: str, now_s: float) -> None:
        before = self.spoken_for()
        self.agents[node_id] = (host, now_s)
        self.members -= self.spoken_for()
        for static_id in before - self.spoken_for():
            self.away_until_s[static_id] = now_s

    def leave(self, node_id: str, back_at_s: float) -> None:
        before = self.spoken_for()
        del self.agents[node_id]
        for static_id in before - self.spoken_for():
            self.away_until_s[static_id] = back_at_s

    def tick(self, now_s: float) -> None:
        for node_id, (_, told_s) in list(self.agents.items()):
            if told_s <= now_s - LIMITS.member_s:
                self.leave(node_id, now_s)
        for one in STATIC:
            if self.away_until_s.get(one.node_id, 0.0) <= now_s and one.node_id not in self.spoken_for():
                self.members.add(one.node_id)


@given(
    st.lists(st.tuples(REPORTS | GOODBYES | TICKS, st.sampled_from([0.0, 1.0, 20.0, 31.0])), max_size=30),
)
def test_a_static_node_is_a_member_where_nobody_speaks_for_it_or_did_and_said_goodbye(
    events: list[tuple[tuple[str, str, str], float]],
) -> None:
    table, model, now_s = SnapshotTable(LIMITS, STATIC), Model(), NOW_S
    for sequence, ((kind, node_id, host), passed_s) in enumerate(events, start=1):
        now_s += passed_s
        if kind == "report":
            before = {view.snapshot.node_id for view in table.views() if view.is_static}
            seen = table.apply(NodeReported(snapshot(node_id, host=host, sequence=sequence)), now_s)
            if model.is_taken(host, node_id, now_s):
                assert isinstance(seen, NotAllowed)
            else:
                model.report(node_id, host, now_s)
                assert seen == Applied(tuple(sorted(before - model.members - {node_id})))
        elif kind == "goodbye" and node_id in model.agents:
            assert table.apply(NodeLeft(node_id, "boot-1"), now_s) == Applied()
            model.leave(node_id, now_s + LIMITS.member_s)
        elif kind == "tick":
            table.prune(now_s)
            table.bring_back(now_s)
            model.tick(now_s)
        static = {view.snapshot.node_id for view in table.views() if view.is_static}
        told = {view.snapshot.node_id for view in table.views() if not view.is_static}
        assert (static, told) == (model.members, set(model.agents))
        for view in table.views():
            at = table.at(view.snapshot.host)
            if view.is_static:
                assert at == view.snapshot.node_id
