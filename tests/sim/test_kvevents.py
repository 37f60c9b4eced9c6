from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.settings import BalancerSettings, PrefixSettings
from extproc.core.snapshot import KvBlocksTold, NodeEvent, NodeLeft, NodeReported
from extproc.sim import kvevents
from extproc.sim.events import Request
from extproc.sim.kv import KvPool
from extproc.sim.kvevents import token_blocks, told
from extproc.sim.node import Node
from extproc.sim.routers import Routers
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from tests.core.fleet import snapshot
from tests.sim.fleets import MODEL_LISTED, arrivals, fleet, run

KEYS = range(1, 40)
NOW_S = 100.0


def there(pool: KvPool, keys: range = KEYS) -> set[int]:
    return {key for key in keys if pool.cached_prefix((key,), 1)}


def known(balancer: Balancer, node_id: str, keys: set[int]) -> set[int]:
    """The keys of which a balancer knows all numbers to be at a node."""
    index = balancer._fleet.caches.kv
    return {key for key in keys if index.match(token_blocks((key,)), {}).get(node_id) == kvevents.PER_KEY}


def node(**group: object) -> Node:
    return Node(fleet({"kv_blocks": 64} | group).nodes[0], 0, StepCost())


def serve(one: Node, request_id: str, keys: tuple[int, ...], at_s: float) -> None:
    """A prompt of these full blocks, and its answer's one token."""
    one.submit(Request(request_id, 64 * len(keys) + 1, 1, block_keys=keys), at_s)
    list(one.advance(at_s + 10))


def routers(number: int, settings: BalancerSettings | None = None) -> Routers:
    made = Routers(number, RoutingPolicy(), settings or BalancerSettings(), 0.0, 0.0, kv_events=True)
    for node_id in ("a", "b"):
        made.observe(NodeReported(snapshot(node_id, models=MODEL_LISTED)), NOW_S)
    return made


def told_counts(made: Routers, node_id: str) -> list[int | None]:
    return [balancer.kv_blocks_told(node_id) for balancer in made._balancers]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7), st.booleans()), max_size=60), st.integers(0, 60))
def test_changes_make_what_is_there_and_looking_changes_nothing(
    steps: list[tuple[int, int, bool]], first_look: int
) -> None:
    pool, alone = KvPool(9), KvPool(9)
    followed: set[int] = set()
    for place, (length, family, looks) in enumerate(steps):
        keys = [1 + family * 5 + index for index in range(length)]
        for one in (pool, alone):
            shared = one.cached_prefix(keys, length)
            one.share(shared)
            blocks = shared + one.take(length - len(shared))
            one.publish(blocks, keys)
            one.release(blocks)
        if place >= first_look and looks:
            changes = pool.changes()
            assert not set(changes.stored) & set(changes.removed)
            assert len(set(changes.stored)) == len(changes.stored)
            followed = followed - set(changes.removed) | set(changes.stored)
            assert followed == there(pool)
    assert there(pool) == there(alone)
    assert pool.take(8) == alone.take(8)
    assert not alone.logs


def test_a_key_is_some_numbers_and_no_two_share_one() -> None:
    assert kvevents.PER_KEY == 4
    numbers = token_blocks(KEYS)
    assert len(set(numbers)) == len(numbers) == 4 * len(KEYS)
    assert token_blocks((7, 9)) == token_blocks((7,)) + token_blocks((9,))
    assert token_blocks(()) == ()


def test_an_agent_tells_everything_first_and_then_what_changed() -> None:
    one = node()
    assert told(one) is None
    one = node()
    serve(one, "first", (1, 2, 3), 0.0)
    assert told(one) == KvBlocksTold(one.name, one.name, True, token_blocks((1, 2, 3)))
    assert told(one) is None
    serve(one, "second", (1, 2, 4), 20.0)
    assert told(one) == KvBlocksTold(one.name, one.name, False, token_blocks((4,)))
    serve(one, "third", tuple(range(20, 33)), 40.0)
    event = told(one)
    assert event is not None
    assert set(event.stored) == set(token_blocks(range(20, 33)))
    assert event.removed
    assert set(event.removed) < set(token_blocks((1, 2, 3, 4)))


@pytest.mark.parametrize("workload", ["agents", "chats"])
@pytest.mark.parametrize("count_", [1, 3])
def test_every_router_knows_of_a_node_what_it_had_at_its_last_look(
    workload: str, count_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving = arrivals(60, 12.0, workload)
    keys = {key for one in arriving for key in one.prompt_blocks + one.answer_blocks}
    prompted = {key for one in arriving for key in one.prompt_blocks}
    looked: dict[str, deque[set[int]]] = {}
    tells, observe = kvevents.told, Routers.observe
    compared = lost = answers = 0

    def tell(one: Node) -> KvBlocksTold | None:
        event = tells(one)
        if event is not None:
            looked.setdefault(one.name, deque()).append({key for key in keys if one.cached_tokens((key,))})
        return event

    def observed(made: Routers, event: NodeEvent, now_s: float) -> None:
        nonlocal compared, lost, answers
        observe(made, event, now_s)
        if isinstance(event, KvBlocksTold):
            had = looked[event.node_id].popleft()
            assert [known(balancer, event.node_id, keys) for balancer in made._balancers] == [had] * count_
            compared += 1
            lost += len(event.removed)
            answers += len(had - prompted)
        if isinstance(event, NodeLeft):
            assert told_counts(made, event.node_id) == [None] * count_

    monkeypatch.setattr(kvevents, "told", tell)
    monkeypatch.setattr(Routers, "observe", observed)
    late = {"joins_at_s": 2.0, "kv_blocks": 2500}
    leaving = {"leaves_at_s": 3.0, "kv_blocks": 2500}
    run(arriving, fleet=fleet({"kv_blocks": 2500}, late, leaving), routers=count_, kv_events=True, delay_s=0.01)
    assert compared > 8
    assert looked.keys() == {"node-1", "node-2", "node-3"}
    assert lost > 0 or workload == "chats"
    assert answers > 0, "engines cache answers too"


def test_without_kv_events_nobody_looks_and_prompts_have_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[InferenceRequest] = []
    route = Balancer.route

    def routed(balancer: Balancer, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> object:
        asked.append(request)
        return route(balancer, request, policy, now_s)

    monkeypatch.setattr(Balancer, "route", routed)
    monkeypatch.setattr(KvPool, "changes", None)
    arriving = arrivals(10, workload="chats")
    run(arriving)
    assert [one.token_blocks for one in asked] == [()] * 10
    monkeypatch.undo()
    monkeypatch.setattr(Balancer, "route", routed)
    asked.clear()
    run(arriving, kv_events=True)
    assert [one.token_blocks for one in asked] == [token_blocks(one.prompt_blocks) for one in arriving]


def test_a_strategy_that_does_not_look_at_caches_does_the_same_with_kv_events() -> None:
    arriving = arrivals(60, 12.0, "agents")
    assert run(arriving, "round-robin", routers=2) == run(arriving, "round-robin", routers=2, kv_events=True)
    assert run(arriving, routers=2) != run(arriving, routers=2, kv_events=True)


def test_three_routers_that_are_told_find_more_of_prompts_in_caches() -> None:
    arriving = arrivals(150, 20.0, "agents")
    nodes = fleet({"count": 4})
    shares = [
        run(arriving, fleet=nodes, routers=3, kv_events=kv_events, snapshot_interval_s=0.2).measures.prefix_hit_share
        for kv_events in (False, True)
    ]
    assert shares[1] > shares[0] + 0.02, shares


def test_each_router_estimates_what_it_could_not_take_from_then_on() -> None:
    made = routers(2, BalancerSettings(prefix=PrefixSettings(kv_blocks_node_max=10)))
    tell = count(1)

    def stored(node_id: str, keys: int) -> None:
        numbers = token_blocks(next(tell) for _ in range(keys))
        made.observe(KvBlocksTold(node_id, "boot-1", False, numbers), NOW_S)

    stored("a", 2)
    stored("b", 2)
    assert told_counts(made, "a") == [8, 8]
    stored("a", 1)
    assert told_counts(made, "a") == [None, None]
    stored("a", 1)
    assert told_counts(made, "a") == [None, None], "half of what is there would mislead"
    assert told_counts(made, "b") == [8, 8]


def test_what_a_router_forgot_with_its_node_is_not_known_by_half() -> None:
    made = routers(1)
    made.observe(KvBlocksTold("a", "boot-1", False, token_blocks((1, 2))), NOW_S)
    made.tick(NOW_S + 1000)
    made.observe(NodeReported(snapshot("a", sequence=9, models=MODEL_LISTED)), NOW_S + 1001)
    made.observe(KvBlocksTold("a", "boot-1", False, token_blocks((3,))), NOW_S + 1001)
    assert told_counts(made, "a") == [None]
    assert made.route("r", Arrival(0.0, 100, 10), NOW_S + 1001) is not None
