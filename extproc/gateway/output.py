"""Whether a piece of an answer holds any output. Engines send other things before the first token.

vLLM's chats and completions begin with the first token. llama.cpp sends comments while it computes (`:` and a blank
line), and streams of `/v1/responses` begin with events that say that there is a response.
"""

import re
from typing import Final

_MAYBE_NONE: Final = (b"", b":", b"\n", b"\r", b"e")
"""What begins neither `data: …` nor JSON."""
_EVENT: Final = re.compile(rb"^event: ?(\S*)", re.MULTILINE)
_PREAMBLE: Final = frozenset(
    (
        b"response.created",
        b"response.queued",
        b"response.in_progress",
        b"response.output_item.added",
        b"response.content_part.added",
    )
)


def has_output(piece: bytes) -> bool:
    """Whether it does. A preamble that was cut counts as output from its second piece on: a little early, no harm."""
    if piece[:1] not in _MAYBE_NONE:
        return True
    if events := _EVENT.findall(piece):
        return not _PREAMBLE.issuperset(events)
    return any(line and not line.startswith(b":") for line in piece.splitlines())
