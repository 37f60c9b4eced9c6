"""How engines write batches and events: as arrays or as maps. See `events.py` for what they mean.

Lengths are looked at before what they are of is read, and what is nested is left as it is written, since a byte can
stand for an object of a hundred.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from extproc.kvchain import BLOCK_TOKENS, TOKEN_BLOCKS_MAX

BlockHash = int | bytes
EVENTS_MAX: Final = 131_072
"""In one message. vLLM tells all blocks of a prompt in one event, SGLang each in its own, of 1 token by default."""
EVENT_BLOCKS_MAX: Final = 65_536
"""In one event. A step of 10,000 tokens has 625 of 16."""
EVENT_TOKENS_MAX: Final = TOKEN_BLOCKS_MAX * BLOCK_TOKENS
"""In one event: what lies behind is not told apart in any prompt."""
NIL: Final = Raw(b"\xc0")
_Plain = None | bool | int | float | str
"""What engines write in a field that means little here. Nothing nested, which takes many times its bytes."""
_Hashes = Annotated[list[BlockHash], Meta(max_length=EVENT_BLOCKS_MAX)]
_TokenIds = Annotated[list[int], Meta(max_length=EVENT_TOKENS_MAX)]
_Events = Annotated[list[Raw], Meta(max_length=EVENTS_MAX)]


class StoredArray(Struct, tag="BlockStored", array_like=True, gc=False):
    """Blocks are there: vLLM up to 0.25 and SGLang."""

    block_hashes: _Hashes
    parent_block_hash: BlockHash | None
    token_ids: _TokenIds
    block_size: int
    lora_id: _Plain = None
    medium: _Plain = None
    lora_name: Raw = NIL
    extra_keys: Raw = NIL
    group_idx: _Plain = None
    kv_cache_spec_kind: _Plain = None
    metadata: Raw = NIL


class StoredMap(Struct, tag="BlockStored", gc=False):
    """The same, of later ones."""

    block_hashes: _Hashes
    token_ids: _TokenIds
    block_size: int
    parent_block_hash: BlockHash | None = None
    lora_id: _Plain = None
    medium: _Plain = None
    lora_name: Raw = NIL
    extra_keys: Raw = NIL
    group_idx: _Plain = None
    kv_cache_spec_kind: _Plain = None
    metadata: Raw = NIL


class RemovedArray(Struct, tag="BlockRemoved", array_like=True, gc=False):
    """Blocks are gone."""

    block_hashes: _Hashes
    medium: _Plain = None
    group_idx: _Plain = None


class RemovedMap(Struct, tag="BlockRemoved", gc=False):
    """The same."""

    block_hashes: _Hashes
    medium: _Plain = None
    group_idx: _Plain = None


class ClearedArray(Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    """All blocks are gone."""


class ClearedMap(Struct, tag="AllBlocksCleared", gc=False):
    """The same."""


class BatchArray(Struct, array_like=True, gc=False):
    """One message."""

    ts: _Plain
    events: _Events
    data_parallel_rank: _Plain = None


class BatchMap(Struct, gc=False):
    """The same."""

    events: _Events
    data_parallel_rank: _Plain = None


class TagArray(Struct, array_like=True, gc=False):
    """An event, of which only the type is read."""

    type: str


class TagMap(Struct, gc=False):
    """The same."""

    type: str


BATCH_ARRAY: Final = msgspec.msgpack.Decoder(BatchArray)
BATCH_MAP: Final = msgspec.msgpack.Decoder(BatchMap)
EVENT_ARRAY: Final = msgspec.msgpack.Decoder(StoredArray | RemovedArray | ClearedArray)
EVENT_MAP: Final = msgspec.msgpack.Decoder(StoredMap | RemovedMap | ClearedMap)
TAG_ARRAY: Final = msgspec.msgpack.Decoder(TagArray)
TAG_MAP: Final = msgspec.msgpack.Decoder(TagMap)
TEXT: Final = msgspec.msgpack.Decoder(str)
KEYS: Final = msgspec.msgpack.Decoder(Annotated[list[Raw], Meta(max_length=EVENT_BLOCKS_MAX)])
EMPTY: Final = frozenset({b"\xc0", b"\xc2", b"\x00", b"\xa0", b"\x80", b"\x90"})
"""Nothing, as MessagePack writes it: nil, false, 0, and what has no entries."""
