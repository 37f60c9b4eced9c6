"""JSON as the engines' Python reads and writes it, so that numbers and definitions of tools stand in prompts alike."""

import json
import re
from typing import Any, Final

import msgspec

_INDENT_MAX: Final = 16
"""Spaces; each level of a value costs them once more on every line."""


class Float:
    """A number that minijinja writes in its own way, as 1e+22 and the JSON of 1.0: Python writes it instead."""

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)

    @property
    def value(self) -> float:
        """The number."""
        return self._value


class Kept(dict[str, Any]):
    """An object that stays the same and is written often: its JSON is kept beside it."""

    __slots__ = ("json",)
    json: str


def _float(text: str) -> float | Float:
    value = float(text)
    shown = repr(value)
    return Float(value) if shown.endswith(".0") or "e" in shown or "n" in shown else value


_LONG: Final = re.compile(rb"[0-9]{19}")
_FRACTION: Final = re.compile(rb"[0-9][.eE]")
_DECODER: Final = msgspec.json.Decoder(float_hook=_float)


def decode(text: bytes | str) -> Any:
    """The value. Raises `ValueError` for what is no JSON, `RecursionError` where it is too deep.

    Python's own reader also takes `NaN` and half a surrogate pair; nothing comes of a prompt with these.
    """
    return _DECODER.decode(text)


def numbers_differ(text: bytes | str) -> bool:
    """Whether llama.cpp, which writes fractions as C's `%g`, may write any number of this JSON otherwise than Python.

    Raises what `decode` raises.
    """
    encoded = text.encode() if isinstance(text, str) else text
    if _LONG.search(encoded) is not None:
        return True  # it has 64 bits for whole numbers
    if _FRACTION.search(encoded) is None:
        return False
    values: list[float] = []
    msgspec.json.Decoder(float_hook=lambda number: values.append(float(number))).decode(encoded)
    return any(f"{value:g}" != repr(value) for value in values)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter of this name as transformers defines it: nothing is escaped for HTML.

    Raises `TypeError` and `ValueError` for what has no JSON, `RecursionError` for what is nested too deep.
    """
    if not ensure_ascii and indent is None and separators is None and not sort_keys:
        if not isinstance(value, Kept):
            return _PLAIN.encode(value)
        if not hasattr(value, "json"):
            value.json = _PLAIN.encode(value)
        return value.json
    if indent is not None and (indent if isinstance(indent, int) else len(indent)) > _INDENT_MAX:
        msg = f"indent: at most {_INDENT_MAX}"
        raise ValueError(msg)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: object) -> float:
    if isinstance(value, Float):
        return value.value
    msg = f"{type(value).__name__} has no JSON"
    raise TypeError(msg)


_PLAIN: Final = json.JSONEncoder(ensure_ascii=False, default=_plain)
