"""The agents of a simulation: each looks at its node again and again, and what it saw is known one way later."""

from collections.abc import Callable, Sequence
from random import Random

from extproc.core.snapshot import NodeEvent, NodeLeft, NodeReported
from extproc.sim import kvevents
from extproc.sim.agenda import Agenda
from extproc.sim.node import Node
from extproc.sim.sampling import Sampler


class Agents:
    """One for each node, from when that joins until it has drained."""

    def __init__(
        self,
        agenda: Agenda,
        interval_s: float,
        delay_s: float,
        advance: Callable[[Node, float], None],
        tell: Callable[[NodeEvent, float], None],
        *,
        kv_events: bool = False,
    ) -> None:
        """`advance` brings a node up to a time, before it is looked at; `tell` is what routers hear.

        With `kv_events` they hear what its cache has too.
        """
        self._agenda = agenda
        self._interval_s = interval_s
        self._delay_s = delay_s
        self._advance = advance
        self._tell = tell
        self._kv_events = kv_events

    def begin(self, nodes: Sequence[Node], began_s: float, chance: Random) -> None:
        """They look for the first time within an interval of `began_s`, or of when their node joins."""
        for node in nodes:
            sampler = Sampler(node, 2 * self._delay_s)
            joins_s = node.planned.joins_at_s or began_s
            self._agenda.at(joins_s + chance.random() * self._interval_s, self._look, (node, sampler))

    def _look(self, now_s: float, about: tuple[Node, Sampler]) -> None:
        node, sampler = about
        self._advance(node, now_s)
        if node.gone(now_s):
            self._soon(now_s, NodeLeft(node.name, node.name))
            return
        self._soon(now_s, NodeReported(sampler.look(now_s)))
        if self._kv_events and (told := kvevents.told(node)) is not None:
            self._soon(now_s, told)
        self._agenda.at(now_s + self._interval_s, self._look, about)

    def _soon(self, now_s: float, event: NodeEvent) -> None:
        self._agenda.at(now_s + self._delay_s, self._told, event)

    def _told(self, now_s: float, event: NodeEvent) -> None:
        self._tell(event, now_s)
