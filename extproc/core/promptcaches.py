"""Which node has which beginnings of prompts in its cache, by what it tells, or was sent there and how that fared."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from msgspec import Struct

from extproc.core import kvindex
from extproc.core.kvcoming import ComingBlocks
from extproc.core.kvindex import KvIndex
from extproc.core.peershares import PromptPlaced
from extproc.core.prefix import PrefixIndex
from extproc.core.request import PROMPT_BLOCK_TOKENS, InferenceRequest
from extproc.core.settings import PrefixSettings
from extproc.core.snapshot import KvBlocksTold, Snapshot
from extproc.kvchain import BLOCK_TOKENS

SENT_TOLD_BLOCKS_MIN = 32
"""Others are told of shorter prompts, of under 2,000 tokens, only when they are computed: if another router sends one
that begins alike elsewhere meanwhile, that costs a quarter of a second at most, and most have no such other."""
PLACED_BLOCKS_MAX = 200_000
"""Of prompts that others shall know of and that nobody took yet, 10 MB, or 40 MB of prompts of one block; the oldest go
first."""
PUT_OFF_MAX = 1000
"""Prompts that are still to be taken in: of more the oldest is, for nobody may ask while others tell of theirs."""
ON_THE_WAY_SHARE = 4
"""What has not been computed yet gets one part in so many of the memory, and of a node's cache."""


class Cached(Struct, frozen=True):
    """How many tokens of a prompt nodes have in their caches, or will have when it comes to them."""

    tokens: dict[str, int]
    """Nodes that have none are left out."""
    told: Collection[str] = ()
    """Nodes whose figure rests on what they tell."""


class PromptCaches:
    """Two indexes: of prompts that a node has computed, and of those on their way to it; and what nodes tell.

    A prompt counts from the moment of its sending, so that others which begin alike can follow it before its end. But
    what a node has in its cache is pushed out only by what it has computed: anybody can send long prompts which engines
    refuse at once.

    Of nodes that tell their blocks, and prompts whose tokens are known, just that counts, and what is on its way there.

    Taking prompts in is put off until somebody asks, or `settle`.
    """

    def __init__(self, settings: PrefixSettings) -> None:
        self._node_tokens = settings.node_tokens
        self._on_the_way = PrefixIndex(settings.index_bytes_max // ON_THE_WAY_SHARE)
        self._computed = PrefixIndex(settings.index_bytes_max - settings.index_bytes_max // ON_THE_WAY_SHARE)
        self._waiting: deque[tuple[PrefixIndex, str, tuple[int, ...], int]] = deque()
        coming_bytes = settings.kv_index_bytes_max // ON_THE_WAY_SHARE
        self.kv = KvIndex(settings.kv_index_bytes_max - coming_bytes, settings.kv_blocks_node_max)
        self._coming = ComingBlocks(coming_bytes // kvindex.ENTRY_BYTES)
        self._kv_waiting: deque[Callable[[], None]] = deque()
        self.tells = False
        """Whether there is anybody to be told of prompts."""
        self._placed: deque[PromptPlaced] = deque()
        self._placed_blocks = 0

    def sent(self, snapshot: Snapshot, blocks: tuple[int, ...], *, tell: bool = True) -> None:
        """A prompt is on its way to this node. `tell`: others shall know."""
        self._put(self._on_the_way, snapshot, blocks, self._capacity_blocks(snapshot) // ON_THE_WAY_SHARE)
        if tell and self.tells and len(blocks) >= SENT_TOLD_BLOCKS_MIN:
            self._tell(PromptPlaced(snapshot.node_id, blocks, computed=False))

    def computed(self, snapshot: Snapshot, blocks: tuple[int, ...], *, tell: bool = True) -> None:
        """This node has computed a prompt. `tell`: others shall know."""
        self._put(self._computed, snapshot, blocks, self._capacity_blocks(snapshot))
        if tell and self.tells:
            self._tell(PromptPlaced(snapshot.node_id, blocks, computed=True))

    def take_placed(self) -> list[PromptPlaced]:
        """What others shall know of, since this was asked last; from then on it is kept for them."""
        self.tells = True
        placed, self._placed = list(self._placed), deque()
        self._placed_blocks = 0
        return placed

    def cached(self, request: InferenceRequest, snapshot_of: Callable[[str], Snapshot]) -> Cached:
        """How much of its prompt each node has or will have."""
        per_block = request.tokens_per_block
        tokens = {node_id: int(count * per_block) for node_id, count in self.match(request.prompt_blocks).items()}
        if not request.token_blocks or not self.kv.nodes:
            return Cached(tokens)
        for node_id in self.kv.nodes:
            tokens.pop(node_id, None)
        for node_id, depth in self.kv.match(request.token_blocks, self._coming.masks).items():
            # Engines compute the last token of every prompt, and with it its block.
            count = min(depth * BLOCK_TOKENS, request.prompt.tokens - 1)
            size = snapshot_of(node_id).kv_block_size_tokens or BLOCK_TOKENS
            whole = BLOCK_TOKENS if size % BLOCK_TOKENS else size  # engines find whole blocks of theirs only
            if (count := count // whole * whole) > 0:
                tokens[node_id] = count
        return Cached(tokens, self.kv.nodes)

    def begun(self, request: InferenceRequest, node_id: str) -> None:
        """Its prompt is on its way to this node, which may tell its blocks."""
        if request.token_blocks and (bit := self.kv.bit(node_id)):
            self._put_off(partial(self._coming.sent, request.request_id, node_id, bit, request.token_blocks))

    def moved(self, request_id: str, node_id: str) -> None:
        """It is at another node than it was sent to."""
        if self.kv.nodes:
            self._put_off(partial(self._coming.moved, request_id, node_id, self.kv.bit(node_id)))

    def ended(self, request_id: str, *, computed: bool) -> None:
        """Its prompt was computed, or never will be."""
        if self.kv.nodes:
            self._put_off(partial(self._coming.computed if computed else self._coming.over, request_id))

    def reported(self, node_id: str) -> None:
        """A report of this node has come."""
        if self.kv.bit(node_id):
            self._put_off(partial(self._coming.reported, node_id))

    def told(self, event: KvBlocksTold) -> str | None:
        """A node tells of its blocks. Why that is refused, or `None`."""
        if event.everything and not event.stored:
            self._forget_told(event.node_id)
            return None
        self.settle()
        fault = self.kv.told(event.node_id, event.stored, event.removed, everything=event.everything)
        if fault is not None:
            self._forget_told(event.node_id)
        return fault

    def match(self, blocks: Sequence[int]) -> dict[str, int]:
        """How many of a prompt's first blocks each node has or will have; nodes that have none are left out."""
        self.settle()
        found = self._computed.match(blocks)
        for node_id, count in self._on_the_way.match(blocks).items():
            if count > found.get(node_id, 0):
                found[node_id] = count
        return found

    def settle(self) -> None:
        """Do what was put off."""
        while self._waiting:
            self._take_in()
        while self._kv_waiting:
            self._kv_waiting.popleft()()

    def _put_off(self, action: Callable[[], None]) -> None:
        self._kv_waiting.append(action)

    def forget(self, node_id: str) -> None:
        """The node's cache is empty, or the node is gone."""
        self.settle()
        self._computed.forget(node_id)
        self._on_the_way.forget(node_id)
        self._forget_told(node_id)

    def _forget_told(self, node_id: str) -> None:
        self.settle()
        self.kv.forget(node_id)
        self._coming.forget(node_id)

    def _tell(self, placed: PromptPlaced) -> None:
        if placed.blocks:
            self._placed.append(placed)
            self._placed_blocks += len(placed.blocks)
            while self._placed_blocks > PLACED_BLOCKS_MAX:
                self._placed_blocks -= len(self._placed.popleft().blocks)

    def _put(self, index: PrefixIndex, snapshot: Snapshot, blocks: tuple[int, ...], capacity_blocks: int) -> None:
        if blocks:
            self._waiting.append((index, snapshot.node_id, blocks, capacity_blocks))
            if len(self._waiting) > PUT_OFF_MAX:
                self._take_in()

    def _take_in(self) -> None:
        index, node_id, blocks, capacity_blocks = self._waiting.popleft()
        index.insert(node_id, blocks, capacity_blocks)

    def _capacity_blocks(self, snapshot: Snapshot) -> int:
        tokens = self._node_tokens
        if snapshot.kv_blocks_total is not None and snapshot.kv_block_size_tokens is not None:
            tokens = snapshot.kv_blocks_total * snapshot.kv_block_size_tokens
        return tokens // PROMPT_BLOCK_TOKENS
