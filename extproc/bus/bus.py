"""What routers and agents need of a bus: a place where each message reaches all who listen, at most once.

Nothing waits for a bus. What is published while it cannot be reached is lost, and who listens too slowly misses old
messages; whoever speaks on it says all that matters again and again.
"""

from collections.abc import Callable
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
"""`AgentMessage`, by agents for routers; each node has a subject of its own below it."""
MESSAGE_BYTES_MAX = 256 * 1024
"""No message is longer: those that would be are split, or tell less."""

Handler = Callable[[str, bytes], None]
"""Takes what stands below the channel in a message's subject (empty: nothing), and the message. It is called on the
event loop, must not raise for any content, and is quick."""


class Bus(Protocol):
    """One connection to it."""

    @property
    def connected(self) -> bool:
        """Whether what is published now would go out."""

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
