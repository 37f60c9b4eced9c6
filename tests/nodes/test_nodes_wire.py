import dataclasses
import math
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.agent import wire as agent_wire
from extproc.config import Config
from extproc.core.snapshot import NodeLeft, NodeState, ServedModel, Snapshot
from extproc.nodes import wire
from extproc.pb.nodes_pb2 import NODE_STATE_LOADING, AgentMessage, Goodbye, ModelList, NodeSnapshot
from extproc.pb.nodes_pb2 import ServedModel as ModelMessage
from tests.nodes.messages import snapshot_message

HOSTS = Config().hosts_allowed


def taken(**changes: Any) -> Snapshot | str:
    return wire.snapshot_of(snapshot_message(**changes), HOSTS)


def test_a_sound_message_becomes_the_snapshot_it_says() -> None:
    assert taken() == Snapshot(
        node_id="gpu-1",
        host="10.0.0.1:8000",
        boot_id="a1.0",
        sequence=1,
        sample_age_s=0.25,
        state=NodeState.READY,
        models=(ServedModel("m", "1", 8192),),
        gpu_utilization=0.5,
        kv_usage=0.25,
        kv_block_size_tokens=16,
        kv_blocks_total=1000,
        kv_blocks_available=750,
        pending_prefills=1,
        active_decodes=2,
        requests_running=3,
        requests_waiting=4,
        prefill_latency_ms=120.5,
        decode_ms_per_token=20.5,
        prefill_tokens_total=120_000,
        prefill_seconds_total=60.5,
        first_tokens_total=300,
        prefix_queries_total=200_000,
        prefix_hits_total=80_000,
        adapter_slots_free=3,
        round_trip_s=0.0015,
        weight=2.0,
    )


def test_what_an_agent_says_is_what_a_router_hears() -> None:
    loading = taken()
    assert isinstance(loading, Snapshot)
    loading = dataclasses.replace(loading, state=NodeState.LOADING, not_ready_reason="/health answers 503")
    adapter = ServedModel("m:sql", "1", 8192, loaded=False)
    bare = dataclasses.replace(loading, models=None, not_ready_reason=None, kv_usage=None, prefix_hits_total=None)
    more = dataclasses.replace(loading, models=(*(loading.models or ()), adapter), round_trip_s=0.0)
    for said in (loading, bare, more):
        report = agent_wire.Report(said, sampled_at_s=10.0)
        message = agent_wire.snapshot_message(report, now_s=10.25, round_trip_s=said.round_trip_s)
        assert wire.snapshot_of(message.snapshot, HOSTS) == said


def test_what_is_not_said_is_unknown_and_no_zero() -> None:
    bare = NodeSnapshot(node_id="n", host="10.0.0.1:80", boot_id="b", state=NODE_STATE_LOADING)
    assert wire.snapshot_of(bare, HOSTS) == Snapshot("n", "10.0.0.1:80", "b", 0, 0.0, NodeState.LOADING)


def test_zero_is_said_too() -> None:
    snapshot = taken(kv_cache_usage=0.0, waiting_queue_size=0, models=ModelList(), available_kv_blocks=0)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.kv_usage, snapshot.requests_waiting, snapshot.models, snapshot.kv_blocks_available) == (
        0,
        0,
        (),
        0,
    )


def listed(*names: str, **fields: Any) -> ModelList:
    return ModelList(models=[ModelMessage(name=name, **fields) for name in names])


@pytest.mark.parametrize(("field", "value"), [
    ("node_id", ""), ("node_id", "a\n"), ("node_id", "a b"), ("node_id", "\x1b[2J"), ("node_id", "<b>"),
    ("node_id", "-a"), ("node_id", "é"), ("node_id", "x" * 129), ("boot_id", ""), ("boot_id", "a\0"),
    ("boot_id", "x" * 129),
    ("host", ""), ("host", "169.254.169.254:80"), ("host", "8.8.8.8:80"), ("host", "localhost:80"),
    ("state", 0), ("state", 99), ("state", -1),
    ("gpu_utilization", -0.01), ("gpu_utilization", 1.01), ("gpu_utilization", math.nan), ("gpu_utilization", math.inf),
    ("kv_cache_usage", -1.0), ("kv_cache_usage", 1.0001), ("kv_cache_usage", math.nan),
    ("kv_block_size", 0), ("kv_block_size", 1_000_001), ("kv_blocks_total", 0), ("kv_blocks_total", 1_000_000_001),
    ("available_kv_blocks", 1001), ("pending_prefill_count", 1_000_001), ("active_decode_count", 1_000_001),
    ("running_count", 1_000_001), ("waiting_queue_size", 1_000_001),
    ("avg_prefill_latency_ms", -1.0), ("avg_prefill_latency_ms", 3_600_000.1), ("avg_prefill_latency_ms", math.inf),
    ("avg_decode_ms_per_token", math.nan), ("avg_decode_ms_per_token", -math.inf),
    ("weight", 0.0), ("weight", -1.0), ("weight", 1000.1), ("weight", math.nan), ("weight", math.inf),
    ("prefill_tokens_total", 2**53 + 1), ("prefill_tokens_total", 2**64 - 1), ("first_tokens_total", 2**53 + 1),
    ("prefix_queries_total", 2**53 + 1), ("prefix_hits_total", 2**53 + 1), ("prefix_hits_total", 200_001),
    ("prefill_seconds_total", -0.1), ("prefill_seconds_total", math.nan), ("prefill_seconds_total", math.inf),
    ("prefill_seconds_total", 2.0**53 + 2), ("adapter_slots_free", 10_001), ("adapter_slots_free", 2**32 - 1),
    ("round_trip_ms", -0.1), ("round_trip_ms", 10_000.1), ("round_trip_ms", math.nan), ("round_trip_ms", math.inf),
    ("models", listed(*["m"] * 257)), ("models", listed("ok", "")), ("models", listed("x" * 257)),
    ("models", listed("a\nb")), ("models", listed("a\u202eb")), ("models", listed("m", version="x" * 257)),
    ("models", listed("m", version="\x07")), ("models", listed("m", context_length_tokens=0)),
    ("models", listed("m", context_length_tokens=1_000_000_001)), ("not_ready_reason", "x" * 301),
    ("not_ready_reason", "a\x1bb"),
])  # fmt: skip
def test_a_field_that_is_wrong_is_refused_by_its_name(field: str, value: Any) -> None:
    reason = taken(**{field: value})
    assert isinstance(reason, str)
    assert reason.startswith(field)
    assert "wanted" in reason
    assert "got" in reason
    assert reason.isprintable()
    assert len(reason) < 300


@pytest.mark.parametrize(("field", "value"), [
    ("node_id", "x" * 128), ("node_id", "a/b@c:d_e.f-g"), ("boot_id", "x" * 128), ("host", "[::1]:65535"),
    ("gpu_utilization", 1.0), ("kv_cache_usage", 1.0), ("kv_block_size", 1_000_000), ("kv_blocks_total", 1_000_000_000),
    ("available_kv_blocks", 1000), ("waiting_queue_size", 1_000_000), ("avg_prefill_latency_ms", 3_600_000.0),
    ("weight", 1000.0), ("weight", 1e-9), ("models", listed(*["m"] * 256)), ("models", listed("x" * 256)),
    ("models", listed("Qwen/Qwen3 8B é")), ("models", listed("m", version="x" * 256)),
    ("models", listed("m", context_length_tokens=1_000_000_000)), ("sequence", 2**64 - 1), ("sample_age_ms", 2**32 - 1),
    ("not_ready_reason", "x" * 300), ("prefill_tokens_total", 2**53), ("first_tokens_total", 2**53),
    ("prefix_queries_total", 2**53), ("prefix_hits_total", 200_000), ("prefill_seconds_total", 2.0**53),
    ("prefill_seconds_total", 0.0), ("adapter_slots_free", 10_000), ("round_trip_ms", 10_000.0), ("round_trip_ms", 0.0),
    ("models", listed("m", loaded=False)),
])  # fmt: skip
def test_a_field_at_its_limit_passes(field: str, value: Any) -> None:
    assert isinstance(taken(**{field: value}), Snapshot)


def test_hits_without_queries_are_a_number_like_any_other() -> None:
    assert isinstance(taken(prefix_queries_total=None), Snapshot)


def test_a_model_is_loaded_unless_the_agent_says_that_it_is_not() -> None:
    models = [ModelMessage(name="base"), ModelMessage(name="a", loaded=True), ModelMessage(name="b", loaded=False)]
    heard = taken(models=ModelList(models=models))
    assert isinstance(heard, Snapshot)
    assert heard.models is not None
    assert [model.loaded for model in heard.models] == [True, True, False]


def test_a_goodbye_names_its_node_and_boot() -> None:
    assert wire.goodbye_of(Goodbye(node_id="n", boot_id="b")) == NodeLeft("n", "b")
    for message in (Goodbye(node_id="n"), Goodbye(boot_id="b"), Goodbye(node_id="a\n", boot_id="b")):
        assert isinstance(wire.goodbye_of(message), str)


NUMBERS = {
    "gpu_utilization": st.floats(), "kv_cache_usage": st.floats(), "avg_prefill_latency_ms": st.floats(),
    "avg_decode_ms_per_token": st.floats(), "weight": st.floats(),
    "prefill_seconds_total": st.floats(), "round_trip_ms": st.floats(),
    **dict.fromkeys(["kv_blocks_total", "available_kv_blocks", "prefill_tokens_total", "first_tokens_total",
                     "prefix_queries_total", "prefix_hits_total"], st.integers(0, 2**64 - 1)),
    **dict.fromkeys(["kv_block_size", "pending_prefill_count", "active_decode_count", "running_count",
                     "waiting_queue_size", "sample_age_ms", "adapter_slots_free"], st.integers(0, 2**32 - 1)),
    "state": st.integers(-(2**31), 2**31 - 1),
    "node_id": st.text(st.characters(codec="utf-8"), max_size=140), "boot_id": st.text(st.characters(codec="utf-8")),
    "host": st.text(st.characters(codec="utf-8")),
    "models": st.lists(st.text(st.characters(codec="utf-8")), max_size=3).map(lambda names: listed(*names)),
}  # fmt: skip


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional=NUMBERS))
def test_no_message_raises_and_what_passes_is_within_the_limits(changes: dict[str, Any]) -> None:
    snapshot = taken(**changes)
    if isinstance(snapshot, Snapshot):
        assert snapshot.kv_usage is None or 0 <= snapshot.kv_usage <= 1
        assert 0 < snapshot.weight <= 1000
        assert 0 <= snapshot.round_trip_s <= 10
        counted = (snapshot.prefill_seconds_total, snapshot.prefill_tokens_total, snapshot.first_tokens_total)
        assert all(total is None or 0 <= total <= 2**53 for total in counted)
        if snapshot.prefix_queries_total is not None and snapshot.prefix_hits_total is not None:
            assert snapshot.prefix_hits_total <= snapshot.prefix_queries_total <= 2**53
        assert snapshot.node_id.isascii()
        assert snapshot.node_id.isprintable()


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    try:
        message = AgentMessage.FromString(raw)
    except DecodeError:
        return
    wire.snapshot_of(message.snapshot, HOSTS)
    wire.goodbye_of(message.goodbye)
