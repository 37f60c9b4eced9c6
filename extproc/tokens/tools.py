"""Definitions of tools as templates see them, kept for the many chats that have the same."""

from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from extproc.tokens.pyjson import Kept, decode, numbers_differ

_KEPT_BYTES_MAX: Final = 64 * 1024
_KEPT_MAX: Final = 32
"""Parsed and written they take about 7 bytes for each of theirs, so 15 MB in all; 80 if they are made to take room."""
_TOOL_KEYS: Final = ["type", "function"]
_FUNCTION_KEYS: Final = ["name", "description", "parameters"]


class Tools(Struct, frozen=True):
    """A request's tools."""

    definitions: tuple[Kept, ...]
    """Shared with other chats. Engines let no template change what it is given."""
    exact: bool
    """Whether vLLM hands them on as they stand, with nothing put in order or added, and llama.cpp writes them so."""


def tools_of(raw: bytes) -> Tools:
    """The tools in their JSON. Raises `ValueError` for what no engine takes, `RecursionError` for the too deep."""
    return _kept(raw) if len(raw) <= _KEPT_BYTES_MAX else _read(raw)


def _read(raw: bytes) -> Tools:
    tools = decode(raw)
    if not isinstance(tools, list):
        msg = "tools: not a list"
        raise ValueError(msg)
    exact = bool(tools) and not numbers_differ(raw)  # SGLang takes an empty list for none at all
    definitions = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(function, dict):
            msg = "tools: not functions"
            raise ValueError(msg)
        if list(tool) != _TOOL_KEYS or list(function) != _FUNCTION_KEYS:
            exact = False
            described: dict[str, Any] = {name: function.get(name) for name in _FUNCTION_KEYS}
            function = described | function
        definitions.append(Kept({"type": tool.get("type", "function"), "function": Kept(function)}))
    return Tools(tuple(definitions), exact)


_kept: Final = lru_cache(_KEPT_MAX)(_read)
