"""What holds of those who wait, whatever happens: a balancer and, beside it, a list of who waits."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import ADMITTED_AT_ONCE_MAX, Balancer
from extproc.core.decision import Chosen, Decision, Queued, Refused
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest, TokenCount
from extproc.core.room import Limits
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeLeft, NodeReported, NodeState, ServedModel
from tests.core.fleet import NOW_S, request, snapshot
from tests.core.test_router_properties import may_hold

CLASSES = {
    "high": PriorityClass(queue_ms_max=3000, queue_requests_max=4, queue_bytes_max=500, reserved_share=0.2),
    "never": PriorityClass(),
    "mid": PriorityClass(queue_ms_max=4000, queue_requests_max=5),
    "low": PriorityClass(queue_ms_max=6000, queue_requests_max=6, queue_bytes_max=700),
}
NAMES = list(CLASSES)
SETTINGS = BalancerSettings(classes=CLASSES, default_class="low")
POLICIES = [
    RoutingPolicy(),
    RoutingPolicy(strategy="load-score"),
    RoutingPolicy(limits=Limits(kv_blocks_required=True)),
    RoutingPolicy(limits=Limits(requests_waiting_max=50)),
    RoutingPolicy(fallback_models={"x": "y"}),
    RoutingPolicy(canary=50, destination="override-host"),
]
LISTS = [
    None,
    (ServedModel("x", context_length_tokens=1000),),
    (ServedModel("x", context_length_tokens=4000), ServedModel("y")),
    (ServedModel("x"), ServedModel("z", loaded=False)),
    (ServedModel("y", context_length_tokens=1000), ServedModel("z", context_length_tokens=2000)),
]
NODE_IDS = "abc"
HOSTS = {node_id: snapshot(node_id).host for node_id in NODE_IDS}
ALIKE = ("model", "priority", "tenant", "prompt", "output_tokens_max", "subset")
"""What puts requests in one lane, behind each other."""
HAPPENS = [
    *["comes"] * 12,
    *["report"] * 4,
    *["all report"] * 3,
    *["look"] * 5,
    *["finish"] * 3,
    *["time"] * 4,
    *["gives up", "counted", "first_token", "answered", "served"] * 2,
    *["other models"] * 2,
    *["leave", "leaves", "tick", "drain"],
]
REPORTS = st.fixed_dictionaries(
    {
        "free": st.sampled_from([0, 0, 1, 2, 52]),
        "state": st.sampled_from([NodeState.READY] * 8 + [NodeState.LOADING, NodeState.DRAINING]),
        "kv_blocks_available": st.sampled_from([0, 20, 1000]),
    }
)
ARRIVALS = st.fixed_dictionaries(
    {
        "priority": st.sampled_from(NAMES),
        "model": st.sampled_from(["x"] * 4 + ["y", "z", "nobody's"]),
        "tokens": st.sampled_from([10, 100, 300, 1500]),
        "exact": st.booleans(),
        "output_tokens_max": st.sampled_from([None, 10, 800]),
        "tenant": st.sampled_from("tu"),
        "body_bytes": st.sampled_from([0, 100, 300]),
        "prompt_blocks": st.sampled_from([(), (1, 2, 3), (1, 2, 9)]),
        "subset": st.sampled_from([*[None] * 6, (HOSTS["a"],), (HOSTS["b"], HOSTS["c"]), ("10.9.9.9:1",), ()]),
    }
)


class Crowds(RuleBasedStateMachine):
    """The shell looks when it is told to, at once or later; time alone it notices at once.

    What must hold of who goes: of all that wait and come before it, by class, none could be served by its node.
    """

    def __init__(self) -> None:
        super().__init__()
        self.balancer = self.made()
        self.twin = self.made()
        """Told the same, to see that the same comes of it."""
        self.balancer.on_room = self._room
        self.now_s = NOW_S
        self.number = 0
        self.told = False
        """Of room, since the last look."""
        self.lists: dict[str, Any] = {}
        self.policies: dict[str, RoutingPolicy] = {}
        self.waiting: dict[str, tuple[InferenceRequest, float]] = {}
        """With the time until which they wait, the first who came first."""
        self.sent: set[str] = set()

    @staticmethod
    def made() -> Balancer:
        return Balancer(SETTINGS, NOW_S - 60)

    def _room(self) -> None:
        self.told = True

    def call(self, name: str, *arguments: Any) -> Any:
        answer = getattr(self.balancer, name)(*arguments)
        assert getattr(self.twin, name)(*arguments) == answer
        return answer

    # What can happen.

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        for node_id in NODE_IDS:
            self.lists[node_id] = data.draw(st.sampled_from(LISTS))
            self.report(node_id, 0)

    @rule(data=st.data(), what=st.sampled_from(HAPPENS))
    def happens(self, data: Any, what: str) -> None:
        """One rule for all, for what happens often must be likely."""
        match what:
            case "report":
                self.report(data.draw(st.sampled_from(NODE_IDS)), **data.draw(REPORTS))
            case "other models":
                node_id = data.draw(st.sampled_from(NODE_IDS))
                self.lists[node_id] = data.draw(st.sampled_from(LISTS))
                self.report(node_id, data.draw(st.sampled_from([0, 0, 3])))
            case "all report":
                for node_id in NODE_IDS:
                    self.report(node_id, **data.draw(REPORTS))
            case "leaves":
                self.call("observe", NodeLeft(data.draw(st.sampled_from(NODE_IDS)), "boot-1"), self.now_s)
            case "comes":
                self.comes(data.draw(ARRIVALS), data.draw(st.sampled_from(POLICIES)))
            case "look":
                self.look()
            case "time":
                self.now_s += data.draw(st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0]))
                self.look()
            case "gives up" if self.waiting:
                request_id = data.draw(st.sampled_from(sorted(self.waiting)))
                del self.waiting[request_id]
                self.call("finish", request_id, self.now_s)
            case "counted" if self.waiting:
                one, until_s = self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))]
                counted = replace(one, prompt=TokenCount(data.draw(st.sampled_from([10, 1500, 5000])), exact=True))
                self.call("recount", counted)
                self.waiting[one.request_id] = (counted, until_s)
            case "first_token" | "finish" | "leave" if self.sent:
                self.call(what, data.draw(st.sampled_from(sorted(self.sent))), self.now_s)
            case "served" if self.sent:
                host = data.draw(st.sampled_from(sorted(HOSTS.values())))
                self.call("served", data.draw(st.sampled_from(sorted(self.sent))), host, self.now_s)
            case "answered" if self.sent:
                request_id, ending = data.draw(st.sampled_from(sorted(self.sent))), data.draw(st.sampled_from(Ending))
                self.call("answered", Answered(request_id, ending, over=data.draw(st.booleans())), self.now_s)
            case "tick":
                self.call("tick", self.now_s)
            case "drain":
                decisions = self.call("drain", self.now_s)
                assert {decision.request_id for decision in decisions} == set(self.waiting)
                assert all(isinstance(decision.outcome, Refused) for decision in decisions)
                self.waiting.clear()

    def report(self, node_id: str, free: int, **told: Any) -> None:
        """The node tells that so many more requests make it full."""
        self.number += 1
        one = snapshot(
            node_id,
            sequence=self.number,
            first_tokens_total=self.number,
            requests_waiting=100 - free,
            models=self.lists[node_id],
            **told,
        )
        self.call("observe", NodeReported(one), self.now_s)

    def comes(self, asked: dict[str, Any], policy: RoutingPolicy) -> None:
        self.number += 1
        one = request(f"r{self.number}", **asked)
        requests, held_bytes = self.held(one.priority)
        would = self.balancer.would_route(one, policy, self.now_s)
        decision = self.call("route", one, policy, self.now_s)
        assert decision == would
        match decision.outcome:
            case Chosen(node_id=node_id, fallback=fallback):
                self.sent.add(one.request_id)
                if not fallback:
                    self.nobody_waits_before(NAMES.index(one.priority) + 1, node_id)
            case Queued(until_s=until_s):
                limits = CLASSES[one.priority]
                assert until_s == self.now_s + limits.queue_ms_max / 1000 > self.now_s
                assert requests < limits.queue_requests_max
                assert held_bytes + one.body_bytes <= limits.queue_bytes_max
                assert one.subset != (), "it can go nowhere, however long it waits"
                self.waiting[one.request_id] = (one, until_s)
                self.policies[one.request_id] = policy
            case _:
                pass

    def look(self) -> None:
        self.told = False
        decisions = self.call("admit", self.now_s)
        assert len(decisions) <= 2 * ADMITTED_AT_ONCE_MAX
        self.take(decisions)
        assert self.told or not self.waiting or len(decisions) < ADMITTED_AT_ONCE_MAX, "there may be more"
        assert all(until_s > self.now_s for _, until_s in self.waiting.values()), "nobody's time is up any more"

    # What must hold.

    def take(self, decisions: list[Decision]) -> None:
        """One after another they go: each was waiting, and nobody who waits still comes before it."""
        for decision in decisions:
            one, until_s = self.waiting.pop(decision.request_id)
            assert not isinstance(decision.outcome, Queued)
            assert decision.queued_s <= CLASSES[one.priority].queue_ms_max / 1000 + 5
            if isinstance(decision.outcome, Refused) and "no room" in decision.outcome.message:
                assert until_s <= self.now_s
            if isinstance(decision.outcome, Refused) and decision.outcome.retry_after_s is not None:
                assert 1 <= decision.outcome.retry_after_s <= 60
            if isinstance(decision.outcome, Chosen):
                self.sent.add(one.request_id)
                assert one.subset is None or decision.outcome.host in one.subset
                if not decision.outcome.fallback:
                    self.nobody_waits_before(NAMES.index(one.priority), decision.outcome.node_id)
                self.first_of_its_kind(one)

    def nobody_waits_before(self, rank: int, node_id: str) -> None:
        """Of the classes above this rank nobody waits whom the node could serve, whether or not it has room."""
        (node,) = (view for view in self.balancer.views() if view.snapshot.node_id == node_id)
        for one, _ in self.waiting.values():
            could = may_hold(node, one) and (one.subset is None or node.snapshot.host in one.subset)
            assert NAMES.index(one.priority) >= rank or not could, f"{one.request_id} waits for {node_id}"

    def first_of_its_kind(self, gone: InferenceRequest) -> None:
        """Of those that wait alike it came first, in its lane and of its tenant."""
        policy = self.policies[gone.request_id]
        for one, _ in self.waiting.values():
            alike = all(getattr(one, name) == getattr(gone, name) for name in ALIKE)
            if alike and self.policies[one.request_id] == policy:
                assert int(gone.request_id[1:]) < int(one.request_id[1:])

    def held(self, name: str) -> tuple[int, int]:
        own = [one.body_bytes for one, _ in self.waiting.values() if one.priority == name]
        return len(own), sum(own)

    @invariant()
    def it_holds_those_who_wait_and_nothing_else(self) -> None:
        queue = self.balancer._admission.queue
        assert dict(self.balancer.waiting) == {name: self.held(name) for name in NAMES}
        assert self.balancer.next_deadline_s == min((until_s for _, until_s in self.waiting.values()), default=None)
        assert sum(len(lane) for lane in queue._lanes.values()) == len(self.waiting)
        assert all(queue._lanes.values())
        assert len(queue._deadlines) <= 2 * len(self.waiting) + 64

    @precondition(lambda self: self.waiting and not self.told)
    @invariant()
    def whenever_somebody_could_go_it_was_said(self) -> None:
        """Another one that was told the same looks now, which must change nothing: else the two differ from now on."""
        assert self.twin.admit(self.now_s) == []

    def teardown(self) -> None:
        for request_id in [*self.waiting, *self.sent]:
            self.balancer.finish(request_id, self.now_s)
        queue = self.balancer._admission.queue
        assert (len(queue), queue._lanes, queue.next_deadline_s) == (0, {}, None)
        assert self.balancer.requests_open == 0


TestCrowds = Crowds.TestCase
TestCrowds.settings = settings(stateful_step_count=60)
