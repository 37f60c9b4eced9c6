"""A bus without a network: whoever listens hears at once what is published."""

from collections.abc import Callable

from extproc.bus.bus import NODES, BusCounts, Handler
from extproc.pb.nodes_pb2 import AgentMessage, Goodbye, NodeSnapshot


class Room:
    """A `Bus`."""

    def __init__(self, way_s: float = 0.0) -> None:
        self.counts = BusCounts()
        self.connected = True
        self.reason: str | None = None
        self.refused: str | None = None
        self.way_s = way_s
        self.handlers: dict[str, list[Handler]] = {}
        self.published: list[tuple[str, str, bytes]] = []
        """Channel, what is below it, message."""
        self.on_connected: Callable[[], None] = lambda: None
        self.is_closed = False

    def publish(self, channel: str, message: bytes, below: str = "") -> None:
        if self.connected:
            self.published.append((channel, below, message))
            for handler in self.handlers.get(channel, []):
                handler(below, message)

    def listen(self, channel: str, handler: Handler) -> None:
        self.handlers.setdefault(channel, []).append(handler)

    async def open(self, on_connected: Callable[[], None]) -> None:
        self.on_connected = on_connected
        on_connected()

    async def close(self) -> None:
        self.is_closed = True

    def say(self, told: NodeSnapshot | Goodbye | AgentMessage, below: str | None = None) -> None:
        """As an agent does."""
        if isinstance(told, NodeSnapshot):
            message = AgentMessage(snapshot=told, quiet=True)
        else:
            message = AgentMessage(goodbye=told, quiet=True) if isinstance(told, Goodbye) else told
        node_id = message.snapshot.node_id or message.goodbye.node_id
        self.publish(NODES, message.SerializeToString(), node_id if below is None else below)
