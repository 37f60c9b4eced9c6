"""What the routers of a simulation tell each other: the words of their balancers, known to the others a way later.

Nothing is folded here: each balancer is asked for its word as `serve` asks it, and is given those of the others. They
share the simulation's time, so no ages are converted. Words are never late or lost unless the plan says so.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Final

from msgspec import Struct

from extproc.core.balancer import Balancer
from extproc.core.peershares import PeerEvent, PeerTold
from extproc.core.settings import BalancerSettings
from extproc.core.sharing import LOOK_S
from extproc.sim.agenda import Agenda

WORDS_HEARD: Final = 3.0
"""A router counts as silent after so many intervals at the earliest: as an operator would set it."""


class Exchanging(Struct, frozen=True, kw_only=True):
    """How routers of a simulation tell each other what they sent."""

    interval_s: float = 0.5
    """How often they tell all of it, see `ExchangeSettings`."""
    placements: bool = False
    """Whether they tell where prompts went, too."""
    delay_s: float = 0.0
    """What a word takes beside the setup's way."""
    lost_share: float = 0.0
    """Share 0..1 of the words and placements that a router does not hear; each of the others loses others."""
    silent: int = 0
    """So many routers, the first ones, hear the others and say nothing."""

    def settings(self, settings: BalancerSettings) -> BalancerSettings:
        """The balancers' settings, with these."""
        silence_s = max(settings.exchange.silence_s, WORDS_HEARD * self.interval_s)
        exchange = settings.exchange.model_copy(update={"interval_s": self.interval_s, "silence_s": silence_s})
        return settings.model_copy(update={"exchange": exchange})


class Exchange:
    """Between balancers that are there from the beginning to the end."""

    def __init__(
        self, agenda: Agenda, balancers: Sequence[Balancer], plan: Exchanging, delay_s: float, seed: int
    ) -> None:
        """`delay_s` is one way from a router to another. The seed says when each begins, and which words are lost."""
        self._agenda = agenda
        self._balancers = balancers
        self._plan = plan
        self._delay_s = delay_s + plan.delay_s
        self._chance = Random(f"exchange {seed}")  # noqa: S311 - no secret
        self._sequences = [0] * len(balancers)

    def begin(self, at_s: float) -> None:
        """Each speaks for the first time within one of its looks, and never in step with the others."""
        for place in range(self._plan.silent, len(self._balancers)):
            first_s = at_s + self._chance.random() * LOOK_S
            self._agenda.at(first_s, self._look, place)
            if self._plan.placements:
                self._balancers[place].placed()  # from now on it keeps them for others
                self._agenda.at(first_s + self._plan.interval_s, self._place, place)

    def _look(self, now_s: float, place: int) -> None:
        word = self._balancers[place].word(now_s)
        if word is not None:
            self._sequences[place] += 1
            self._tell(place, [PeerTold(str(place), self._sequences[place], now_s, word)], now_s)
        self._agenda.at(now_s + LOOK_S, self._look, place)

    def _place(self, now_s: float, place: int) -> None:
        self._tell(place, self._balancers[place].placed(), now_s)
        self._agenda.at(now_s + self._plan.interval_s, self._place, place)

    def _tell(self, place: int, events: Sequence[PeerEvent], now_s: float) -> None:
        for other, balancer in enumerate(self._balancers):
            if other != place and events and not self._is_lost():
                self._agenda.at(now_s + self._delay_s, partial(_hear, balancer), events)

    def _is_lost(self) -> bool:
        return self._plan.lost_share > 0 and self._chance.random() < self._plan.lost_share


def _hear(balancer: Balancer, now_s: float, events: Sequence[PeerEvent]) -> None:
    for event in events:
        balancer.peer(event, now_s)
