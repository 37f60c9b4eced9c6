"""What routers tell each other, off the bus and onto it: values of the core, or a reason to refuse a message.

Every field is checked, since each reaches decisions: who can publish may be of another version, or mean ill. A message
that is wrong somewhere is refused whole. Times become ages on the wire, since clocks of two machines are never
compared; what a message took on its way is what both ends measured of their ways to the bus.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.core.peershares import SHARE_BOUNDS, NodeShare, PeerTold, Word
from extproc.core.sharing import NODES_TOLD_MAX
from extproc.pb import exchange_pb2

ROUTER_CHARS_MAX = 32
KEY_CHARS_MAX = 32
NODE_ID_CHARS_MAX = 128
SHARES_MAX = NODES_TOLD_MAX
"""Of one message."""
AGE_MS_MAX = 100_000_000
"""A day and more: a node's word counts no longer."""
WAY_MS_MAX = 10_000
GOT_CHARS_MAX = 80
"""Characters of a refused value that a reason repeats."""
_ROUTER_TAG = 0x0A
"""A string in field 1, which it is in each message."""
_LOADS_BYTES_MAX = MESSAGE_BYTES_MAX - 4096
"""Of shares in one message; the rest is for what stands beside them."""

_ROUTER = re.compile(rf"[A-Za-z0-9]{{1,{ROUTER_CHARS_MAX}}}")
_ROUTER_WANTED = f"1..{ROUTER_CHARS_MAX} letters and digits"
_KEY = re.compile(rf"[A-Za-z0-9]{{0,{KEY_CHARS_MAX}}}")
_KEY_WANTED = f"at most {KEY_CHARS_MAX} letters and digits"
_NODE_ID = re.compile(rf"[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]{{0,{NODE_ID_CHARS_MAX - 1}}}")
_NODE_ID_WANTED = f"1..{NODE_ID_CHARS_MAX} letters, digits and ._:/@[]-"
AnyMessage = TypeVar("AnyMessage", bound=Message)


class Here(Struct, frozen=True):
    """A router says that it is there."""

    router: str
    is_new: bool = False
    leaves: bool = False
    key: str = ""
    """Marks what keys its prompts' hashes; empty: it does not say."""


class Loads(Struct, frozen=True):
    """What a router told of its load, and of itself."""

    told: PeerTold
    hears_ends: bool


def parsed(kind: type[AnyMessage], message: bytes) -> AnyMessage | str:
    """A message of this kind, or why it is none. Raises for no content."""
    if len(message) > MESSAGE_BYTES_MAX:
        return refused("message", f"at most {MESSAGE_BYTES_MAX} bytes", len(message))
    try:
        return kind.FromString(message)
    except DecodeError:
        return f"message: wanted a {kind.DESCRIPTOR.name}, got {len(message)} bytes of something else"


def router_refusal(router: str) -> str | None:
    """Why this cannot be a router."""
    return None if _ROUTER.fullmatch(router) else refused("router", _ROUTER_WANTED, router)


def node_refusal(field: str, node_id: str) -> str | None:
    """Why this cannot be a node."""
    return None if _NODE_ID.fullmatch(node_id) else refused(field, _NODE_ID_WANTED, node_id)


def refused(field: str, wanted: str, got: object) -> str:
    """A reason, which repeats what came: escaped, and cut."""
    text = repr(got)
    return f"{field}: wanted {wanted}, got {text if len(text) <= GOT_CHARS_MAX else text[: GOT_CHARS_MAX - 1] + '…'}"


def named_in(message: bytes) -> str | None:
    """The router that a message names at its beginning, as all do that are written here: known without being read.

    `None`: it begins otherwise. Raises for no content.
    """
    if len(message) < 2 or message[0] != _ROUTER_TAG or message[1] > ROUTER_CHARS_MAX:
        return None
    named = message[2 : 2 + message[1]].decode("ascii", "replace")
    return named if _ROUTER.fullmatch(named) else None


def here_bytes(here: Here) -> bytes:
    """The message."""
    return exchange_pb2.RouterHere(
        router=here.router, is_new=here.is_new, leaves=here.leaves, key=here.key
    ).SerializeToString()


def here_of(message: bytes) -> Here | str:
    """What was said, or why it is refused. Raises for no content."""
    found = parsed(exchange_pb2.RouterHere, message)
    if isinstance(found, str):
        return found
    if (reason := router_refusal(found.router)) is not None:
        return reason
    if not _KEY.fullmatch(found.key):
        return refused("key", _KEY_WANTED, found.key)
    return Here(found.router, found.is_new, found.leaves, found.key)


def loads_bytes(
    word: Word, router: str, sequence: Callable[[], int], way_s: float, now_s: float, *, hears_ends: bool
) -> Iterator[bytes]:
    """The messages that say a word, mostly one. `sequence` gives each the next number."""
    message, size = _loads(router, way_s, everything=word.everything, hears_ends=hears_ends), 0
    for share in word.shares:
        if node_refusal("node_id", share.node_id) is not None:
            continue  # others could not take it
        one = _share(share, now_s)
        size += (more := one.ByteSize() + 8)
        if size > _LOADS_BYTES_MAX:
            message.sequence = sequence()
            yield message.SerializeToString()
            message, size = _loads(router, way_s, everything=False, hears_ends=hears_ends), more
        message.shares.append(one)
    message.sequence = sequence()
    yield message.SerializeToString()


def loads_of(message: bytes, way_s: float, now_s: float) -> Loads | str:
    """What was told, on our clock, or why it is refused; `way_s` is ours to the bus. Raises for no content."""
    found = parsed(exchange_pb2.RouterLoads, message)
    if isinstance(found, str):
        return found
    if (reason := router_refusal(found.router)) is not None:
        return reason
    if len(found.shares) > SHARES_MAX:
        return refused("shares", f"at most {SHARES_MAX}", len(found.shares))
    if found.way_ms > WAY_MS_MAX:
        return refused("way_ms", f"at most {WAY_MS_MAX}", found.way_ms)
    made_at_s = now_s - found.way_ms / 1000 - way_s
    shares: dict[str, NodeShare] = {}
    for place, one in enumerate(found.shares):
        share = _share_of(one, made_at_s)
        if isinstance(share, str):
            return f"shares.{place}.{share}"
        shares[share.node_id] = share
    if len(shares) < len(found.shares):
        return refused("shares", "each node once", f"{len(found.shares)} shares of {len(shares)} nodes")
    word = Word(found.everything, tuple(shares.values()))
    return Loads(PeerTold(found.router, found.sequence, made_at_s, word), found.hears_ends)


def milliseconds(seconds: float, at_most: int) -> int:
    """As a message has it, within bounds."""
    return min(at_most, max(0, round(seconds * 1000)))


def _loads(router: str, way_s: float, *, everything: bool, hears_ends: bool) -> exchange_pb2.RouterLoads:
    return exchange_pb2.RouterLoads(
        router=router, everything=everything, way_ms=milliseconds(way_s, WAY_MS_MAX), hears_ends=hears_ends
    )


def _share(share: NodeShare, now_s: float) -> exchange_pb2.NodeShare:
    told: dict[str, Any] = {"node_id": share.node_id}
    if share.seen_until_s is not None:
        told["seen_ago_ms"] = milliseconds(now_s - share.seen_until_s, AGE_MS_MAX)
    for name, (minimum, maximum) in SHARE_BOUNDS.items():
        if number := getattr(share, name):
            told[name] = number if minimum <= number <= maximum else min(maximum, max(minimum, number))
    return exchange_pb2.NodeShare(**told)


def _share_of(message: exchange_pb2.NodeShare, made_at_s: float) -> NodeShare | str:
    if (reason := node_refusal("node_id", message.node_id)) is not None:
        return reason
    seen_until_s = None
    if message.HasField("seen_ago_ms"):
        if message.seen_ago_ms > AGE_MS_MAX:
            return refused("seen_ago_ms", f"at most {AGE_MS_MAX}", message.seen_ago_ms)
        seen_until_s = made_at_s - message.seen_ago_ms / 1000
    numbers = []
    for name, (minimum, maximum) in SHARE_BOUNDS.items():
        number = getattr(message, name)
        if not minimum <= number <= maximum:
            return refused(name, f"{minimum}..{maximum}", number)
        numbers.append(number)
    return NodeShare(message.node_id, seen_until_s, *numbers)
