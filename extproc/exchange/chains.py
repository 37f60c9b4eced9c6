"""Prompts that were sent somewhere, onto the bus and off it: chains of hashes, of which many begin alike.

Sorted, each chain is written as how much it shares with the one before, and the rest: so each beginning is written once
in a message. Of more than the budget allows the newest are told.
"""

from array import array
from collections.abc import Iterable, Iterator

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
    """Its blocks, eight bytes each."""
    computed: bool


def placed_of(told: PromptPlaced) -> Placed | None:
    """The same; `None`: others could not take it."""
    if not told.blocks or wire.node_refusal("node_id", told.node_id) is not None:
        return None
    return Placed(told.node_id, array("Q", told.blocks[:CHAIN_BLOCKS_MAX]).tobytes(), told.computed)


def within(newest_first: Iterable[Placed], bytes_max: int) -> tuple[list[Placed], int, int]:
    """The first of them, as many as can be told in so many bytes; how many bytes that takes, about; how many were
    looked at. One that is too long by itself is passed over.

    What stands there twice is told once, and where a prompt was computed nobody needs to hear that it was sent.
    """
    taken: dict[tuple[str, bytes], Placed] = {}
    blocks: set[bytes] = set()
    names: set[str] = set()
    size = seen = 0
    for one in newest_first:
        key = (one.node_id, one.chain)
        known = taken.get(key)
        if known is None:
            chain = one.chain
            parts = [chain[at : at + BLOCK_BYTES] for at in range(0, len(chain), BLOCK_BYTES)]
            new = [part for part in parts if part not in blocks]
            name = 0 if one.node_id in names else len(one.node_id) + NODE_BYTES
            more = len(new) * BLOCK_BYTES + PLACED_BYTES + name
            if size + more > bytes_max:
                if taken:
                    break
                seen += 1
                continue
            size += more
            blocks.update(new)
            names.add(one.node_id)
            taken[key] = one
        elif one.computed:
            taken[key] = one
        seen += 1
    return list(taken.values()), size, seen


def messages(router: str, placed: Iterable[Placed]) -> Iterator[bytes]:
    """What tells of them, in any order."""
    draft = _Draft(router)
    for one in sorted(placed, key=lambda one: (one.chain, one.node_id)):
        if not draft.takes(one):
            yield draft.message.SerializeToString()
            draft = _Draft(router)
            assert draft.takes(one), "one chain at one node fits"
        draft.add(one)
    if draft.message.placements:
        yield draft.message.SerializeToString()


class _Draft:
    """A message in the making."""

    def __init__(self, router: str) -> None:
        self.message = exchange_pb2.Placements(router=router)
        self._nodes: dict[str, int] = {}
        self._chain = b""
        self._bytes = 0
        self._blocks = 0

    def takes(self, one: Placed) -> bool:
        count = len(one.chain) // BLOCK_BYTES
        return (
            self._bytes + len(one.chain) + PLACED_BYTES + len(one.node_id) + NODE_BYTES <= _BYTES_MAX
            and self._blocks + count <= BLOCKS_MAX
            and (one.node_id in self._nodes or len(self._nodes) < NODES_MAX)
        )

    def add(self, one: Placed) -> None:
        place = self._nodes.get(one.node_id)
        if place is None:
            place = self._nodes[one.node_id] = len(self._nodes)
            self.message.node_ids.append(one.node_id)
            self._bytes += len(one.node_id) + NODE_BYTES
        if one.chain != self._chain or not self.message.placements:
            shared = _shared(self._chain, one.chain)
            rest = array("Q", one.chain[shared * BLOCK_BYTES :])
            self.message.placements.add(shared=shared, blocks=rest)
            self._chain = one.chain
            self._bytes += len(rest) * BLOCK_BYTES
        last = self.message.placements[-1]
        (last.computed if one.computed else last.sent).append(place)
        self._bytes += PLACED_BYTES
        self._blocks += len(one.chain) // BLOCK_BYTES


def placements_of(message: bytes) -> tuple[str, list[PromptPlaced]] | str:
    """Whose they are and what is told, or why it is refused. Raises for no content."""
    found = wire.parsed(exchange_pb2.Placements, message)
    if isinstance(found, str):
        return found
    if (reason := wire.router_refusal(found.router)) is not None:
        return reason
    node_ids = list(found.node_ids)
    if len(node_ids) > NODES_MAX:
        return wire.refused("node_ids", f"at most {NODES_MAX}", len(node_ids))
    for place, node_id in enumerate(node_ids):
        if (reason := wire.node_refusal(f"node_ids.{place}", node_id)) is not None:
            return reason
    told: list[PromptPlaced] = []
    chain: tuple[int, ...] = ()
    written = 0
    for place, one in enumerate(found.placements):
        if one.shared > len(chain):
            return wire.refused(f"placements.{place}.shared", f"at most {len(chain)}", one.shared)
        count, nodes = one.shared + len(one.blocks), len(one.sent) + len(one.computed)
        if not 1 <= count <= CHAIN_BLOCKS_MAX:
            return wire.refused(f"placements.{place}", f"1..{CHAIN_BLOCKS_MAX} blocks", count)
        written += count * max(1, nodes)
        if written > BLOCKS_MAX:
            return wire.refused("placements", f"at most {BLOCKS_MAX} blocks, at all nodes together", written)
        chain = (*chain[: one.shared], *one.blocks)
        for places, computed in ((one.sent, False), (one.computed, True)):
            for number in places:
                if number >= len(node_ids):
                    return wire.refused(f"placements.{place}", f"places of {len(node_ids)} nodes", number)
                told.append(PromptPlaced(node_ids[number], chain, computed))
    return found.router, told


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
