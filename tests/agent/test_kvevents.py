"""Batches of KV events off the wire: what vLLM 0.32 published, the forms of other versions, and what no engine says."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.agent.kv.blocks import EngineBlocks
from extproc.agent.kv.events import (
    BLOCK_SIZE_MAX,
    HASH_BYTES_MAX,
    Batch,
    Cleared,
    RemovedBlocks,
    StoredBlocks,
    batch_of,
)
from extproc.kvchain import token_blocks_of
from tests.agent.pages import sample

encode = msgspec.msgpack.encode
CAPTURED = [json.loads(line) for line in sample("vllm_0.32.0_cpu_kv_events.jsonl").splitlines()]
FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
LATER_FIELDS = ("extra_keys", "group_idx", "kv_cache_spec_kind")
STORED = ["BlockStored", [11, 12], None, [1, 2, 3, 4], 2]
REMOVED = ["BlockRemoved", [11]]


def in_form(payload: list[Any], form: str) -> bytes:
    """A captured batch as another version would have sent it."""
    ts, events, rank = payload
    if form != "map in array":
        names = FIELDS + (LATER_FIELDS if form == "array" else ())
        events = [
            ["BlockRemoved", one["block_hashes"], one["medium"]]
            if one["type"] == "BlockRemoved"
            else ["BlockStored", *(one[name] for name in names)]
            for one in events
        ]
    return encode({"ts": ts, "events": events, "data_parallel_rank": rank} if form == "map" else [ts, events, rank])


@pytest.mark.parametrize("form", ["map in array", "array", "older array", "map"])
def test_what_vllm_published_gives_our_chain(form: str) -> None:
    """Every block's hash is that of a whole prompt, by the links to parents; ours must come out the same."""
    blocks = EngineBlocks(100_000)
    prompts: dict[int, list[int]] = {}
    there: set[int] = set()
    for captured in CAPTURED:
        batch = batch_of(in_form(captured["payload"], form))
        assert batch is not None
        assert (batch.rank, batch.left_out, batch.malformed, batch.doubtful) == (0, 0, 0, False)
        assert len(batch.events) == len(captured["payload"][1])
        blocks.take(0, batch)
        for event in captured["payload"][1]:
            before = event.get("parent_block_hash")
            for place, one in enumerate(event["block_hashes"]):
                if event["type"] == "BlockRemoved":
                    there.discard(one)
                    continue
                tokens = event["token_ids"][place * 32 : (place + 1) * 32]
                prompts[one] = [*(prompts[before] if before is not None else ()), *tokens]
                there.add(one)
                before = one
        ours = {number for one in there for number in token_blocks_of(prompts[one])[-2:]}
        assert set(blocks.held) == ours
    assert len(there) > 100
    assert (blocks.orphans, blocks.malformed, blocks.dropped) == (0, 0, 0)


def only(*events: Any) -> Batch:
    batch = batch_of(encode([1.0, list(events), None]))
    assert batch is not None
    return batch


def test_fields_that_are_missing_are_no_fault() -> None:
    assert only(STORED, REMOVED, ["AllBlocksCleared"]).events == [
        StoredBlocks([11, 12], None, [1, 2, 3, 4], 2, "", 2, 0),
        RemovedBlocks([11], 0),
        Cleared(),
    ]
    named = {"type": "BlockStored", "block_hashes": [1], "token_ids": [5], "block_size": 1}
    assert only(named, {"type": "AllBlocksCleared"}).events == [StoredBlocks([1], None, [5], 1, "", 1, 0), Cleared()]


def test_fields_of_versions_to_come_are_left_out() -> None:
    more = [*STORED, None, "GPU", None, None, 0, "full_attention", None, {"new": [1]}, "field"]
    assert only(more).events == [StoredBlocks([11, 12], None, [1, 2, 3, 4], 2, "", 2, 0)]
    assert only({"type": "BlockRemoved", "block_hashes": [1], "new": {}}).events == [RemovedBlocks([1], 0)]
    assert batch_of(encode([1.0, [], 3, "new"])) == Batch(3, [], 0, 0)


def test_hashes_may_be_signed_unsigned_or_bytes() -> None:
    hashes = [-(2**63), 2**64 - 1, b"\x01" * HASH_BYTES_MAX]
    (event,) = only(["BlockStored", hashes, b"parent", [1, 2, 3], 1]).events
    assert isinstance(event, StoredBlocks)
    assert (event.hashes, event.parent) == (hashes, b"parent")


@pytest.mark.parametrize(
    ("lora_id", "lora_name", "extra_keys", "metadata", "adapter", "comparable"),
    [
        (None, None, None, None, "", 2),
        (None, None, [None, None], None, "", 2),
        (None, None, [[], None], None, "", 2),
        (3, "sql", None, None, "sql", 2),
        (None, "sql", [["sql"], ["sql"]], None, "sql", 2),
        (3, None, None, None, "", 0),
        (None, None, [["sql"], None], None, "", 0),
        (None, None, [None, [["image", 3]]], None, "", 1),
        (None, "sql", [["sql", "salt"], ["sql"]], None, "sql", 0),
        (None, None, [None], None, "", 1),
        (None, None, "salt", None, "", 0),
        (None, {"cache_salt": "x"}, None, None, "", 0),
        (None, None, None, {"cache_salt": "x"}, "", 0),
        (None, 7, None, None, "", 0),
    ],
)
def test_only_blocks_that_depend_on_tokens_and_the_adapter_are_comparable(
    lora_id: Any, lora_name: Any, extra_keys: Any, metadata: Any, adapter: str, comparable: int
) -> None:
    values = {"lora_id": lora_id, "lora_name": lora_name, "extra_keys": extra_keys, "metadata": metadata}
    named = dict(zip(("type", *FIELDS), STORED, strict=False)) | values
    listed = [*STORED, lora_id, "GPU", lora_name, extra_keys, 0, None, metadata]
    assert (
        only(named).events
        == only(listed).events
        == [StoredBlocks([11, 12], None, [1, 2, 3, 4], 2, adapter, comparable, 0)]
    )


@pytest.mark.parametrize("medium", ["CPU", "CPU_PINNED", "DISK", "", 3])
def test_what_is_not_on_the_gpu_does_not_count(medium: Any) -> None:
    batch = only([*STORED, None, medium], ["BlockRemoved", [11], medium])
    assert (batch.events, batch.left_out, batch.malformed) == ([], 2, 0)
    assert len(only([*STORED, None, "gpu"], ["BlockRemoved", [11], None]).events) == 2


@pytest.mark.parametrize(("kind", "counts"), [("full_attention", 1), ("mla_attention", 1), ("sliding_window", 0)])
def test_layers_that_remember_only_what_is_near_tell_nothing_of_a_beginning(kind: str, counts: int) -> None:
    batch = only([*STORED, None, "GPU", None, None, 2, kind])
    assert (len(batch.events), batch.left_out) == (counts, 1 - counts)
    assert all(isinstance(one, StoredBlocks) and one.group == 2 for one in batch.events)


def test_unknown_events_are_left_out() -> None:
    batch = only(["BlockMoved", 1, 2], {"type": "BlockMoved"}, STORED)
    assert (len(batch.events), batch.left_out, batch.malformed) == (1, 2, 0)


@pytest.mark.parametrize(
    ("event", "doubtful"),
    [
        (["BlockStored", [1], None, [1, 2], 1], False),
        (["BlockStored", [1], None, [], 0], False),
        (["BlockStored", [1], None, [1] * (BLOCK_SIZE_MAX + 1), BLOCK_SIZE_MAX + 1], False),
        (["BlockStored", [b"x" * (HASH_BYTES_MAX + 1)], None, [1], 1], False),
        (["BlockStored", ["1"], None, [1], 1], False),
        (["BlockStored", [1], None, [[1, 2]], 1], False),
        (["BlockStored", [1], None, [1]], False),
        ({"type": "BlockStored", "block_hashes": None}, False),
        (["BlockRemoved"], True),
        (["BlockRemoved", 5], True),
        (["BlockRemoved", [b"x" * (HASH_BYTES_MAX + 1)]], True),
        ([], True),
        ([7], True),
        ({}, True),
        (None, True),
        ("BlockStored", True),
    ],
)
def test_what_is_malformed_spoils_nothing_beside_it(event: Any, doubtful: bool) -> None:
    """Whoever does not understand that something is gone must not say that it is there."""
    batch = only(STORED, event, REMOVED)
    assert (len(batch.events), batch.left_out, batch.malformed, batch.doubtful) == (2, 0, 1, doubtful)


DEEP = b"\x91" * 100_000 + b"\xc0"
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "type", "events"]),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3) | st.just("type"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.binary(max_size=60) | ANY.map(encode) | st.lists(ANY, max_size=4).map(lambda events: encode([0.0, events, 0]))
)
@example(b"")
@example(b"\x93\xc0\x91" + DEEP + b"\xc0")
@example(b"\x93\xc0\x91\x92" + encode("BlockStored") + DEEP + b"\xc0")
@example(b"\x93\xc0\x91\x96" + encode("BlockStored") + b"\x90\xc0\x90\x01" + DEEP + b"\xc0")
@example(b"\x93\xc0\xdd\xff\xff\xff\xff")
@example(b"\x93\xc0\x91\xdf\xff\xff\xff\xff")
@example(b"\x93\xc0\x91\x81\x81\xc0\xc0\xc0\xc0")
@example(b"\x93\xc0\x91\xd7\xff\xff\xff\xff\xff\xff\xff\xff\xff\xc0")
def test_no_payload_raises(payload: bytes) -> None:
    batch = batch_of(payload)
    if batch is not None:
        blocks = EngineBlocks(100)
        blocks.take(0, batch)
        assert len(blocks) <= 100
