"""What becomes of one request of a simulation, filled in as it happens."""

from msgspec import Struct

from extproc.sim.measures import Served, isolated
from extproc.sim.node import Node
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival


class Progress(Struct):
    """One request; times of the simulation, as its client sees them."""

    sent_s: float = 0.0
    node: Node | None = None
    """`None`: no router found it one."""
    left_router_s: float | None = None
    """When a router sent it on, or knew of no node; `None`: it was refused, or waits."""
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int = 0
    refused: bool = False
    failed: bool = False

    def served(self, index: int, arrival: Arrival, cost: StepCost, priority: str) -> Served:
        """The record of it, beside how the same request would fare alone."""
        alone = isolated(arrival.prompt_tokens, arrival.output_tokens, cost)
        return Served(
            arrival=index,
            node="" if self.node is None else self.node.name,
            sent_s=self.sent_s,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=arrival.output_tokens,
            cached_tokens=self.cached_tokens,
            refused=self.refused,
            failed=self.failed,
            isolated_prefill_s=alone.prefill_s,
            isolated_e2e_s=alone.e2e_s,
            priority=priority,
            queued_s=0.0 if self.left_router_s is None else self.left_router_s - self.sent_s,
        )
