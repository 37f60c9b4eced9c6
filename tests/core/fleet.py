"""Small makers for tests of the core: a fleet in one line."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from extproc.core.balancer import Balancer
from extproc.core.cost import Prospects
from extproc.core.decision import Chosen, Decision
from extproc.core.loads import prefill_tokens_ahead, view_of
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, Phase, TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import (
    ALWAYS,
    NEVER,
    NO_LOAD,
    Learned,
    NodeReported,
    NodeState,
    NodeView,
    OwnLoad,
    ServedModel,
    Snapshot,
)

MODEL = "llama"
NOW_S = 1000.0
SETTINGS = BalancerSettings()
POLICY = RoutingPolicy()
LOAD_SCORE = RoutingPolicy(strategy="load-score")
"""Its costs rest on the snapshot alone, so that tests of filters can set the order of nodes by `kv_usage`."""
LEARNED = Learned()


def snapshot(node_id: str = "a", **changes: object) -> Snapshot:
    """A ready, idle node with 1000 KV blocks of 16 tokens."""
    number = sum(node_id.encode()) % 250 + 1
    base = Snapshot(
        node_id=node_id,
        host=f"10.0.0.{number}:8000",
        boot_id="boot-1",
        sequence=1,
        sample_age_s=0.0,
        state=NodeState.READY,
        models=(ServedModel(MODEL, context_length_tokens=8192),),
        gpu_utilization=0.5,
        kv_usage=0.0,
        kv_block_size_tokens=16,
        kv_blocks_total=1000,
        kv_blocks_available=1000,
        pending_prefills=0,
        active_decodes=0,
        requests_running=0,
        requests_waiting=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def view(
    node_id: str = "a",
    own: OwnLoad = NO_LOAD,
    sampled_at_s: float = NOW_S,
    learned: Learned = LEARNED,
    ready_since_s: float = float("-inf"),
    **changes: object,
) -> NodeView:
    """The same as a decision sees it: sampled now, and ready for ever."""
    return view_of(snapshot(node_id, **changes), sampled_at_s, ready_since_s, own, learned)


def request(
    request_id: str = "r1", tokens: int = 100, *, model: str = MODEL, exact: bool = True, **changes: object
) -> InferenceRequest:
    """A chat request."""
    base = InferenceRequest(request_id, model, Endpoint.CHAT, TokenCount(tokens, exact))
    return structs.replace(base, **changes)


def prospects(
    nodes: Sequence[NodeView],
    uncached: Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
    *,
    request_id: str = "r1",
    phase: Phase = Phase.DECODE,
    turn: int = 0,
    **changes: Any,
) -> Prospects:
    """A request of 100 tokens before these nodes, each of which computes 1000 tokens a second; crowding counts not."""
    changes.setdefault("crowding_weight", 0.0)
    return Prospects(
        request_id,
        phase,
        turn,
        nodes,
        uncached or [100] * len(nodes),
        [prefill_tokens_ahead(node, NOW_S) for node in nodes],
        rates or [1000.0] * len(nodes),
        **changes,
    )


def balancer(*snapshots: Snapshot, settings: BalancerSettings = SETTINGS) -> Balancer:
    """A balancer past its start, whose nodes reported just now."""
    made = Balancer(settings, NOW_S - 60)
    for one in snapshots:
        made.observe(NodeReported(one), NOW_S)
    return made


def counts_of(own: OwnLoad) -> OwnLoad:
    """What the ledger counts beside the work, which shrinks by itself and is never more than what is pending."""
    return structs.replace(own, work_tokens=0.0, work_since_s=ALWAYS, sent_tokens=0.0, sent_since_s=NEVER)


def node_of(decision: Decision) -> str:
    """Whom the decision chose; fails where it chose nobody."""
    assert isinstance(decision.outcome, Chosen), decision.outcome
    return decision.outcome.node_id
