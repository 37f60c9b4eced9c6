"""Small makers for tests of the core: a fleet in one line."""

from dataclasses import replace

from msgspec import structs

from extproc.core.balancer import Balancer
from extproc.core.request import Endpoint, InferenceRequest, TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NO_LOAD, NodeReported, NodeState, NodeView, OwnLoad, ServedModel, Snapshot

MODEL = "llama"
NOW_S = 1000.0
SETTINGS = BalancerSettings()


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


def view(node_id: str = "a", own: OwnLoad = NO_LOAD, sampled_at_s: float = NOW_S, **changes: object) -> NodeView:
    """The same as a decision sees it, sampled now."""
    one = snapshot(node_id, **changes)
    lengths = None if one.models is None else {model.name: model.context_length_tokens for model in one.models}
    return NodeView(one, sampled_at_s, lengths, own)


def request(
    request_id: str = "r1", tokens: int = 100, *, model: str = MODEL, exact: bool = True, **changes: object
) -> InferenceRequest:
    """A chat request."""
    base = InferenceRequest(request_id, model, Endpoint.CHAT, TokenCount(tokens, exact))
    return structs.replace(base, **changes)


def balancer(*snapshots: Snapshot, settings: BalancerSettings = SETTINGS) -> Balancer:
    """A balancer past its start, whose nodes reported just now."""
    made = Balancer(settings, NOW_S - 60)
    for one in snapshots:
        made.observe(NodeReported(one), NOW_S)
    return made
