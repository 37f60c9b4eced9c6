"""A report as a message to the router, built when it is sent, so that its age is right."""

from dataclasses import dataclass

from extproc.agent.kv.watch import KvReport
from extproc.core.snapshot import REASON_CHARS_MAX, ROUND_TRIP_S_MAX, NodeState, ServedModel, Snapshot
from extproc.pb import nodes_pb2
from extproc.pb.nodes_pb2 import AbsentSignal, AgentMessage, Goodbye, ModelList, NodeSnapshot

_SAMPLE_AGE_MS_MAX = 2**32 - 1
_STATES = {
    NodeState.LOADING: nodes_pb2.NODE_STATE_LOADING,
    NodeState.READY: nodes_pb2.NODE_STATE_READY,
    NodeState.DRAINING: nodes_pb2.NODE_STATE_DRAINING,
}


@dataclass(frozen=True, slots=True)
class Report:
    """What one look at an engine gave."""

    snapshot: Snapshot
    """Its sample age is of no meaning before it is sent, nor is its round trip."""
    sampled_at_s: float
    """On the agent's monotonic clock."""
    kv: KvReport | None = None
    """What changed in the node's prefix cache, if its engine tells; of meaning only until the next is made."""


def snapshot_message(report: Report, now_s: float, round_trip_s: float = 0.0) -> AgentMessage:
    """The whole report as it is sent now, to the router whose stream has this round trip (0: not measured yet)."""
    return AgentMessage(snapshot=node_snapshot(report, now_s, round_trip_s))


def node_snapshot(report: Report, now_s: float, round_trip_s: float, *, with_models: bool = True) -> NodeSnapshot:
    """As `snapshot_message`; without the list of models where the router has it from this boot already."""
    snapshot = report.snapshot
    age_ms = min(max(0, round((now_s - report.sampled_at_s) * 1000)), _SAMPLE_AGE_MS_MAX)
    models = None
    if with_models and snapshot.models is not None:
        models = ModelList(models=[_model(model) for model in snapshot.models])
    return NodeSnapshot(
        node_id=snapshot.node_id,
        host=snapshot.host,
        boot_id=snapshot.boot_id,
        sequence=snapshot.sequence,
        sample_age_ms=age_ms,
        state=_STATES[snapshot.state],
        models=models,
        gpu_utilization=snapshot.gpu_utilization,
        gpu_memory_usage=snapshot.gpu_memory_usage,
        kv_cache_usage=snapshot.kv_usage,
        kv_block_size=snapshot.kv_block_size_tokens,
        kv_blocks_total=snapshot.kv_blocks_total,
        available_kv_blocks=snapshot.kv_blocks_available,
        pending_prefill_count=snapshot.pending_prefills,
        active_decode_count=snapshot.active_decodes,
        running_count=snapshot.requests_running,
        waiting_queue_size=snapshot.requests_waiting,
        avg_prefill_latency_ms=snapshot.prefill_latency_ms,
        avg_decode_ms_per_token=snapshot.decode_ms_per_token,
        prefill_tokens_total=snapshot.prefill_tokens_total,
        prefill_seconds_total=snapshot.prefill_seconds_total,
        first_tokens_total=snapshot.first_tokens_total,
        prefix_queries_total=snapshot.prefix_queries_total,
        prefix_hits_total=snapshot.prefix_hits_total,
        adapter_slots_free=snapshot.adapter_slots_free,
        round_trip_ms=min(round_trip_s, ROUND_TRIP_S_MAX) * 1000 or None,
        weight=snapshot.weight,
        not_ready_reason=None if snapshot.not_ready_reason is None else shown_reason(snapshot.not_ready_reason),
        absent=[AbsentSignal(signal=signal, reason=shown_reason(reason)) for signal, reason in snapshot.absent],
    )


def shown_reason(reason: str) -> str:
    """A reason as routers take it: printable and not too long. What an engine or a driver says may be in it."""
    printable = "".join(character if character.isprintable() else "?" for character in reason[:REASON_CHARS_MAX])
    return printable if len(reason) <= REASON_CHARS_MAX else printable[:-1] + "…"


def goodbye_message(report: Report) -> AgentMessage:
    """The goodbye of a reported node."""
    return AgentMessage(goodbye=Goodbye(node_id=report.snapshot.node_id, boot_id=report.snapshot.boot_id))


def _model(model: ServedModel) -> nodes_pb2.ServedModel:
    return nodes_pb2.ServedModel(
        name=model.name,
        version=model.version,
        context_length_tokens=model.context_length_tokens,
        loaded=None if model.loaded else False,
    )
