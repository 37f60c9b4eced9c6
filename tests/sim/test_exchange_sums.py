"""Three balancers that hear of each other at each moment, beside one that is told everything: the same loads."""

from dataclasses import replace
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.outcome import Answered, Ending
from extproc.core.peershares import PeerTold
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported, NodeView
from tests.core.fleet import POLICY, request, snapshot

ROUTERS = 3
NODES = ("a", "b")
INTERVAL_S = 0.0625
"""Between the events; so often each tells all. As all times here it is a sum of powers of two: floats add it so."""
SETTINGS = BalancerSettings(exchange=ExchangeSettings(interval_s=INTERVAL_S))
TOKENS = (16, 160, 1600)

ROUTE, FIRST, END, LEAVE, REPORT, WAIT = "route", "first", "end", "leave", "report", "wait"
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just(ROUTE), st.integers(0, ROUTERS - 1), st.sampled_from(NODES), st.sampled_from(TOKENS)),
        st.tuples(st.sampled_from([FIRST, END, END, LEAVE]), st.integers(0, 20)),
        # How old the sample is, and which of the requests that it may show it calls pending.
        st.tuples(st.just(REPORT), st.sampled_from(NODES), st.integers(0, 4), st.integers(0, 6)),
        st.tuples(st.just(WAIT), st.integers(1, 30)),
    ),
    min_size=1,
    max_size=60,
)


class Fleets:
    """Both, driven by the same events."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.one = Balancer(SETTINGS, 0.0)
        self.three = [Balancer(SETTINGS, 0.0) for _ in range(ROUTERS)]
        self.words = 0
        self.sent: list[tuple[int, str, float]] = []
        """Who sent it, where to, when."""
        self.tokens: list[int] = []
        self.began: dict[int, float] = {}
        self.over: dict[int, float] = {}
        self.reports = 0
        for node_id in NODES:
            self.report(node_id, 0, 0)

    def do(self, event: tuple[Any, ...]) -> None:
        """One event, and then all hear what the others have."""
        self.now_s += INTERVAL_S
        match event:
            case ("route", router, node_id, tokens):
                host = snapshot(node_id).host
                for balancer in (self.one, self.three[router]):
                    asked = request(f"r{len(self.sent)}", tokens, subset=(host,))
                    balancer.route(asked, POLICY, self.now_s)
                self.sent.append((router, node_id, self.now_s))
                self.tokens.append(tokens)
            case ("first", number) if number < len(self.sent):
                self.began.setdefault(number, self.now_s)
                for balancer in self._of(number):
                    balancer.first_token(f"r{number}", self.now_s)
            case ("end", number) if number < len(self.sent):
                self.over.setdefault(number, self.now_s)
                for balancer in self._of(number):
                    balancer.answered(Answered(f"r{number}", Ending.SERVED), self.now_s)
            case ("leave", number) if number < len(self.sent):
                for balancer in self._of(number):
                    balancer.leave(f"r{number}", self.now_s)
            case ("report", node_id, age, pending):
                self.report(node_id, age, pending)
            case ("wait", intervals):
                self.now_s += INTERVAL_S * intervals
        self.tell()

    def report(self, node_id: str, age: int, pending_max: int) -> None:
        """What the node's engine has, as it was so many intervals ago; it may have begun what nobody was told of."""
        at_s = self.now_s - age * INTERVAL_S
        there = [
            number
            for number, (_, where, sent_s) in enumerate(self.sent)
            if where == node_id and sent_s < at_s and self.over.get(number, at_s + 1) > at_s
        ]
        unstarted = [number for number in there if self.began.get(number, at_s + 1) > at_s]
        pending = min(pending_max, len(unstarted))
        self.reports += 1
        told = replace(
            snapshot(node_id),
            sequence=self.reports,
            sample_age_s=age * INTERVAL_S,
            requests_running=len(there),
            requests_waiting=0,
            pending_prefills=pending,
            active_decodes=len(there) - pending,
            first_tokens_total=self.reports,  # each is of another step
        )
        for balancer in (self.one, *self.three):
            balancer.observe(NodeReported(told), self.now_s)

    def tell(self) -> None:
        """Each router's word to all others."""
        words = [balancer.word(self.now_s) for balancer in self.three]
        self.words += 1
        for place, word in enumerate(words):
            assert word is not None
            assert word.everything
            for other, balancer in enumerate(self.three):
                if other != place:
                    balancer.peer(PeerTold(str(place), self.words, self.now_s, word), self.now_s)

    def views(self, node_id: str) -> tuple[NodeView, list[NodeView]]:
        """As the one sees it, and as each of the three does."""
        all_ = [balancer.view_of(node_id) for balancer in (self.one, *self.three)]
        one, *three = (view for view in all_ if view is not None)
        return one, three

    def not_begun_tokens(self, node_id: str) -> int:
        """Of requests at this node that are open."""
        known = self.began | self.over
        there = [number for number, (_, where, _) in enumerate(self.sent) if where == node_id and number not in known]
        return sum(self.tokens[number] for number in there)

    def _of(self, number: int) -> tuple[Balancer, Balancer]:
        return self.one, self.three[self.sent[number][0]]


@given(events=EVENTS)
def test_what_all_have_is_what_one_would_have(events: list[tuple[Any, ...]]) -> None:
    fleets = Fleets()
    for event in events:
        note(repr(event))
        fleets.do(event)
        for node_id in NODES:
            one, three = fleets.views(node_id)
            for view in three:
                assert view.in_flight == one.in_flight
                for name in (
                    "requests_held",
                    "sequences_open",
                    "sequences_unseen",
                    "requests_unseen",
                    "sequences_finished",
                    "kv_blocks_unseen",
                ):
                    assert getattr(view.own, name) == getattr(one.own, name), name


@given(events=EVENTS)
def test_prompt_work_is_never_more_than_all_that_has_not_begun(events: list[tuple[Any, ...]]) -> None:
    """The one takes its newest requests to be pending, each of three its own newest: they may be others, not more."""
    fleets = Fleets()
    for event in events:
        note(repr(event))
        fleets.do(event)
        for node_id in NODES:
            most = fleets.not_begun_tokens(node_id)
            for view in fleets.views(node_id)[1]:
                assert 0 <= view.prefill_tokens_pending <= most
                assert 0 <= prefill_tokens_ahead(view, fleets.now_s) <= most


def all_or_none(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """With samples that call pending all that has not begun, or nothing."""
    return [(*one[:3], 99 if one[3] > 3 else 0) if one[0] == REPORT else one for one in events]


@given(events=EVENTS.map(all_or_none))
def test_prompt_work_is_exactly_that_of_one_where_nobody_has_to_guess(events: list[tuple[Any, ...]]) -> None:
    fleets = Fleets()
    for event in events:
        note(repr(event))
        fleets.do(event)
        for node_id in NODES:
            one, three = fleets.views(node_id)
            assert [view.prefill_tokens_pending for view in three] == [one.prefill_tokens_pending] * ROUTERS
