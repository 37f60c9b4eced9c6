"""What routers of a simulation tell each other: what it is worth, what disturbs it, and what it must not change."""

from functools import cache

import pytest

from extproc.core.balancer import Balancer
from extproc.core.peershares import PeerTold, PromptPlaced
from extproc.core.settings import BalancerSettings
from extproc.core.sharing import LOOK_S
from extproc.core.snapshot import NodeReported
from extproc.sim.agenda import Agenda
from extproc.sim.exchange import Exchange, Exchanging
from extproc.sim.simulation import Run
from tests.core import fleet as cores
from tests.sim.fleets import arrivals, fleet, run

ALL_TOLD = Exchanging(placements=True)

BLOCKS = tuple(range(1, 41))


def simulated(exchange: Exchanging | None, routers: int = 4, workload: str = "heavy", rate_per_s: float = 5.0) -> Run:
    """Four nodes that are busy, whose agents report seldom."""
    arriving = arrivals(250, rate_per_s, workload)
    nodes = fleet({"count": 4})
    return run(arriving, fleet=nodes, routers=routers, exchange=exchange, snapshot_interval_s=2.0)


several = cache(simulated)
"""The same for those who do not ask twice to see whether it is the same."""


def slowdown(result: Run) -> float:
    found = result.measures.slowdown
    assert found is not None
    return found


def test_routers_that_tell_each_other_what_they_sent_are_nearly_as_good_as_one() -> None:
    one, none, told = several(None, routers=1), several(None), several(Exchanging())
    assert slowdown(none) > 1.25 * slowdown(one), "there is something to be won"
    assert slowdown(told) < slowdown(one) + 0.25 * (slowdown(none) - slowdown(one))


def test_prompts_that_begin_alike_are_found_where_others_sent_them() -> None:
    none, loads, told = (
        several(exchange, workload="agents", rate_per_s=20.0) for exchange in (None, Exchanging(), ALL_TOLD)
    )
    assert told.measures.prefix_hit_share > loads.measures.prefix_hit_share + 0.05
    assert slowdown(told) < 0.8 * slowdown(none)


@pytest.mark.parametrize("exchange", [Exchanging(), ALL_TOLD])
def test_one_router_has_nobody_to_tell(exchange: Exchanging) -> None:
    assert several(exchange, routers=1) == several(None, routers=1)


def test_the_same_seed_gives_the_same_words_and_the_same_losses() -> None:
    lossy = Exchanging(placements=True, lost_share=0.4)
    first = simulated(lossy)
    assert first == simulated(lossy)
    assert first != several(ALL_TOLD) != several(None)


@pytest.mark.parametrize(
    "exchange",
    [
        Exchanging(placements=True, lost_share=0.3),
        Exchanging(placements=True, delay_s=2.0),
        Exchanging(placements=True, delay_s=2.0, lost_share=0.3),
        Exchanging(placements=True, silent=1),
    ],
)
def test_words_that_are_lost_or_late_do_no_harm(exchange: Exchanging) -> None:
    result = several(exchange)
    assert result.open_after == 0
    assert all(one.complete for one in result.served)
    assert slowdown(result) < 1.05 * slowdown(several(None))


def test_where_all_are_silent_it_is_as_without_exchange() -> None:
    assert several(Exchanging(placements=True, silent=4)) == several(None)


class Heard:
    """Stands before a balancer, and writes down what it hears and when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[float, Balancer, PeerTold | PromptPlaced]] = []
        take = Balancer.peer

        def peer(balancer: Balancer, event: PeerTold | PromptPlaced, now_s: float) -> bool:
            self.events.append((now_s, balancer, event))
            return take(balancer, event, now_s)

        monkeypatch.setattr(Balancer, "peer", peer)


def two(exchange: Exchanging) -> tuple[Agenda, list[Balancer]]:
    """Two balancers from moment 0 on, the first of which has sent a request."""
    settings = exchange.settings(BalancerSettings())
    balancers = [Balancer(settings, -60.0) for _ in range(2)]
    for balancer in balancers:
        balancer.observe(NodeReported(cores.snapshot()), 0.0)
    agenda = Agenda()
    Exchange(agenda, balancers, exchange, 0.25, 1).begin(0.0)
    request = cores.request(prompt_blocks=BLOCKS)
    balancers[0].route(request, cores.POLICY, 0.0)
    return agenda, balancers


def until(agenda: Agenda, at_s: float) -> None:
    while agenda.next_s <= at_s:
        agenda.go_on()


def test_a_word_is_known_one_way_later_with_the_time_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    agenda, (_, second) = two(Exchanging(delay_s=0.5))
    until(agenda, 0.7499)
    assert heard.events == []
    until(agenda, 0.75 + LOOK_S)
    told = [(now_s, event) for now_s, balancer, event in heard.events if balancer is second]
    ((now_s, event),) = told
    assert isinstance(event, PeerTold)
    assert now_s - event.made_at_s == pytest.approx(0.75)
    view = second.view_of("a")
    assert view is not None
    assert (view.in_flight, view.own.requests_held) == (1, 1)


def test_words_come_at_least_each_interval_and_placements_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    agenda, (first, second) = two(Exchanging(interval_s=1.0, placements=True))
    until(agenda, 4.2)
    words = [one for one in heard.events if isinstance(one[2], PeerTold)]
    placed = [one for one in heard.events if isinstance(one[2], PromptPlaced)]
    assert [event.blocks for _, _, event in placed if isinstance(event, PromptPlaced)] == [BLOCKS]
    for balancer in (first, second):
        assert sum(one[1] is balancer for one in words) == 4
    again = cores.request("again", prompt_blocks=(*BLOCKS, 99))
    assert second.would_route(again, cores.POLICY, 4.2).uncached_tokens == 100 - int(
        len(BLOCKS) * again.tokens_per_block
    )


def test_silence_is_longer_than_words_are_apart() -> None:
    usual = BalancerSettings()
    assert Exchanging().settings(usual).exchange == usual.exchange
    seldom = Exchanging(interval_s=2.0).settings(usual).exchange
    assert (seldom.interval_s, seldom.silence_s) == (2.0, 6.0)
