"""Snapshots off the wire: an agent's message becomes a value of the core, or a reason to refuse it.

Every field is checked, since each of them reaches a decision, a log or a page. A reason names the field, what was
wanted and what came. Unknown is absent, so an absent field is never a fault, except those that name the node.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

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
    KvBlocksTold,
    NodeLeft,
    NodeState,
    ServedModel,
    Snapshot,
)
from extproc.nodehosts import Network
from extproc.pb.nodes_pb2 import (
    NODE_STATE_DRAINING,
    NODE_STATE_LOADING,
    NODE_STATE_READY,
    AbsentSignal,
    Goodbye,
    KvBlocks,
    ModelList,
    NodeSnapshot,
)

ID_LENGTH_MAX = 128
MODEL_VERSION_LENGTH_MAX = 256
WEIGHT_MAX = 1000.0
ABSENT_MAX = 64
"""Signals that a snapshot may call absent; agents may know of more than are known here."""
GOT_LENGTH_MAX = 80
"""Characters of a refused value that a reason repeats."""

_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:/@-]{{0,{ID_LENGTH_MAX - 1}}}")
_ID_WANTED = f"1..{ID_LENGTH_MAX} letters, digits and ._:/@-, beginning with a letter or digit"
_STATES = {
    NODE_STATE_LOADING: NodeState.LOADING,
    NODE_STATE_READY: NodeState.READY,
    NODE_STATE_DRAINING: NodeState.DRAINING,
}


_NUMBERS: tuple[tuple[str, str, float, float, str], ...] = (
    *(
        (field, name, minimum, maximum, f"{minimum}..{maximum}")
        for field, name, minimum, maximum in (
            ("kv_block_size", "kv_block_size_tokens", 1, KV_BLOCK_SIZE_TOKENS_MAX),
            ("kv_blocks_total", "kv_blocks_total", 1, KV_BLOCKS_MAX),
            ("available_kv_blocks", "kv_blocks_available", 0, KV_BLOCKS_MAX),
            ("pending_prefill_count", "pending_prefills", 0, REQUESTS_MAX),
            ("active_decode_count", "active_decodes", 0, REQUESTS_MAX),
            ("running_count", "requests_running", 0, REQUESTS_MAX),
            ("waiting_queue_size", "requests_waiting", 0, REQUESTS_MAX),
            ("prefill_tokens_total", "prefill_tokens_total", 0, COUNTER_MAX),
            ("first_tokens_total", "first_tokens_total", 0, COUNTER_MAX),
            ("prefix_queries_total", "prefix_queries_total", 0, COUNTER_MAX),
            ("prefix_hits_total", "prefix_hits_total", 0, COUNTER_MAX),
            ("adapter_slots_free", "adapter_slots_free", 0, ADAPTERS_MAX),
        )
    ),
    *(
        (field, name, 0.0, maximum, f"a number in 0..{maximum:g}")
        for field, name, maximum in (
            ("gpu_utilization", "gpu_utilization", 1.0),
            ("gpu_memory_usage", "gpu_memory_usage", 1.0),
            ("kv_cache_usage", "kv_usage", 1.0),
            ("avg_prefill_latency_ms", "prefill_latency_ms", LATENCY_MS_MAX),
            ("avg_decode_ms_per_token", "decode_ms_per_token", LATENCY_MS_MAX),
            ("prefill_seconds_total", "prefill_seconds_total", float(COUNTER_MAX)),
            ("round_trip_ms", "round_trip_s", ROUND_TRIP_S_MAX * 1000),
        )
    ),
    ("weight", "weight", math.ulp(0.0), WEIGHT_MAX, f"a number over 0, up to {WEIGHT_MAX:g}"),
)
"""Fields that are numbers: a message's name, a snapshot's, the bounds, and what is wanted."""
_PARTS = (("kv_blocks_available", "kv_blocks_total"), ("prefix_hits_total", "prefix_queries_total"))
"""What is a part of what: where both are known, the first is not over the second."""
_FIELD_NAMES = {name: field for field, name, *_ in _NUMBERS}


def goodbye_of(message: Goodbye) -> NodeLeft | str:
    """A node that leaves, or why the goodbye is refused. Raises for no message."""
    return _id_refusal(message) or NodeLeft(message.node_id, message.boot_id)


def kv_blocks_of(message: KvBlocks) -> KvBlocksTold | str:
    """What a node tells of its cache, or why that is refused. Raises for no message."""
    reason = _id_refusal(message)
    if reason is not None:
        return reason
    return KvBlocksTold(message.node_id, message.boot_id, message.all, tuple(message.stored), tuple(message.removed))


class Known(Struct, frozen=True):
    """What a stream's latest report of a node was: what it repeats is not checked again."""

    snapshot: Snapshot
    models_bytes: bytes | None
    """Its list of models as it came; `None`: it told none."""


def report_of(message: NodeSnapshot, hosts_allowed: Sequence[Network], known: Known | None) -> Known | str:
    """A node's snapshot, or why it is refused. Raises for no message.

    `known` is the latest report of this node id on the same stream, checked against the same networks. Where the
    message tells no models, those of the same boot are still its own.
    """
    before = None if known is None else known.snapshot
    same_boot = before is not None and message.boot_id == before.boot_id and message.node_id == before.node_id
    if not same_boot and (reason := _id_refusal(message)):
        return reason
    if before is None or message.host != before.host:
        wanted_host = nodehosts.refusal(message.host, hosts_allowed)
        if wanted_host:
            return _refused("host", wanted_host, message.host)
    state = _STATES.get(message.state)
    if state is None:
        return _refused("state", "loading, ready or draining", message.state)
    told = _numbers_of(message)
    if isinstance(told, str):
        return told
    not_ready_reason = message.not_ready_reason
    if len(not_ready_reason) > REASON_CHARS_MAX or not not_ready_reason.isprintable():
        wanted = f"at most {REASON_CHARS_MAX} printable characters"
        return _refused("not_ready_reason", wanted, not_ready_reason)
    models, models_bytes = (known.snapshot.models, known.models_bytes) if known and same_boot else (None, None)
    if message.HasField("models"):
        came_bytes = message.models.SerializeToString()
        if models_bytes != came_bytes:
            listed, models_bytes = _models_of(message.models), came_bytes
            if isinstance(listed, str):
                return listed
            models = listed
    absent = _absent_of(message.absent) if message.absent else ()
    if isinstance(absent, str):
        return absent
    snapshot = Snapshot(
        message.node_id,
        message.host,
        message.boot_id,
        message.sequence,
        message.sample_age_ms / 1000,
        state,
        models,
        not_ready_reason=not_ready_reason if message.HasField("not_ready_reason") else None,
        absent=absent,
        **told,
    )
    return Known(snapshot, models_bytes)


def snapshot_of(message: NodeSnapshot, hosts_allowed: Sequence[Network]) -> Snapshot | str:
    """The first report of a node on a stream, as `report_of`."""
    report = report_of(message, hosts_allowed, None)
    return report if isinstance(report, str) else report.snapshot


def shown(got: object) -> str:
    """A value off the wire as a log or a reason may repeat it: escaped, and cut to `GOT_LENGTH_MAX` characters."""
    text = repr(got)
    return text if len(text) <= GOT_LENGTH_MAX else text[: GOT_LENGTH_MAX - 1] + "…"


def _refused(field: str, wanted: str, got: object) -> str:
    return f"{field}: wanted {wanted}, got {shown(got)}"


def _id_refusal(message: NodeSnapshot | Goodbye | KvBlocks) -> str | None:
    if not _ID.fullmatch(message.node_id):
        return _refused("node_id", _ID_WANTED, message.node_id)
    if not _ID.fullmatch(message.boot_id):
        return _refused("boot_id", _ID_WANTED, message.boot_id)
    return None


def _numbers_of(message: NodeSnapshot) -> dict[str, Any] | str:
    """The numbers that are told, by a snapshot's names."""
    # A table keeps the checks in one place; the generated types know the names only as literals. To ask for each field
    # takes a third of the time of `ListFields`.
    has: Callable[[str], bool] = message.HasField  # type: ignore[assignment]
    told: dict[str, Any] = {}
    for field, name, minimum, maximum, wanted in _NUMBERS:
        if has(field):
            number = getattr(message, field)
            if not minimum <= number <= maximum:
                return _refused(field, wanted, number)
            told[name] = number
    for name, whole in _PARTS:
        if name in told and whole in told and told[name] > told[whole]:
            return _refused(_FIELD_NAMES[name], f"at most {_FIELD_NAMES[whole]}, {told[whole]}", told[name])
    if "round_trip_s" in told:
        told["round_trip_s"] /= 1000
    return told


def _absent_of(listed: Sequence[AbsentSignal]) -> tuple[tuple[str, str], ...] | str:
    """Reasons by signal, each once; signals that are not known here are left out."""
    if len(listed) > ABSENT_MAX:
        return _refused("absent", f"at most {ABSENT_MAX}", len(listed))
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
