"""What a journal's lines may hold: the types alone would let numbers through that the core cannot take."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from pydantic import ValidationError

from extproc.core.admissionsettings import TENANT_CHARS_MAX
from extproc.core.peershares import SHARE_BOUNDS, NodeShare
from extproc.core.request import HOST_CHARS_MAX, MODEL_CHARS_MAX, SUBSET_HOSTS_MAX
from extproc.core.settings import BalancerSettings, Fault, faults_of, shown
from extproc.core.sharing import NODES_TOLD_MAX
from extproc.core.snapshot import (
    ADAPTERS_MAX,
    CONTEXT_LENGTH_TOKENS_MAX,
    COUNTER_MAX,
    KV_BLOCK_SIZE_TOKENS_MAX,
    KV_BLOCKS_MAX,
    LATENCY_MS_MAX,
    MODELS_MAX,
    REQUESTS_MAX,
    ROUND_TRIP_S_MAX,
    ServedModel,
    Snapshot,
)
from extproc.journal.lineform import BLOCK_BYTES
from extproc.journal.lines import (
    LINE_BYTES_MAX,
    Admitted,
    Decided,
    Drained,
    Head,
    KvBlocks,
    Line,
    Lost,
    Models,
    Policy,
    Recounted,
    Rehearsed,
    Reported,
    Routed,
    Served,
    Told,
    Uninspected,
)
from extproc.journal.peerlines import Peer, PeerGone, PeerWord, Placed
from extproc.kvchain import TOKEN_BLOCKS_MAX
from extproc.tokens.blocks import PROMPT_BLOCKS_MAX

CLOCK_S_MAX: Final = 1e12
"""No clock shows more seconds."""
ID_CHARS_MAX: Final = 256
REQUEST_TOKENS_MAX: Final = 10**12
BODY_BYTES_MAX: Final = 2**50
ADMITTED_MAX: Final = 1000
"""Decisions of one call, which are kept until all are there."""
QUEUE_S_MAX: Final = 3600.0
"""No class waits longer."""

_SNAPSHOT: Final[dict[str, tuple[float, float]]] = {
    "sequence": (0, 2**64 - 1),
    "sample_age_s": (0, CLOCK_S_MAX),
    "gpu_utilization": (0, 1),
    "gpu_memory_usage": (0, 1),
    "kv_usage": (0, 1),
    "kv_block_size_tokens": (1, KV_BLOCK_SIZE_TOKENS_MAX),
    "kv_blocks_total": (1, KV_BLOCKS_MAX),
    "kv_blocks_available": (0, KV_BLOCKS_MAX),
    "pending_prefills": (0, REQUESTS_MAX),
    "active_decodes": (0, REQUESTS_MAX),
    "requests_running": (0, REQUESTS_MAX),
    "requests_waiting": (0, REQUESTS_MAX),
    "prefill_latency_ms": (0, LATENCY_MS_MAX),
    "decode_ms_per_token": (0, LATENCY_MS_MAX),
    "prefill_tokens_total": (0, COUNTER_MAX),
    "prefill_seconds_total": (0, COUNTER_MAX),
    "first_tokens_total": (0, COUNTER_MAX),
    "prefix_queries_total": (0, COUNTER_MAX),
    "prefix_hits_total": (0, COUNTER_MAX),
    "adapter_slots_free": (0, ADAPTERS_MAX),
    "round_trip_s": (0, ROUND_TRIP_S_MAX),
    "weight": (0, 1e6),
}
"""What a snapshot's numbers may be."""


def settings_of(where: str, head: Head) -> BalancerSettings | Fault:
    """The balancer's settings of a run."""
    try:
        return BalancerSettings.model_validate(head.settings)
    except ValidationError as error:
        fault = faults_of(error)[0]
        return Fault(f"{where}: settings.{fault.path}", fault.wanted, fault.got)


def snapshot_of(where: str, line: Reported, models: tuple[ServedModel, ...] | None) -> Snapshot | Fault:
    """The snapshot of a report."""
    try:
        snapshot = msgspec.convert(line.snapshot | {"models": models}, Snapshot)
    except msgspec.ValidationError as error:
        return fault_of(where, error, "snapshot")
    if not 0 < len(snapshot.node_id) <= ID_CHARS_MAX:
        return Fault(f"{where}: snapshot.node_id", f"1..{ID_CHARS_MAX} characters", f"{len(snapshot.node_id)}")
    for name, (least, most) in _SNAPSHOT.items():
        value = getattr(snapshot, name)
        if value is not None and not least <= value <= most:
            return Fault(f"{where}: snapshot.{name}", f"{least:g}..{most:g}", shown(value))
    return snapshot


def beyond_bounds(where: str, line: Line) -> Fault | None:
    """The first value of a line that is out of its bounds."""
    for name, value, least, most in _numbers(line):
        if value is not None and not least <= value <= most:
            return Fault(f"{where}: {name}", f"{least:g}..{most:g}", shown(value))
    return None


def fault_of(where: str, error: msgspec.ValidationError, inside: str = "") -> Fault:
    """A fault of a line's types, from words such as: Expected `int`, got `str` - at `$.now_s`."""
    message, _, place = str(error).partition(" - at `$")
    path = (inside + place.rstrip("`")).lstrip(".")
    where = f"{where}: {path}" if path else where
    if (found := re.fullmatch(r"Expected (.*?)(?:, got (.*))?", message)) is not None:
        return Fault(where, found[1], found[2] or "something else")
    if (found := re.fullmatch(r"Object missing required field (.*)", message)) is not None:
        return Fault(where, f"a value for {found[1]}", "none")
    return Fault(where, "what a journal has there", message)


def _numbers(line: Line) -> Iterator[tuple[str, float | None, float, float]]:
    """What of a line could do harm though its type is right, with its bounds. Lengths stand for texts."""
    if not isinstance(line, Policy | Models | Lost | Recounted):
        name = "started_s" if isinstance(line, Head) else "now_s"
        yield name, getattr(line, name), -CLOCK_S_MAX, CLOCK_S_MAX
    yield "request_id (length)", len(getattr(line, "request_id", "")), 0, ID_CHARS_MAX
    if isinstance(line, Routed | Rehearsed | Admitted | Drained) and line.decided is not None:
        yield from _numbers_decided(line.decided, line.now_s)
    match line:
        case (
            Routed(request=request, blocks=blocks, token_blocks=token_blocks)
            | Rehearsed(request=request, blocks=blocks, token_blocks=token_blocks)
            | Recounted(request=request, blocks=blocks, token_blocks=token_blocks)
        ):
            yield "request.request_id (length)", len(request.request_id), 0, ID_CHARS_MAX
            yield "request.model (length)", len(request.model), 0, MODEL_CHARS_MAX
            yield "request.prompt.tokens", request.prompt.tokens, 0, REQUEST_TOKENS_MAX
            yield "request.output_tokens_max", request.output_tokens_max, -REQUEST_TOKENS_MAX, REQUEST_TOKENS_MAX
            yield "request.sequences", request.sequences, 1, REQUESTS_MAX
            yield "request.priority (length)", len(request.priority), 0, ID_CHARS_MAX
            yield "request.tenant (length)", len(request.tenant), 0, TENANT_CHARS_MAX
            yield "request.body_bytes", request.body_bytes, 0, BODY_BYTES_MAX
            yield from _numbers_subset("request.subset", request.subset)
            yield from _numbers_packed("blocks", blocks, PROMPT_BLOCKS_MAX)
            yield from _numbers_packed("token_blocks", token_blocks, TOKEN_BLOCKS_MAX)
        case KvBlocks(node_id=node_id, boot_id=boot_id, stored=stored, removed=removed):
            yield "node_id (length)", len(node_id), 1, ID_CHARS_MAX
            yield "boot_id (length)", len(boot_id), 1, ID_CHARS_MAX
            yield from _numbers_packed("stored", stored, LINE_BYTES_MAX)
            yield from _numbers_packed("removed", removed, LINE_BYTES_MAX)
        case PeerWord() | PeerGone() | Placed():
            yield from _numbers_peer(line)
        case Models(models=models):
            yield "models (length)", len(models), 0, MODELS_MAX
            for place, model in enumerate(models):
                yield f"models.{place}.name (length)", len(model.name), 0, MODEL_CHARS_MAX
                yield f"models.{place}.context_length_tokens", model.context_length_tokens, 1, CONTEXT_LENGTH_TOKENS_MAX
        case Uninspected(subset=subset):
            yield from _numbers_subset("subset", subset)
        case Served(host=host):
            yield "host (length)", len(host), 0, HOST_CHARS_MAX
        case Told(answered=answered):
            yield "answered.request_id (length)", len(answered.request_id), 0, ID_CHARS_MAX
            yield "answered.output_tokens", answered.output_tokens, 0, REQUEST_TOKENS_MAX
            yield "answered.used_tokens", answered.used_tokens, 0, REQUEST_TOKENS_MAX
        case Admitted(left=left):
            yield "left", left, 0, ADMITTED_MAX
        case Lost(lines=lines):
            yield "lines", lines, 1, COUNTER_MAX
        case _:
            pass


def _numbers_peer(line: Peer) -> Iterator[tuple[str, float | None, float, float]]:
    match line:
        case PeerWord(router=router, shares=shares):
            yield "router (length)", len(router), 1, ID_CHARS_MAX
            yield "sequence", line.sequence, 0, 2**64 - 1
            yield "made_at_s", line.made_at_s, -CLOCK_S_MAX, CLOCK_S_MAX
            yield "shares (length)", len(shares), 0, NODES_TOLD_MAX
            for place, share in enumerate(shares):
                yield from _numbers_share(f"shares.{place}", share)
        case PeerGone(router=router):
            yield "router (length)", len(router), 1, ID_CHARS_MAX
        case Placed(node_id=node_id, blocks=blocks):
            yield "node_id (length)", len(node_id), 1, ID_CHARS_MAX
            yield from _numbers_packed("blocks", blocks, PROMPT_BLOCKS_MAX)


def _numbers_share(name: str, share: NodeShare) -> Iterator[tuple[str, float | None, float, float]]:
    yield f"{name}.node_id (length)", len(share.node_id), 1, ID_CHARS_MAX
    yield f"{name}.seen_until_s", share.seen_until_s, -CLOCK_S_MAX, CLOCK_S_MAX
    for field, (least, most) in SHARE_BOUNDS.items():
        yield f"{name}.{field}", getattr(share, field), least, most


def _numbers_packed(name: str, packed: bytes, most: int) -> Iterator[tuple[str, float | None, float, float]]:
    yield f"{name} (bytes beyond a multiple of {BLOCK_BYTES})", len(packed) % BLOCK_BYTES, 0, 0
    yield f"{name} (length)", len(packed) // BLOCK_BYTES, 0, most


def _numbers_subset(name: str, subset: tuple[str, ...] | None) -> Iterator[tuple[str, float | None, float, float]]:
    if subset:
        yield f"{name} (length)", len(subset), 0, SUBSET_HOSTS_MAX
        yield f"{name} (its longest)", max(map(len, subset)), 0, HOST_CHARS_MAX


def _numbers_decided(decided: Decided, now_s: float) -> Iterator[tuple[str, float | None, float, float]]:
    yield "decided.model (length)", len(decided.model or ""), 0, MODEL_CHARS_MAX
    if decided.queued is not None:
        yield "decided.queued.until_s", decided.queued.until_s, now_s, now_s + QUEUE_S_MAX
