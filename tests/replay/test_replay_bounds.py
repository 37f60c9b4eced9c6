"""What agents may report is journaled, and is no damage when it is read."""

from pathlib import Path
from typing import Any

import pytest

from extproc.config import Config
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
    NodeReported,
    Snapshot,
)
from extproc.journal.balancer import close
from extproc.nodes import wire
from extproc.pb.nodes_pb2 import ModelList, ServedModel
from tests.core.fleet import NOW_S
from tests.journaled import journaled
from tests.nodes.messages import snapshot_message
from tests.replay.replaying import replayed

NAME = "m" * 256
MOST: dict[str, Any] = {
    "node_id": "n" * wire.ID_LENGTH_MAX,
    "boot_id": "b" * wire.ID_LENGTH_MAX,
    "sequence": 2**64 - 1,
    "sample_age_ms": 2**32 - 1,
    "models": ModelList(
        models=[ServedModel(name=NAME, version=NAME, context_length_tokens=CONTEXT_LENGTH_TOKENS_MAX)] * MODELS_MAX
    ),
    "gpu_utilization": 1.0,
    "gpu_memory_usage": 1.0,
    "kv_cache_usage": 1.0,
    "kv_block_size": KV_BLOCK_SIZE_TOKENS_MAX,
    "kv_blocks_total": KV_BLOCKS_MAX,
    "available_kv_blocks": KV_BLOCKS_MAX,
    "pending_prefill_count": REQUESTS_MAX,
    "active_decode_count": REQUESTS_MAX,
    "running_count": REQUESTS_MAX,
    "waiting_queue_size": REQUESTS_MAX,
    "avg_prefill_latency_ms": LATENCY_MS_MAX,
    "avg_decode_ms_per_token": LATENCY_MS_MAX,
    "prefill_tokens_total": COUNTER_MAX,
    "prefill_seconds_total": float(COUNTER_MAX),
    "first_tokens_total": COUNTER_MAX,
    "prefix_queries_total": COUNTER_MAX,
    "prefix_hits_total": COUNTER_MAX,
    "adapter_slots_free": ADAPTERS_MAX,
    "round_trip_ms": ROUND_TRIP_S_MAX * 1000,
    "weight": wire.WEIGHT_MAX,
    "not_ready_reason": "r" * REASON_CHARS_MAX,
}
LEAST: dict[str, Any] = {name: 0 for name, value in MOST.items() if isinstance(value, int | float)} | {
    "kv_block_size": 1,
    "kv_blocks_total": 1,
    "weight": 5e-324,
    "models": ModelList(models=[ServedModel(name="m", context_length_tokens=1)]),
}
NOTHING = dict.fromkeys(name for name in MOST if name not in ("node_id", "boot_id"))


@pytest.mark.parametrize("values", [MOST, LEAST, NOTHING], ids=["most", "least", "nothing"])
def test_what_an_agent_may_say_can_be_read_again(path: Path, values: dict[str, Any]) -> None:
    snapshot = wire.snapshot_of(snapshot_message(**values), Config().hosts_allowed)
    assert isinstance(snapshot, Snapshot), snapshot
    one = journaled(path)
    one.observe(NodeReported(snapshot), NOW_S + 5000)
    close(one)
    assert replayed(path).damage == ()
