"""Prompts that were sent somewhere, onto the bus: chains of hashes, of which many begin alike.

Sorted, each chain is written as how much it shares with the one before, and the rest: so each beginning is written once
in a message. Of more than the budget allows the newest are told.
"""

from collections.abc import Iterable, Iterator
from struct import pack, unpack

from msgspec import Struct

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.core.peershares import PromptPlaced
from extproc.exchange import wire
from extproc.pb import exchange_pb2

CHAIN_BLOCKS_MAX = 4096
"""Of one prompt: as many as prompts have that are followed at all."""
BLOCKS_MAX = 200_000
"""Of one message, written out, at each of their nodes: what takes the receiver's index 0.2 s at most."""
NODES_MAX = 4096
"""Of one message."""
BLOCK_BYTES = 8
PLACED_BYTES = 16
"""What a message has for a chain beside its blocks, at most."""
NODE_BYTES = 4
"""And for each node beside its name."""
_BYTES_MAX = MESSAGE_BYTES_MAX - 4096
"""Of one message, by these estimates."""


class Placed(Struct, frozen=True):
    """A prompt at a node, as it is kept and compared here."""

    node_id: str
    chain: bytes
    """Its blocks, as messages have them."""
    computed: bool


def placed_of(told: PromptPlaced) -> Placed | None:
    """The same; `None`: others could not take it."""
    if not told.blocks or wire.node_refusal("node_id", told.node_id) is not None:
        return None
    return Placed(told.node_id, bytes_of(told.blocks[:CHAIN_BLOCKS_MAX]), told.computed)


def bytes_of(blocks: tuple[int, ...]) -> bytes:
    """Blocks as messages have them."""
    return pack(f"<{len(blocks)}Q", *blocks)


def unpacked(chain: bytes) -> tuple[int, ...]:
    """Blocks out of what messages have."""
    return unpack(f"<{len(chain) // BLOCK_BYTES}Q", chain)


def within(newest_first: Iterable[Placed], bytes_max: int) -> tuple[list[Placed], int, int]:
    """The first of them, as many as can be told in so many bytes; how many bytes that takes, about; how many were
    looked at. One that is too long by itself is passed over.

    What stands there twice is told once, and where a prompt was computed nobody needs to hear that it was sent.
    """
    taken: dict[tuple[str, bytes], Placed] = {}
    blocks: set[int] = set()
    names: set[str] = set()
    size = seen = 0
    for one in newest_first:
        key = (one.node_id, one.chain)
        known = taken.get(key)
        if known is None:
            before = len(blocks)
            blocks.update(unpacked(one.chain))  # each stands for all before it, and is written once
            name = 0 if one.node_id in names else len(one.node_id) + NODE_BYTES
            more = (len(blocks) - before) * BLOCK_BYTES + PLACED_BYTES + name
            if size + more > bytes_max:
                if taken:
                    break
                blocks.clear()
                seen += 1
                continue
            size += more
            names.add(one.node_id)
            taken[key] = one
        elif one.computed and not known.computed:
            taken[key] = one
        seen += 1
    return list(taken.values()), size, seen


def messages(router: str, placed: Iterable[Placed]) -> Iterator[bytes]:
    """What tells of them, in any order. One that is there twice, as where it is new and told again, is told once."""
    draft = _Draft(router)
    once: dict[tuple[bytes, str], Placed] = {}
    for one in placed:
        known = once.get((one.chain, one.node_id))
        if known is None or one.computed:
            once[one.chain, one.node_id] = one
    for _, one in sorted(once.items()):
        if not draft.takes(one):
            yield draft.done()
            draft = _Draft(router)
            assert draft.takes(one), "one chain at one node fits"
        draft.add(one)
    if draft.message.placements:
        yield draft.done()


class _Draft:
    """A message in the making."""

    def __init__(self, router: str) -> None:
        self.message = exchange_pb2.Placements(router=router)
        self._nodes: dict[str, int] = {}
        self._chain = b""
        self._last: exchange_pb2.Placement | None = None
        self._bytes = 0
        self._blocks = 0

    def takes(self, one: Placed) -> bool:
        """Whether there is room for it."""
        return (
            self._bytes + len(one.chain) + PLACED_BYTES + len(one.node_id) + NODE_BYTES <= _BYTES_MAX
            and self._blocks + len(one.chain) // BLOCK_BYTES <= BLOCKS_MAX
            and (len(self._nodes) < NODES_MAX or one.node_id in self._nodes)
        )

    def add(self, one: Placed) -> None:
        """Write it. They come sorted."""
        chain, place = one.chain, self._nodes.get(one.node_id)
        if place is None:
            place = self._nodes[one.node_id] = len(self._nodes)
            self._bytes += len(one.node_id) + NODE_BYTES
        last = self._last
        if last is None or chain != self._chain:
            shared = _shared(self._chain, chain)
            rest = chain[shared * BLOCK_BYTES :]
            last = self._last = self.message.placements.add(shared=shared, blocks=rest)
            self._chain = chain
            self._bytes += len(rest)
        (last.computed if one.computed else last.sent).append(place)
        self._bytes += PLACED_BYTES
        self._blocks += len(chain) // BLOCK_BYTES

    def done(self) -> bytes:
        """The message."""
        self.message.node_ids.extend(self._nodes)
        return self.message.SerializeToString()


def _shared(before: bytes, chain: bytes) -> int:
    """How many of its first blocks both have."""
    low, high = 0, min(len(before), len(chain)) // BLOCK_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at = middle * BLOCK_BYTES
        if before[:at] == chain[:at]:
            low = middle
        else:
            high = middle - 1
    return low
