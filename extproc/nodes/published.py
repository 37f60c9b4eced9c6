"""What agents publish on a bus: each message on the subject of its node.

A subject is what a NATS server can bind an agent to; so a message may be about no other node.
"""

from google.protobuf.message import DecodeError

from extproc.bus.bus import MESSAGE_BYTES_MAX, NODES, Bus
from extproc.nodes.reports import Reports
from extproc.pb.nodes_pb2 import AgentMessage


def hear(bus: Bus, reports: Reports) -> None:
    """Take all that comes from now on."""

    def take(node_id: str, message: bytes) -> None:
        if len(message) > MESSAGE_BYTES_MAX:
            reports.refuse_published(f"message: wanted at most {MESSAGE_BYTES_MAX} bytes, got {len(message)}", node_id)
            return
        try:
            parsed = AgentMessage.FromString(message)
        except DecodeError:
            reports.refuse_published("message: wanted an AgentMessage, got what is none", node_id)
            return
        reports.take_published(parsed, node_id, 2 * bus.way_s)

    bus.listen(NODES, take)
