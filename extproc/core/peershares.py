"""What routers of a fleet tell each other: what each has at every node, and which prompts it sent where."""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from extproc.core.snapshot import COUNTER_MAX, KV_BLOCKS_MAX

COUNT_MAX: Final = 1_000_000_000
"""Of requests, answers or prefills."""


class NodeShare(Struct, frozen=True, array_like=True):
    """What one router has at one node, beside the latest sample of it that this router knows."""

    node_id: str
    seen_until_s: float | None = None
    """What was dispatched until then the sample shows. `None`: it knows no sample."""
    requests_held: int = 0
    """As all of these, see `OwnLoad`."""
    sequences_open: int = 0
    sequences_unseen: int = 0
    requests_unseen: int = 0
    sequences_finished: int = 0
    kv_blocks_unseen: int = 0
    prefills_claimed: int = 0
    """Pending prefills of the sample that are this router's, those that have begun since among them."""
    prefills_shown: int = 0
    """Those that have not begun since."""
    tokens_shown: int = 0
    """Σ uncached prompt tokens of the latter."""
    tokens_unseen: int = 0
    """The same of requests that the sample does not show, and that have not begun."""
    tokens_unstarted: int = 0
    sent_tokens: int = 0
    """Prompt tokens that it sent, as of now, see `OwnLoad.sent_tokens`."""


SHARE_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "requests_held": (0, COUNT_MAX),
    "sequences_open": (0, COUNT_MAX),
    "sequences_unseen": (0, COUNT_MAX),
    "requests_unseen": (0, COUNT_MAX),
    "sequences_finished": (0, COUNT_MAX),
    "kv_blocks_unseen": (-KV_BLOCKS_MAX, KV_BLOCKS_MAX),
    "prefills_claimed": (0, COUNT_MAX),
    "prefills_shown": (0, COUNT_MAX),
    "tokens_shown": (0, COUNTER_MAX),
    "tokens_unseen": (0, COUNTER_MAX),
    "tokens_unstarted": (0, COUNTER_MAX),
    "sent_tokens": (0, COUNTER_MAX),
}
"""What a share's numbers may be, in the order of its fields; messages have the same names."""


class Word(Struct, frozen=True):
    """What a router tells the others at a moment."""

    everything: bool
    """At nodes that are not here it has nothing; else: what it told before."""
    shares: tuple[NodeShare, ...]


@dataclass(frozen=True, slots=True)
class PeerTold:
    """Another router told what it has. Words may be lost, repeated, late and out of order."""

    router: str
    """One run of one process."""
    sequence: int
    """Rises with each word of this router."""
    made_at_s: float
    """On our clock, as the times in its shares."""
    word: Word


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """Another router ended, and said so."""

    router: str


@dataclass(frozen=True, slots=True)
class PromptPlaced:
    """A prompt was sent to a node, by another router or for others to hear, or computed there."""

    node_id: str
    blocks: tuple[int, ...]
    """As `InferenceRequest.prompt_blocks`, from the first."""
    computed: bool


PeerEvent = PeerTold | PeerLeft | PromptPlaced
