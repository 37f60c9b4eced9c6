"""The page that shows which other routers are heard, and over what."""

from collections.abc import Mapping

from msgspec import Struct

from extproc.wholepages import encoded


class PeerRow(Struct, frozen=True):
    """Another router."""

    router: str
    age_s: float | None = None
    """Of its latest word about its load; `None`: it has said none."""
    requests: int | None = None
    """What it has open, at all nodes; `None`: it has not said."""
    same_key: bool | None = None
    """Whether it has our `prefix_secret`: else its prompts are not taken; `None`: it has not said."""


class ExchangeState(Struct, frozen=True):
    """How the exchange stands."""

    router: str
    """This one."""
    connected: bool
    """Whether the bus can be reached."""
    reason: str | None
    """Why not, or what it forbids us; `None`: nothing is known to be wrong."""
    for_s: float
    """And since how long it can, or cannot."""
    way_s: float | None
    """From here to the bus, or back; `None`: not measured."""
    ends_are_told: bool
    """Whether others tell how our answers end."""
    peers: list[PeerRow]
    messages: Mapping[str, Mapping[str, int]]
    """Sent, received from others and for us, and refused, by kind; and what was dropped, by reason."""


def peers_page(router: str, state: ExchangeState | None) -> bytes:
    """`None`: there is no bus, so this router tells nobody anything, and hears nobody."""
    content: object = state if state is not None else {"router": router, "bus": False, "peers": []}
    return encoded(content)
