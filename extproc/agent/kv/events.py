"""What an engine publishes of its prefix cache: batches of events as vLLM and SGLang write them, made values.

Both write MessagePack: a batch is `[time, events, rank]`, an event an array that begins with its type
(`["BlockStored", hashes, parent, token ids, block size, …]`: vLLM up to 0.25 and SGLang), or a map with `type` (later
ones). Fields were added at the end again and again, so those that are missing are no fault, and what is unknown is left
out. No payload raises: engines are not trusted to write what they say.

A block of an engine stands for all tokens up to its end, and for what else its keys and values depend on. Where that
is more than tokens and the adapter's name (images, a cache salt), no prompt's tokens tell whether it serves.
"""

import enum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

BLOCK_SIZE_MAX: Final = 65_536
"""Tokens. Engines that are known here have 1 to 784."""
HASH_BYTES_MAX: Final = 64

BlockHash = int | bytes


class StoredBlocks(Struct, frozen=True, gc=False):
    """The engine has these blocks, each behind the one before it."""

    hashes: list[BlockHash]
    parent: BlockHash | None
    """What the first one stands behind; `None`: nothing."""
    token_ids: list[int]
    """As many for each block."""
    block_tokens: int
    adapter: str
    """Empty: the base model."""
    comparable: int
    """So many of the first blocks depend on nothing but tokens and the adapter."""
    group: int
    """Engines with several kinds of layers keep one cache for each kind."""


class RemovedBlocks(Struct, frozen=True, gc=False):
    """It has one copy less of each."""

    hashes: list[BlockHash]
    group: int


class Cleared(Struct, frozen=True, gc=False):
    """It has no block."""


Event = StoredBlocks | RemovedBlocks | Cleared


class Batch(Struct, frozen=True):
    """What one message says, in order."""

    rank: int
    """Of the data-parallel engine that it is about."""
    events: list[Event]
    left_out: int
    """Events of other types, of caches elsewhere than on the GPU, or of layers that remember only what is near."""
    malformed: int
    doubtful: bool = False
    """Whether one of the malformed may have said that something is gone."""


class _StoredArray(Struct, tag="BlockStored", array_like=True, gc=False):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: Any = None
    medium: Any = None
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: Any = None
    kv_cache_spec_kind: Any = None
    metadata: Any = None


class _StoredMap(Struct, tag="BlockStored", gc=False):
    block_hashes: list[BlockHash]
    token_ids: list[int]
    block_size: int
    parent_block_hash: BlockHash | None = None
    lora_id: Any = None
    medium: Any = None
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: Any = None
    kv_cache_spec_kind: Any = None
    metadata: Any = None


class _RemovedArray(Struct, tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: list[BlockHash]
    medium: Any = None
    group_idx: Any = None


class _RemovedMap(Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[BlockHash]
    medium: Any = None
    group_idx: Any = None


class _ClearedArray(Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    pass


class _ClearedMap(Struct, tag="AllBlocksCleared", gc=False):
    pass


class _BatchArray(Struct, array_like=True, gc=False):
    ts: Any
    events: list[Raw]
    data_parallel_rank: Any = None


class _BatchMap(Struct, gc=False):
    events: list[Raw]
    data_parallel_rank: Any = None


class _TagArray(Struct, array_like=True, gc=False):
    type: str


class _TagMap(Struct, gc=False):
    type: str


class _Unused(enum.Enum):
    LEFT_OUT = enum.auto()
    MALFORMED = enum.auto()
    """It would have said that something is there."""
    DOUBTFUL = enum.auto()
    """It may have said anything."""


_batch_array: Final = msgspec.msgpack.Decoder(_BatchArray)
_batch_map: Final = msgspec.msgpack.Decoder(_BatchMap)
_event_array: Final = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_event_map: Final = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_tag_array: Final = msgspec.msgpack.Decoder(_TagArray)
_tag_map: Final = msgspec.msgpack.Decoder(_TagMap)
_TYPES: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
_BROKEN: Final = (msgspec.MsgspecError, RecursionError, ValueError, TypeError)
_MAPS: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
"""What a map's first byte is."""
_WHOLE_PREFIX: Final = ("full", "mla")
"""Kinds of layers whose cache serves a prompt only where it has all of its beginning."""


def batch_of(payload: bytes) -> Batch | None:
    """A batch; `None` where the payload is none. Raises for no payload."""
    try:
        decoder = _batch_map if payload[:1] and payload[0] in _MAPS else _batch_array
        batch = decoder.decode(payload)
    except _BROKEN:
        return None
    rank = batch.data_parallel_rank
    events: list[Event] = []
    left_out = malformed = 0
    doubtful = False
    for raw in batch.events:
        match _event_of(raw):
            case _Unused.LEFT_OUT:
                left_out += 1
            case _Unused.MALFORMED:
                malformed += 1
            case _Unused.DOUBTFUL:
                malformed += 1
                doubtful = True
            case event:
                events.append(event)
    return Batch(rank if _is_index(rank) else 0, events, left_out, malformed, doubtful)


def _event_of(raw: Raw) -> "Event | _Unused":
    is_map = memoryview(raw)[0] in _MAPS
    try:
        read = (_event_map if is_map else _event_array).decode(raw)
    except _BROKEN:
        return _unused(raw, is_map=is_map)
    if isinstance(read, _ClearedArray | _ClearedMap):
        return Cleared()
    if not _are_sound(read.block_hashes):
        return _Unused.MALFORMED if isinstance(read, _StoredArray | _StoredMap) else _Unused.DOUBTFUL
    if not _is_on_gpu(read.medium):
        return _Unused.LEFT_OUT
    group = read.group_idx if _is_index(read.group_idx) else 0
    if isinstance(read, _RemovedArray | _RemovedMap):
        return RemovedBlocks(read.block_hashes, group)
    kind = read.kv_cache_spec_kind
    if isinstance(kind, str) and not any(word in kind for word in _WHOLE_PREFIX):
        return _Unused.LEFT_OUT
    count, block_tokens = len(read.block_hashes), read.block_size
    if not 1 <= block_tokens <= BLOCK_SIZE_MAX or len(read.token_ids) != count * block_tokens:
        return _Unused.MALFORMED
    adapter = read.lora_name if isinstance(read.lora_name, str) else ""
    return StoredBlocks(
        read.block_hashes,
        read.parent_block_hash,
        read.token_ids,
        block_tokens,
        adapter,
        _comparable(read, adapter, count),
        group,
    )


def _unused(raw: Raw, *, is_map: bool) -> "_Unused":
    try:
        of_type = (_tag_map if is_map else _tag_array).decode(raw).type
    except _BROKEN:
        return _Unused.DOUBTFUL
    if of_type == "BlockStored":
        return _Unused.MALFORMED
    return _Unused.DOUBTFUL if of_type in _TYPES else _Unused.LEFT_OUT


def _is_index(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**16


def _are_sound(hashes: list[BlockHash]) -> bool:
    return all(isinstance(one, int) or len(one) <= HASH_BYTES_MAX for one in hashes)


def _is_on_gpu(medium: object) -> bool:
    return medium is None or (isinstance(medium, str) and medium.upper() == "GPU")


def _comparable(stored: _StoredArray | _StoredMap, adapter: str, count: int) -> int:
    """How many of the first blocks depend on tokens and the adapter only, as far as is told."""
    unnamed = stored.lora_id is not None and not adapter  # older engines tell a number that means nothing outside
    if unnamed or stored.metadata or (stored.lora_name and not adapter):
        return 0
    keys = stored.extra_keys
    if keys is None:
        return count
    if not isinstance(keys, list):
        return 0
    alone = ([adapter],) if adapter else ()
    for place, key in enumerate(keys[:count]):
        if key and key not in alone:
            return place
    return min(count, len(keys))
