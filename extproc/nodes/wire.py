"""Snapshots off the wire: an agent's message becomes a value of the core, or a reason to refuse it.

Every field is checked, since each of them reaches a decision, a log or a page. A reason names the field, what was
wanted and what came. Unknown is absent, so an absent field is never a fault, except those that name the node.
"""

import re
from collections.abc import Sequence

from extproc import nodehosts
from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.snapshot import (
    ADAPTERS_MAX,
    CONTEXT_LENGTH_TOKENS_MAX,
    COUNTER_MAX,
    KV_BLOCK_SIZE_TOKENS_MAX,
    KV_BLOCKS_MAX,
    LATENCY_MS_MAX,
    MODELS_MAX,
    REASON_CHARS_MAX,
    REQUESTS_MAX,
    ROUND_TRIP_S_MAX,
    SIGNALS,
    NodeLeft,
    NodeState,
    ServedModel,
    Snapshot,
)
from extproc.pb.nodes_pb2 import (
    NODE_STATE_DRAINING,
    NODE_STATE_LOADING,
    NODE_STATE_READY,
    AbsentSignal,
    Goodbye,
    ModelList,
    NodeSnapshot,
)

ID_LENGTH_MAX = 128
MODEL_VERSION_LENGTH_MAX = 256
WEIGHT_MAX = 1000.0
GOT_LENGTH_MAX = 80
"""Characters of a refused value that a reason repeats."""

_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:/@-]{{0,{ID_LENGTH_MAX - 1}}}")
_ID_WANTED = f"1..{ID_LENGTH_MAX} letters, digits and ._:/@-, beginning with a letter or digit"
_STATES = {
    NODE_STATE_LOADING: NodeState.LOADING,
    NODE_STATE_READY: NodeState.READY,
    NODE_STATE_DRAINING: NodeState.DRAINING,
}
_COUNTS = (
    ("kv_block_size", 1, KV_BLOCK_SIZE_TOKENS_MAX),
    ("kv_blocks_total", 1, KV_BLOCKS_MAX),
    ("available_kv_blocks", 0, KV_BLOCKS_MAX),
    ("pending_prefill_count", 0, REQUESTS_MAX),
    ("active_decode_count", 0, REQUESTS_MAX),
    ("running_count", 0, REQUESTS_MAX),
    ("waiting_queue_size", 0, REQUESTS_MAX),
    ("prefill_tokens_total", 0, COUNTER_MAX),
    ("first_tokens_total", 0, COUNTER_MAX),
    ("prefix_queries_total", 0, COUNTER_MAX),
    ("prefix_hits_total", 0, COUNTER_MAX),
    ("adapter_slots_free", 0, ADAPTERS_MAX),
)
_MEASURES = (
    ("gpu_utilization", 1.0),
    ("gpu_memory_usage", 1.0),
    ("kv_cache_usage", 1.0),
    ("avg_prefill_latency_ms", LATENCY_MS_MAX),
    ("avg_decode_ms_per_token", LATENCY_MS_MAX),
    ("prefill_seconds_total", float(COUNTER_MAX)),
    ("round_trip_ms", ROUND_TRIP_S_MAX * 1000),
)
_PARTS = (("available_kv_blocks", "kv_blocks_total"), ("prefix_hits_total", "prefix_queries_total"))
"""What is a part of what: where both are known, the first is not over the second."""


def goodbye_of(message: Goodbye) -> NodeLeft | str:
    """A node that leaves, or why the goodbye is refused. Raises for no message."""
    return _id_refusal(message) or NodeLeft(message.node_id, message.boot_id)


def snapshot_of(message: NodeSnapshot, hosts_allowed: Sequence[nodehosts.Network]) -> Snapshot | str:
    """A node's snapshot, or why it is refused. Raises for no message."""
    wanted_host = nodehosts.refusal(message.host, hosts_allowed)
    reason = _id_refusal(message) or (wanted_host and _refused("host", wanted_host, message.host))
    if reason:
        return reason
    state = _STATES.get(message.state)
    if state is None:
        return _refused("state", "loading, ready or draining", message.state)
    reason = _number_refusal(message)
    if reason:
        return reason
    if len(message.not_ready_reason) > REASON_CHARS_MAX or not message.not_ready_reason.isprintable():
        wanted = f"at most {REASON_CHARS_MAX} printable characters"
        return _refused("not_ready_reason", wanted, message.not_ready_reason)
    models = _models_of(message.models) if message.HasField("models") else None
    if isinstance(models, str):
        return models
    absent = _absent_of(message.absent)
    if isinstance(absent, str):
        return absent

    def known(name: str) -> bool:
        return message.HasField(name)  # type: ignore[arg-type]

    return Snapshot(
        node_id=message.node_id,
        host=message.host,
        boot_id=message.boot_id,
        sequence=message.sequence,
        sample_age_s=message.sample_age_ms / 1000,
        state=state,
        models=models,
        gpu_memory_usage=message.gpu_memory_usage if known("gpu_memory_usage") else None,
        gpu_utilization=message.gpu_utilization if known("gpu_utilization") else None,
        kv_usage=message.kv_cache_usage if known("kv_cache_usage") else None,
        kv_block_size_tokens=message.kv_block_size if known("kv_block_size") else None,
        kv_blocks_total=message.kv_blocks_total if known("kv_blocks_total") else None,
        kv_blocks_available=message.available_kv_blocks if known("available_kv_blocks") else None,
        pending_prefills=message.pending_prefill_count if known("pending_prefill_count") else None,
        active_decodes=message.active_decode_count if known("active_decode_count") else None,
        requests_running=message.running_count if known("running_count") else None,
        requests_waiting=message.waiting_queue_size if known("waiting_queue_size") else None,
        prefill_latency_ms=message.avg_prefill_latency_ms if known("avg_prefill_latency_ms") else None,
        decode_ms_per_token=message.avg_decode_ms_per_token if known("avg_decode_ms_per_token") else None,
        prefill_tokens_total=message.prefill_tokens_total if known("prefill_tokens_total") else None,
        prefill_seconds_total=message.prefill_seconds_total if known("prefill_seconds_total") else None,
        first_tokens_total=message.first_tokens_total if known("first_tokens_total") else None,
        prefix_queries_total=message.prefix_queries_total if known("prefix_queries_total") else None,
        prefix_hits_total=message.prefix_hits_total if known("prefix_hits_total") else None,
        adapter_slots_free=message.adapter_slots_free if known("adapter_slots_free") else None,
        round_trip_s=message.round_trip_ms / 1000,
        weight=message.weight if known("weight") else 1.0,
        not_ready_reason=message.not_ready_reason if known("not_ready_reason") else None,
        absent=absent,
    )


def shown(got: object) -> str:
    """A value off the wire as a log or a reason may repeat it: escaped, and cut to `GOT_LENGTH_MAX` characters."""
    text = repr(got)
    return text if len(text) <= GOT_LENGTH_MAX else text[: GOT_LENGTH_MAX - 1] + "…"


def _refused(field: str, wanted: str, got: object) -> str:
    return f"{field}: wanted {wanted}, got {shown(got)}"


def _id_refusal(message: NodeSnapshot | Goodbye) -> str | None:
    if not _ID.fullmatch(message.node_id):
        return _refused("node_id", _ID_WANTED, message.node_id)
    if not _ID.fullmatch(message.boot_id):
        return _refused("boot_id", _ID_WANTED, message.boot_id)
    return None


def _number_refusal(message: NodeSnapshot) -> str | None:
    # Tables of names keep the checks in one place; the generated types know the names only as literals.
    for name, minimum, maximum in _COUNTS:
        count = getattr(message, name)
        if message.HasField(name) and not minimum <= count <= maximum:  # type: ignore[arg-type]
            return _refused(name, f"{minimum}..{maximum}", count)
    for name, limit in _MEASURES:
        measure = getattr(message, name)
        if message.HasField(name) and not 0 <= measure <= limit:  # type: ignore[arg-type]
            return _refused(name, f"a number in 0..{limit:g}", measure)
    if message.HasField("weight") and not 0 < message.weight <= WEIGHT_MAX:
        return _refused("weight", f"a number over 0, up to {WEIGHT_MAX:g}", message.weight)
    for name, whole in _PARTS:
        both = message.HasField(name) and message.HasField(whole)  # type: ignore[arg-type]
        if both and getattr(message, name) > getattr(message, whole):
            return _refused(name, f"at most {whole}, {getattr(message, whole)}", getattr(message, name))
    return None


def _absent_of(listed: Sequence[AbsentSignal]) -> tuple[tuple[str, str], ...] | str:
    """Reasons by signal, each once; signals that are not known here are left out."""
    absent: dict[str, str] = {}
    for place, one in enumerate(listed):
        if len(one.reason) > REASON_CHARS_MAX or not one.reason.isprintable():
            return _refused(f"absent.{place}.reason", f"at most {REASON_CHARS_MAX} printable characters", one.reason)
        if one.signal in SIGNALS:
            absent[one.signal] = one.reason
    return tuple(sorted(absent.items()))


def _models_of(message: ModelList) -> tuple[ServedModel, ...] | str:
    if len(message.models) > MODELS_MAX:
        return _refused("models", f"at most {MODELS_MAX}", len(message.models))
    models = []
    for place, model in enumerate(message.models):
        if not (1 <= len(model.name) <= MODEL_CHARS_MAX and model.name.isprintable()):
            return _refused(f"models.{place}.name", f"1..{MODEL_CHARS_MAX} printable characters", model.name)
        if not (len(model.version) <= MODEL_VERSION_LENGTH_MAX and model.version.isprintable()):
            wanted = f"at most {MODEL_VERSION_LENGTH_MAX} printable characters"
            return _refused(f"models.{place}.version", wanted, model.version)
        context_known = model.HasField("context_length_tokens")
        if context_known and not 1 <= model.context_length_tokens <= CONTEXT_LENGTH_TOKENS_MAX:
            wanted = f"1..{CONTEXT_LENGTH_TOKENS_MAX}"
            return _refused(f"models.{place}.context_length_tokens", wanted, model.context_length_tokens)
        models.append(
            ServedModel(
                name=model.name,
                version=model.version if model.HasField("version") else None,
                context_length_tokens=model.context_length_tokens if context_known else None,
                loaded=model.loaded or not model.HasField("loaded"),
            )
        )
    return tuple(models)
