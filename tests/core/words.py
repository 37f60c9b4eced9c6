"""Words of other routers, for tests: one line each."""

from typing import Any

from extproc.core.peershares import NodeShare, PeerTold, Word
from tests.core.fleet import NOW_S


def share(node_id: str = "a", seen_until_s: float | None = NOW_S, **numbers: Any) -> NodeShare:
    """What a router has at a node beside the sample of now."""
    return NodeShare(node_id, seen_until_s, **numbers)


def busy(node_id: str = "a", requests: int = 3, tokens: int = 300, **changes: Any) -> NodeShare:
    """So many requests, all sent since the sample, of which none has begun."""
    numbers: dict[str, Any] = {
        **dict.fromkeys(("requests_held", "sequences_open", "sequences_unseen", "requests_unseen"), requests),
        **dict.fromkeys(("tokens_unseen", "tokens_unstarted", "sent_tokens"), tokens),
    }
    return share(node_id, **(numbers | changes))


def told(
    *shares: NodeShare, router: str = "p", sequence: int = 1, made_at_s: float = NOW_S, everything: bool = True
) -> PeerTold:
    """A word."""
    return PeerTold(router, sequence, made_at_s, Word(everything, shares))
