"""A request's body with another model in it, and nothing else changed."""

import json
from typing import Any, Final

import msgspec
from msgspec import Raw

MEMBERS_MAX: Final = 500_000
"""Fields of a body beyond which it is left alone: each takes the event loop 0.5 µs at most, and 150 bytes."""
_KEY_ENDS: Final = (b'":', b'" ', b'"\n', b'"\t', b'"\r')
"""How the key of a field ends in JSON that is UTF-8."""
_Fields = dict[str, Raw]
_DECODER: Final = msgspec.json.Decoder(_Fields)


def with_model(body: bytes, model: str, members_max: int = MEMBERS_MAX) -> bytes | None:
    """The same JSON object with this `model`; `None`: the body is none, or has too many fields. Raises for no input.

    Fields keep their order and their values byte for byte. Of a field that stands there twice the last one stays, as
    engines read it. Where the body is what only Python's reader takes (see `openai`), each value is written anew in
    UTF-8: readers that took the old body find the same values in the new one. `None` as well where even that reader
    fails on a field that `openai.parse` passes over, as an integer of over 4300 digits.
    """
    if body.count(b'"') > 2 * members_max and sum(map(body.count, _KEY_ENDS)) > members_max:
        return None
    try:
        fields = _DECODER.decode(body)
    except msgspec.ValidationError:
        return None  # JSON, but no object
    except (msgspec.DecodeError, RecursionError):
        return _written_anew(body, model)
    fields["model"] = Raw(json.dumps(model).encode())
    return msgspec.json.encode(fields)


def _written_anew(body: bytes, model: str) -> bytes | None:
    try:
        fields: Any = json.loads(body)
        if not isinstance(fields, dict):
            return None
        fields["model"] = model
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None
    # Halves of surrogate pairs alone cannot be encoded, and what replaces them is JSON's escape for them.
    return text.encode("utf-8", "backslashreplace")
