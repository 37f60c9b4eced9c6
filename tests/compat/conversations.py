"""Conversations between agents and routers of earlier releases, as `record` wrote them."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from tests.compat.floor import HERE, compiled


@dataclass(frozen=True)
class Conversation:
    """What passed, in order."""

    said: list[tuple[int, str, bytes]] = field(default_factory=list)
    """The stream's number, `agent` or `router`, the message."""
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the router of then showed of its nodes, before the goodbyes."""
    nodes_after: int = 0
    """So many messages had passed then."""


def conversation(release: str) -> Conversation:
    """The one that is kept of a release."""
    said: list[tuple[int, str, bytes]] = []
    nodes: dict[str, dict[str, Any]] = {}
    nodes_after = 0
    for text in (HERE / release / "conversation.jsonl").read_text().splitlines():
        line = json.loads(text)
        if "nodes" in line:
            nodes, nodes_after = line["nodes"], len(said)
        else:
            said.append((line["stream"], line["from"], base64.b64decode(line["message"])))
    return Conversation(said, nodes, nodes_after)


def messages_of(release: str, name: str, folder: Path) -> dict[str, type[Message]]:
    """The message classes that a release had, as its own file says; they know nothing of what came later."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(compiled(HERE / release / f"{name}.proto", folder))
    return message_factory.GetMessageClassesForFiles([f"{name}.proto"], pool)
