"""Any history of calls: it repeats exactly, whoever only asks changes nothing, and postponed work changes nothing."""

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.cost import STRATEGIES
from extproc.core.decision import Chosen
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.settings import BalancerSettings, PrefixSettings
from extproc.core.snapshot import NodeLeft, NodeReported, ServedModel, Snapshot
from tests.core.fleet import MODEL, NOW_S, balancer, request, snapshot

NAMES = "abcd"
POLICIES = [
    *(RoutingPolicy(name=name, strategy=name) for name in sorted(STRATEGIES)),
    RoutingPolicy(name="half", canary=50, destination="override-host"),
]
SMALL = BalancerSettings(prefix=PrefixSettings(index_bytes_max=40_000))
"""An index of a hundred blocks: what one prompt adds, another loses."""


class Step(NamedTuple):
    kind: str
    node: str
    number: int
    amount: int
    share: float


KINDS = ["report", "route", "route", "route", "finish", "first token", "recount", "stream left", "answered"]
KINDS += ["served", "rehearse", "goodbye", "restart", "uninspected", "wait", "wait long"]
STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(KINDS),
        st.sampled_from(NAMES),
        st.integers(0, 30),
        st.integers(0, 5000),
        st.floats(0, 1),
    ),
    max_size=50,
)
Between = Callable[[Balancer, int, float], None]
"""Called before each step."""


class History:
    """A balancer, driven step by step; what it said."""

    def __init__(self, between: Between) -> None:
        self.between = between
        self.fleet = balancer(settings=SMALL)
        self.now_s = NOW_S
        self.sequence = self.routed = 0
        self.boots = dict.fromkeys(NAMES, 1)
        self.open: set[str] = set()
        self.said: list[object] = []

    def run(self, steps: list[Step]) -> list[object]:
        for number, step in enumerate(steps):
            self.between(self.fleet, number, self.now_s)
            self.take(step)
            assert self.fleet.requests_open == len(self.open)
            for view in self.fleet.views():
                own = view.own
                assert 0 <= own.sequences_unseen <= own.sequences_open
                assert min(own.requests_unseen, own.sequences_finished, own.prefill_tokens) >= 0
                assert min(view.in_flight, own.prefills_of_others) >= 0
                assert 0 <= prefill_tokens_ahead(view, self.now_s) <= view.prefill_tokens_pending
            self.said.append(list(self.fleet.views()))
        return self.said

    def take(self, step: Step) -> None:
        fleet, now_s, request_id = self.fleet, self.now_s, f"r{step.number}"
        match step.kind:
            case "report":
                self.said.append(fleet.observe(NodeReported(self.report(step)), now_s))
            case "route":
                self.routed += 1
                decision = fleet.route(asked(f"r{self.routed}", step), POLICIES[step.number % len(POLICIES)], now_s)
                if isinstance(decision.outcome, Chosen):
                    self.open.add(f"r{self.routed}")
                self.said.append(decision)
            case "finish":
                fleet.finish(request_id, now_s)
                self.open.discard(request_id)
            case "first token":
                fleet.first_token(request_id, now_s)
            case "recount":
                fleet.recount(asked(request_id, step))
            case "stream left":
                # Its end is told at once, so that what is open can be counted beside.
                fleet.leave(request_id, now_s)
                fleet.finish(request_id, now_s)
                self.open.discard(request_id)
            case "answered":
                over = step.share < 0.5
                ending = list(Ending)[step.amount % len(Ending)]
                fleet.answered(Answered(request_id, ending, None, MODEL, step.amount, over), now_s)
                if over:
                    self.open.discard(request_id)
            case "served":
                fleet.served(request_id, snapshot(step.node).host, now_s)
            case "rehearse":
                decision = fleet.rehearse(asked(f"observed{step.number}", step), POLICIES[0], now_s)
                assert decision in fleet.decisions(1)
                self.said.append(decision)
            case "goodbye":
                self.said.append(fleet.observe(NodeLeft(step.node, f"boot-{self.boots[step.node]}"), now_s))
            case "restart":
                self.boots[step.node] += 1
                self.said.append(fleet.observe(NodeReported(self.report(step)), now_s))
            case "uninspected":
                self.said.append(fleet.route_uninspected(f"u{step.number}", "", now_s))
            case _:
                self.now_s += step.share * (200 if step.kind == "wait long" else 2)
                self.said.append(fleet.tick(self.now_s))

    def report(self, step: Step) -> Snapshot:
        self.sequence += 1
        return snapshot(
            step.node,
            boot_id=f"boot-{self.boots[step.node]}",
            sequence=self.sequence,
            sample_age_s=step.share,
            models=(ServedModel(MODEL), ServedModel("tuned", loaded=step.number % 2 == 0)),
            kv_usage=step.share,
            requests_running=step.number,
            requests_waiting=step.number // 4,
            pending_prefills=step.number // 3,
            prefill_tokens_total=self.sequence * 1000,
            prefill_seconds_total=self.sequence * step.share,
            first_tokens_total=self.sequence,
            prefix_hits_total=self.sequence * step.amount,
            decode_ms_per_token=10 + step.amount / 100,
        )


def asked(request_id: str, step: Step) -> InferenceRequest:
    model = MODEL if step.share < 0.8 else "tuned"
    blocks = tuple(step.amount % 3 * 1000 + block for block in range(step.number))
    return request(request_id, step.amount, model=model, prompt_blocks=blocks, sequences=1 + step.number % 3)


def nothing(fleet: Balancer, number: int, now_s: float) -> None:
    pass


@settings(max_examples=150)
@given(steps=STEPS)
def test_any_history_keeps_the_books_and_repeats_exactly(steps: list[Step]) -> None:
    assert History(nothing).run(steps) == History(nothing).run(steps)


@settings(max_examples=150)
@given(steps=STEPS, asks=st.lists(st.integers(0, 40), max_size=8))
def test_asking_what_would_be_decided_changes_nothing(steps: list[Step], asks: list[int]) -> None:
    def ask(fleet: Balancer, number: int, now_s: float) -> None:
        for one in asks:
            would = asked(f"would{one}", Step("route", "a", one, one * 97, one / 40))
            fleet.would_route(would, POLICIES[(one + number) % len(POLICIES)], now_s)

    assert History(ask).run(steps) == History(nothing).run(steps)


@settings(max_examples=150)
@given(steps=STEPS)
def test_what_would_be_decided_is_what_is_decided(steps: list[Step]) -> None:
    foretold: list[object] = []

    class Foretelling(History):
        def take(self, step: Step) -> None:
            if step.kind == "route":
                one = asked(f"r{self.routed + 1}", step)
                would = self.fleet.would_route(one, POLICIES[step.number % len(POLICIES)], self.now_s)
                assert self.fleet.requests_open == len(self.open)
                assert would not in self.fleet.decisions(1)
                super().take(step)
                assert would == self.said[-1]
                foretold.append(would)
            else:
                super().take(step)

    Foretelling(nothing).run(steps)
    assert len(foretold) == sum(step.kind == "route" for step in steps)


@settings(max_examples=150)
@given(steps=STEPS, settled=st.sets(st.integers(0, 50)))
def test_when_postponed_work_is_done_never_matters(steps: list[Step], settled: set[int]) -> None:
    def settle(fleet: Balancer, number: int, now_s: float) -> None:
        if number in settled:
            fleet.settle()

    assert History(settle).run(steps) == History(nothing).run(steps)
