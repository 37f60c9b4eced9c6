"""Subjects of messages: `extproc.FLEET.CHANNEL`, or `extproc.FLEET.CHANNEL.BELOW`, as NATS knows them."""

import re
from functools import lru_cache

ECHO = "echo"
"""What a client sends to itself, to see how long it takes; on a subject below it that is the client's own."""
TOKEN_BYTES_MAX = 1024
"""Of what stands below a channel, escaped: a subject must fit into a line of 4 KiB."""
TOKENS_KEPT_MAX = 2048
"""Escaped already, and read: nodes tell again and again."""
_OTHER = re.compile(rb"[^A-Za-z0-9_-]")
_TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


@lru_cache(TOKENS_KEPT_MAX)
def token_of(text: str) -> str | None:
    """A text as one token of a subject, with other bytes than letters, digits, `_` and `-` as %XX.

    `None` for what no token can be: an empty text, half of a surrogate pair, or more than `TOKEN_BYTES_MAX` escaped.
    """
    try:
        token = _OTHER.sub(lambda byte: b"%%%02X" % byte[0][0], text.encode()).decode("ascii")
    except UnicodeEncodeError:
        return None
    return token if 0 < len(token) <= TOKEN_BYTES_MAX else None


@lru_cache(TOKENS_KEPT_MAX)
def text_of(token: str) -> str | None:
    """The text that was escaped; `None` for what `token_of` never writes: each text has one token."""
    if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
        return None
    try:
        text = _ESCAPED.sub(lambda escaped: bytes.fromhex(escaped[1].decode()), token.encode()).decode()
    except UnicodeDecodeError:
        return None
    return text if token_of(text) == token else None


def subject_of(fleet: str, channel: str, below: str = "") -> str | None:
    """Where a message goes; `None` if `below` can be no token."""
    if not below:
        return f"extproc.{fleet}.{channel}"
    token = token_of(below)
    return None if token is None else f"extproc.{fleet}.{channel}.{token}"
