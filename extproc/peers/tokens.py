"""Files of bearer tokens, by which agents show that they may report: the routers' list and the agent's own."""

import hmac
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from extproc.core.settings import Fault
from extproc.peers.reloaded import content_of

TOKEN_CHARS_MIN = 16
TOKEN_CHARS_MAX = 512
TOKENS_MAX = 256
"""Tokens in one file."""
_TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{TOKEN_CHARS_MIN},{TOKEN_CHARS_MAX}}}")
_WANTED = f"a file with a token of {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} letters, digits or ._~+/=- on each line"


def tokens_of(path: Path, setting: str) -> tuple[str, ...] | list[Fault]:
    """The tokens in a file, one a line, without empty lines and those that begin with `#`; or its faults.

    No fault repeats what stands in the file.
    """
    content = content_of(path, setting, _WANTED)
    if isinstance(content, Fault):
        return [content]
    tokens = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        if not _TOKEN.fullmatch(token):
            return [Fault(setting, _WANTED, f"{path}: something else on line {number}")]
        tokens.append(token)
    if not 1 <= len(tokens) <= TOKENS_MAX:
        return [Fault(setting, f"1 to {TOKENS_MAX} tokens", f"{path}: {len(tokens)}")]
    return tuple(tokens)


class TokenSet:
    """Tokens of which one must be shown. Only their hashes are kept."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._hashes = [sha256(token.encode()).digest() for token in tokens]

    def __contains__(self, token: str) -> bool:
        """Whether it is one of them; the time that takes tells nothing of any of them."""
        shown = sha256(token.encode(errors="replace")).digest()
        return sum(hmac.compare_digest(shown, one) for one in self._hashes) > 0
