"""Reading bodies in a test's few words."""

import json
from typing import Any

from extproc.core.request import Endpoint
from extproc.gateway.openai import (
    BodyFault,
    ParsedBody,
    parse,
)

CHAT, COMPLETION, EMBEDDING, RESPONSE = Endpoint.CHAT, Endpoint.COMPLETION, Endpoint.EMBEDDING, Endpoint.RESPONSE

ITEMS_MAX = 1_000_000


def parsed(endpoint: Endpoint, **fields: Any) -> ParsedBody:
    found = parse(endpoint, json.dumps({"model": "m"} | fields).encode(), ITEMS_MAX)
    assert isinstance(found, ParsedBody), found
    return found


def fault(endpoint: Endpoint, body: bytes | dict[str, Any]) -> BodyFault:
    found = parse(endpoint, body if isinstance(body, bytes) else json.dumps(body).encode(), ITEMS_MAX)
    assert isinstance(found, BodyFault), found
    return found
