"""Bodies of chats as the gateway hands them on."""

import json

import msgspec
from msgspec import Raw

from extproc.prompt import Chat, Message
from tests.tokens.references.chats import Body


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def chat_of(body: Body) -> Chat:
    return Chat(
        tuple(msgspec.json.decode(json.dumps(body["messages"]).encode(), type=list[Message])),
        tools=raw(body.get("tools")),
        documents=raw(body.get("documents")),
        template_kwargs=raw(body.get("chat_template_kwargs")),
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
    )
