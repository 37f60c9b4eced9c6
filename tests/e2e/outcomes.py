"""What tests of outcomes share: a request, a node that is as a test says, and an error's shape."""

import json
from typing import Any

from extproc.traffic import Answer, Ask, chat
from tests.e2e.conftest import MODEL, System
from tests.e2e.reporter import Reporter

HELLO = Ask("chat", "/v1/chat/completions", chat(MODEL, "Hello", output_tokens=2, stream=False))


def error_of(answer: Answer) -> dict[str, Any]:
    """The error of an OpenAI-shaped body, and of nothing else."""
    body = json.loads(answer.text)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


async def ready_node(system: System, reporter: Reporter, **fields: Any) -> None:
    await reporter.report("scripted", system.engines[0].address, **fields)
