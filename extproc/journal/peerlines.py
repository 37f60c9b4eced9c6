"""The lines of what other routers told: a word about 100 nodes takes 6 KB."""

from typing import assert_never

from extproc.core.peershares import NodeShare, PeerEvent, PeerLeft, PeerTold, PromptPlaced, Word
from extproc.journal.lineform import LineForm, packed, unpacked


class PeerWord(LineForm, frozen=True, tag="peer"):
    """`peer` of what another router told."""

    now_s: float
    router: str
    sequence: int
    made_at_s: float
    everything: bool = False
    shares: tuple[NodeShare, ...] = ()


class PeerGone(LineForm, frozen=True, tag="peer_left"):
    """`peer` of another router's end."""

    now_s: float
    router: str


class Placed(LineForm, frozen=True, tag="placed"):
    """`peer` of a prompt that another router sent somewhere, or that was computed there."""

    now_s: float
    node_id: str
    blocks: bytes
    computed: bool = False


Peer = PeerWord | PeerGone | Placed


def line_of(event: PeerEvent, now_s: float) -> Peer:
    """The line of what another router told. Raises as `packed`."""
    match event:
        case PeerTold(router, sequence, made_at_s, word):
            return PeerWord(now_s, router, sequence, made_at_s, word.everything, word.shares)
        case PeerLeft(router):
            return PeerGone(now_s, router)
        case PromptPlaced(node_id, blocks, computed):
            return Placed(now_s, node_id, packed(blocks), computed)
        case _:
            assert_never(event)


def event_of(line: Peer) -> PeerEvent:
    """The same back. Raises as `unpacked`."""
    match line:
        case PeerWord():
            return PeerTold(line.router, line.sequence, line.made_at_s, Word(line.everything, line.shares))
        case PeerGone(router=router):
            return PeerLeft(router)
        case Placed():
            return PromptPlaced(line.node_id, unpacked(line.blocks), line.computed)
        case _:
            assert_never(line)
