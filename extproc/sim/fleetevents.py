"""What a fleet plan says will happen, and when it would have come too late for a run.

Whether a node joins, leaves, or answers errors matters to requests that are still to come; a hang and a slow time are
felt by answers that are under way as well. How long a failure is to last is no event: one that outlasts the run was
there.
"""

from collections.abc import Iterator

from msgspec import Struct

from extproc.sim.fleetplan import FailureKind, FleetPlan


class PlannedEvent(Struct, frozen=True):
    """One thing that happens to one node."""

    node: str
    event: str
    """`join`, `ready`, `leave`, or the kind of a failure."""
    at_s: float
    """Since the simulation's start."""
    felt_by_answers: bool
    """Or by new requests alone."""


class Lasted(Struct, frozen=True):
    """How long a run was one in which events could be felt; times since its start."""

    requests_s: float
    """When the last request came."""
    answers_s: float
    """When the last request was over."""

    def felt_until_s(self, event: PlannedEvent) -> float:
        """An event at this time or after it is felt by nobody."""
        return self.answers_s if event.felt_by_answers else self.requests_s


def events(fleet: FleetPlan) -> Iterator[PlannedEvent]:
    """Node by node. What holds from the start on is none."""
    for node in fleet.nodes:
        if node.joins_at_s:
            yield PlannedEvent(node.name, "join", node.joins_at_s, felt_by_answers=False)
        if node.ready_after_s:
            yield PlannedEvent(node.name, "ready", node.joins_at_s + node.ready_after_s, felt_by_answers=False)
        for fault in node.faults:
            yield PlannedEvent(node.name, fault.kind.value, fault.at_s, fault.kind is not FailureKind.ERROR)
        if node.leaves_at_s is not None:
            yield PlannedEvent(node.name, "leave", node.leaves_at_s, felt_by_answers=False)
