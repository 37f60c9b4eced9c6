"""What routers and agents need of a bus: a place where each message reaches all who listen, at most once.

Nothing waits for a bus. What is published while it cannot be reached is lost, and who listens too slowly misses old
messages; whoever speaks on it says all that matters again and again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

LOADS = "loads"
"""`RouterLoads`, by routers for routers."""
PLACEMENTS = "placements"
"""`Placements`, by routers for routers."""
ROUTERS = "routers"
"""`RouterHere`, by routers for routers and agents."""
ENDS = "ends"
"""`AnswerEnds`, by routers for the router that they name."""
NODES = "nodes"
"""`AgentMessage`, by agents for routers; each node has a subject of its own below it, and no other channel has any."""
MESSAGE_BYTES_MAX = 256 * 1024
"""No message is longer: those that would be are split, or tell less."""

Handler = Callable[[str, bytes], None]
"""Takes what stands below the channel in a message's subject (empty: nothing), and the message. It is called on the
event loop, must not raise for any content, and is quick."""


@dataclass
class BusCounts:
    """What became of messages since the start; bytes are those of messages alone."""

    published: int = 0
    published_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    connections: int = 0
    """How often the bus was reached."""
    dropped_slow: int = 0
    """Lost because handlers here did not keep up."""
    dropped_unsent: int = 0
    """Lost because the bus was not reached, or the way there, or a receiver, did not keep up."""
    dropped_long: int = 0
    """Longer than the bus takes, or than others may send."""
    faults: int = 0
    """Handlers that raised."""


class Bus(Protocol):
    """One connection to it."""

    counts: BusCounts

    @property
    def connected(self) -> bool:
        """Whether what is published now would go out."""

    @property
    def reason(self) -> str | None:
        """Why it is not connected, for people; `None`: it is, or nothing is known yet."""

    @property
    def refused(self) -> str | None:
        """What the bus forbids us to say or hear though it is connected, for people; `None`: nothing.

        A publication that is refused counts for `REFUSED_S` (`troubles.py`), a subscription until the next connection.
        """

    @property
    def way_s(self) -> float:
        """Seconds from here to the bus, or back, as measured lately; 0: not yet."""

    def publish(self, channel: str, message: bytes, below: str = "") -> None:
        """Send a message to all who listen to the channel, ourselves too. Never waits, never raises."""

    def listen(self, channel: str, handler: Handler) -> None:
        """Hear all messages of a channel, from now on; before `open`, or while it is open. Never raises."""

    async def open(self, on_connected: Callable[[], None]) -> None:
        """Begin to connect, and stay so until `close`: a bus that is not there is tried again and again.

        `on_connected` is called each time when it is reached: messages may have been missed before.
        """

    async def close(self) -> None:
        """What was published shortly before still goes out where that takes no time."""
