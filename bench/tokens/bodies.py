"""What reading a long body's JSON costs the event loop, where it is done: nothing else runs meanwhile."""

import json
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from rich.table import Table

from bench.tokens.hostile import MB
from bench.tokens.tables import made
from bench.tokens.texts import FreshText
from extproc.config import ServeLimits
from extproc.core.request import Endpoint
from extproc.gateway import openai
from extproc.sizes import MIB

_BODY_BYTES_MAX: Final = 42 * MB
_UNIT_CHARS: Final = 10_000


def reading(text: FreshText, rounds: int) -> Table:
    """Table 5."""
    limits = ServeLimits()
    table = made("body", "result", right=("MB", "ms", "ms/MB"))
    for name, make in _bodies(text).items():
        body = make()
        spent = []
        for _ in range(rounds):
            begun = time.perf_counter()
            found = openai.parse(Endpoint.CHAT, body, limits.body_items_max)
            spent.append((time.perf_counter() - begun) * 1000)
        result = "400" if isinstance(found, openai.BodyFault) else "read"
        megabytes = len(body) / 1e6
        table.add_row(name, result, f"{megabytes:.1f}", f"{median(spent):.1f}", f"{median(spent) / megabytes:.2f}")
    table.title = "5 · gateway.openai.parse, on the event loop"
    table.caption = (
        f"no aim, to know. body_items_max as configured by default, {limits.body_items_max:,}. "
        f"Over the default body_bytes_max, {limits.body_bytes_max // MIB} MiB, a body gets 413 and is not read"
    )
    return table


def _bodies(text: FreshText) -> dict[str, Callable[[], bytes]]:
    return {
        "2 MB of ASCII": lambda: _body(_ascii(text, 2 * MB)),
        "2 MB of Chinese in UTF-8": lambda: _body(_chinese(2 * MB // 3)),
        "2 MB of Chinese, escaped": lambda: _body(_chinese(2 * MB // 6), escaped=True),
        "20 MB of ASCII": lambda: _body(_ascii(text, 20 * MB)),
        "42 MB of Chinese, escaped": lambda: _body(_chinese(_BODY_BYTES_MAX // 6), escaped=True),
        "50,000 messages": lambda: _messages([{"role": "user", "content": "Hi."}] * 50_000),
        "400,000 texts of one letter in one message": lambda: _messages([{"role": "user", "content": ["a"] * 400_000}]),
    }


def _body(content: str, *, escaped: bool = False) -> bytes:
    return _messages([{"role": "user", "content": content}], escaped=escaped)


def _messages(messages: list[dict[str, Any]], *, escaped: bool = False) -> bytes:
    return json.dumps({"model": "m", "messages": messages}, ensure_ascii=escaped).encode()


def _ascii(text: FreshText, size: int) -> str:
    return text.take(size).encode("ascii", "ignore").decode()


def _chinese(chars: int) -> str:
    unit = "".join(chr(random.Random(3).randrange(0x4E00, 0x9FFF)) for _ in range(_UNIT_CHARS))
    return (unit * (chars // _UNIT_CHARS + 1))[:chars]
