"""What an engine publishes of its prefix cache: batches of events as vLLM and SGLang write them, made values.

Both write MessagePack: a batch is `[time, events, rank]`, an event an array that begins with its type
(`["BlockStored", hashes, parent, token ids, block size, …]`: vLLM up to 0.25 and SGLang), or a map with `type` (later
ones). Fields were added at the end again and again, so those that are missing are no fault, and what is unknown is left
out. No payload raises, and none takes more time or memory than its bytes and the bounds allow: engines are not trusted
to write what they say.

A block of an engine stands for all tokens up to its end, and for what else its keys and values depend on. Where that
is more than tokens and the adapter's name (images, a cache salt), no prompt's tokens tell whether it serves.
"""

import enum
from collections.abc import Generator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from extproc.agent.kv.formats import (
    BATCH_ARRAY,
    BATCH_MAP,
    EMPTY,
    EVENT_ARRAY,
    EVENT_MAP,
    EVENT_TOKENS_MAX,
    KEYS,
    NIL,
    TAG_ARRAY,
    TAG_MAP,
    TEXT,
    BlockHash,
    ClearedArray,
    ClearedMap,
    RemovedArray,
    RemovedMap,
    StoredArray,
    StoredMap,
)

BLOCK_SIZE_MAX: Final = 65_536
"""Tokens. Engines that are known here have 1 to 784."""
HASH_BYTES_MAX: Final = 64
BATCH_BLOCKS_MAX: Final = 131_072
"""In all events of one message."""
BATCH_TOKENS_MAX: Final = 4 * EVENT_TOKENS_MAX
"""Likewise."""
READ_AT_ONCE_BYTES: Final = 32_768
"""Of events, between two moments at which others may go on."""


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


class _Unused(enum.Enum):
    LEFT_OUT = enum.auto()
    MALFORMED = enum.auto()
    """It would have said that something is there."""
    DOUBTFUL = enum.auto()
    """It may have said anything."""


_TYPES: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
_BROKEN: Final = (msgspec.MsgspecError, RecursionError, ValueError, TypeError)
_MAPS: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
"""What a map's first byte is."""
_WHOLE_PREFIX: Final = ("full", "mla")
"""Kinds of layers whose cache serves a prompt only where it has all of its beginning."""


def batch_of(payload: bytes) -> Batch | None:
    """A batch; `None` where the payload is none, or over the bounds. Raises for no payload."""
    reading = batch_in_slices(payload)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            batch: Batch | None = end.value
            return batch


def batch_in_slices(payload: bytes) -> Generator[None, None, Batch | None]:
    """The same, which lets others go on after each `READ_AT_ONCE_BYTES`."""
    try:
        decoder = BATCH_MAP if payload[:1] and payload[0] in _MAPS else BATCH_ARRAY
        batch = decoder.decode(payload)
    except _BROKEN:
        return None
    rank = batch.data_parallel_rank
    events: list[Event] = []
    left_out = malformed = blocks = tokens = bytes_read = 0
    doubtful = False
    for raw in batch.events:
        view = memoryview(raw)
        bytes_read += len(view)
        if bytes_read > READ_AT_ONCE_BYTES:
            bytes_read = 0
            yield
        match _event_of(raw, is_map=view[0] in _MAPS):
            case _Unused.LEFT_OUT:
                left_out += 1
            case _Unused.MALFORMED:
                malformed += 1
            case _Unused.DOUBTFUL:
                malformed += 1
                doubtful = True
            case Cleared() as event:
                if not events or not isinstance(events[-1], Cleared):
                    events.append(event)
            case event:
                blocks += len(event.hashes)
                tokens += len(event.token_ids) if isinstance(event, StoredBlocks) else 0
                if blocks > BATCH_BLOCKS_MAX or tokens > BATCH_TOKENS_MAX:
                    return None
                events.append(event)
    return Batch(_index(rank), events, left_out, malformed, doubtful)


def _event_of(raw: Raw, *, is_map: bool) -> "Event | _Unused":
    try:
        read = (EVENT_MAP if is_map else EVENT_ARRAY).decode(raw)
    except _BROKEN:
        return _unused(raw, is_map=is_map)
    if isinstance(read, ClearedArray | ClearedMap):
        return Cleared()
    if not _are_sound(read.block_hashes):
        return _Unused.MALFORMED if isinstance(read, StoredArray | StoredMap) else _Unused.DOUBTFUL
    if not _is_on_gpu(read.medium):
        return _Unused.LEFT_OUT
    group = _index(read.group_idx)
    if isinstance(read, RemovedArray | RemovedMap):
        return RemovedBlocks(read.block_hashes, group)
    kind = read.kv_cache_spec_kind
    if isinstance(kind, str) and not any(word in kind for word in _WHOLE_PREFIX):
        return _Unused.LEFT_OUT
    count, block_tokens = len(read.block_hashes), read.block_size
    if not 1 <= block_tokens <= BLOCK_SIZE_MAX or len(read.token_ids) != count * block_tokens:
        return _Unused.MALFORMED
    adapter = _name(read.lora_name)
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
        of_type = (TAG_MAP if is_map else TAG_ARRAY).decode(raw).type
    except _BROKEN:
        return _Unused.DOUBTFUL
    if of_type == "BlockStored":
        return _Unused.MALFORMED
    return _Unused.DOUBTFUL if of_type in _TYPES else _Unused.LEFT_OUT


def _index(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**16 else 0


def _name(raw: Raw) -> str:
    """Empty where it is none."""
    try:
        return "" if raw is NIL or _is_nothing(raw) else TEXT.decode(raw)
    except _BROKEN:
        return ""


def _is_nothing(raw: Raw) -> bool:
    return raw is NIL or bytes(raw) in EMPTY


def _are_sound(hashes: list[BlockHash]) -> bool:
    return all(isinstance(one, int) or len(one) <= HASH_BYTES_MAX for one in hashes)


def _is_on_gpu(medium: object) -> bool:
    return medium is None or (isinstance(medium, str) and medium.upper() == "GPU")


def _comparable(stored: StoredArray | StoredMap, adapter: str, count: int) -> int:
    """How many of the first blocks depend on tokens and the adapter only, as far as is told."""
    unnamed = stored.lora_id is not None and not adapter  # older engines tell a number that means nothing outside
    if unnamed or not _is_nothing(stored.metadata) or not (adapter or _is_nothing(stored.lora_name)):
        return 0
    if stored.extra_keys is NIL or bytes(stored.extra_keys) == b"\xc0":
        return count
    try:
        keys = KEYS.decode(stored.extra_keys)
    except _BROKEN:
        return 0
    alone = msgspec.msgpack.encode([adapter]) if adapter else b""
    for place, key in enumerate(keys[:count]):
        if not _is_nothing(key) and bytes(key) != alone:
            return place
    return min(count, len(keys))
