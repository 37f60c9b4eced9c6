"""A sound snapshot message, to be changed by each test."""

from typing import Any

from extproc.pb.nodes_pb2 import NODE_STATE_READY, ModelList, NodeSnapshot, ServedModel


def snapshot_message(**changes: Any) -> NodeSnapshot:
    fields: dict[str, Any] = {
        "node_id": "gpu-1",
        "host": "10.0.0.1:8000",
        "boot_id": "a1.0",
        "sequence": 1,
        "sample_age_ms": 250,
        "state": NODE_STATE_READY,
        "models": ModelList(models=[ServedModel(name="m", version="1", context_length_tokens=8192)]),
        "gpu_utilization": 0.5,
        "kv_cache_usage": 0.25,
        "kv_block_size": 16,
        "kv_blocks_total": 1000,
        "available_kv_blocks": 750,
        "pending_prefill_count": 1,
        "active_decode_count": 2,
        "running_count": 3,
        "waiting_queue_size": 4,
        "avg_prefill_latency_ms": 120.5,
        "avg_decode_ms_per_token": 20.5,
        "prefill_tokens_total": 120_000,
        "prefill_seconds_total": 60.5,
        "first_tokens_total": 300,
        "prefix_queries_total": 200_000,
        "prefix_hits_total": 80_000,
        "adapter_slots_free": 3,
        "round_trip_ms": 1.5,
        "weight": 2.0,
    }
    return NodeSnapshot(**{name: value for name, value in (fields | changes).items() if value is not None})
