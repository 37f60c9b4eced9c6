"""The beginnings of a prompt as a chain of numbers, by which prompts that begin alike are known without keeping them.

The chain is made of what the client sent, in the order in which engines read it, not of tokens: so it costs no
tokenizer, and models without one have it too. What a template puts around the texts is left out, for it puts the same
around the same.
"""

from array import array
from collections.abc import Iterator
from itertools import islice
from struct import unpack
from typing import Final

from msgspec import Raw
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from extproc.core.request import PROMPT_BLOCK_BYTES
from extproc.prompt import Chat, Prompt, is_null

PROMPT_BLOCKS_MAX: Final = 4096
"""1 MiB of text, or 262,144 token ids. What lies behind is not told apart: the chain is no longer."""

_BYTES_MAX: Final = PROMPT_BLOCKS_MAX * PROMPT_BLOCK_BYTES
_ID_BYTES: Final = 4
_MEDIUM_BLOCKS: Final = 4
_PIECES_MAX: Final = 8192
"""Of a chat likewise: each message and part costs, however short. A message of text has four pieces."""

# What a piece is stands before it. None can pass for another or for two, since UTF-8 has no byte 0xFF.
_MARK: Final = b"\xff"
_TOOLS: Final = b"\xfftools:"
_DOCUMENTS: Final = b"\xffdocuments:"
_MESSAGE: Final = b"\xffmessage:"
_NAME: Final = b"\xffname:"
_TOOL_CALL_ID: Final = b"\xfftool_call_id:"
_REASONING: Final = b"\xffreasoning:"
_TEXT: Final = b"\xfftext:"
_MEDIUM: Final = b"\xffmedium:"
_TOOL_CALLS: Final = b"\xfftool_calls:"


def blocks_of(model: str, prompt: Prompt, seed: int) -> tuple[int, ...]:
    """See `InferenceRequest.prompt_blocks`. Takes about 0.2 µs for each block and 1.2 µs for each message.

    `seed` (64 bits) is to be a secret of the process: who knows it can make different prompts with equal numbers.
    A chat is followed up to its first part of unknown kind; an image, audio or file weighs four blocks. What a chat's
    `chat_template_kwargs` change mostly stands at the prompt's end, as whether to think, so they make no difference.
    """
    one_of = (prompt.chat is not None) + len(prompt.texts) + bool(prompt.ids)
    if prompt.prompts != 1 or one_of != 1:
        return ()
    if prompt.chat is not None:
        kind, special, data = (
            b"chat",
            prompt.chat.add_special_tokens,
            _bounded(islice(_chat_pieces(prompt.chat), _PIECES_MAX)),
        )
    elif prompt.ids:
        kind, special, data = b"ids", False, _ids(prompt.ids[: _BYTES_MAX // _ID_BYTES])
    elif prompt.media:
        return ()
    else:
        kind, special, data = b"text", prompt.add_special_tokens, _utf8(prompt.texts[0])
    beginning = b"%b\xff%b\xff%d" % (_utf8(model), kind, special)
    return _chain(data, xxh3_64_intdigest(beginning, seed))


def _chain(data: bytes, number: int) -> tuple[int, ...]:
    """Each block's hash is keyed by the number before it, and so depends on all blocks up to it."""
    numbers = []
    count = min(len(data), _BYTES_MAX) // PROMPT_BLOCK_BYTES
    # A quarter faster than slices.
    for block in unpack(f"{PROMPT_BLOCK_BYTES}s" * count, data[: count * PROMPT_BLOCK_BYTES]):
        number = xxh3_64_intdigest(block, number)
        numbers.append(number)
    return tuple(numbers)


def _bounded(pieces: Iterator[bytes]) -> bytes:
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= _BYTES_MAX:
            break
    return b"".join(taken)


def _chat_pieces(chat: Chat) -> Iterator[bytes]:
    """A conversation in pieces, up to its first part of unknown kind. A turn more adds some at its end only."""
    yield from _fields((_TOOLS, chat.tools), (_DOCUMENTS, chat.documents))
    for message in chat.messages:
        yield _MESSAGE
        yield _utf8(message.role or "")
        if message.name or message.tool_call_id or message.reasoning or message.reasoning_content:
            yield from _fields(
                (_NAME, message.name),
                (_TOOL_CALL_ID, message.tool_call_id),
                (_REASONING, message.reasoning),
                (_REASONING, message.reasoning_content),
            )
        content = message.content
        if isinstance(content, str):
            yield _TEXT
            yield _utf8(content)
        elif content is not None:
            for part in content:
                texts = [part] if isinstance(part, str) else part.texts
                if not texts and not isinstance(part, str):
                    if not part.media:
                        return
                    for raw in part.media:
                        yield _MEDIUM
                        yield _digest(raw)
                for text in texts:
                    yield _TEXT
                    yield _utf8(text)
        if message.tool_calls:
            yield from _fields((_TOOL_CALLS, message.tool_calls))


def _fields(*fields: tuple[bytes, Raw]) -> Iterator[bytes]:
    for mark, raw in fields:
        if not is_null(raw):
            yield mark
            yield _json(raw)


def _digest(raw: Raw) -> bytes:
    """An image may have megabytes: 16 bytes stand for it, repeated, for it is many tokens to the engine."""
    return xxh3_128_digest(memoryview(raw)) * (_MEDIUM_BLOCKS * PROMPT_BLOCK_BYTES // 16)


def _utf8(text: str) -> bytes:
    return text[:_BYTES_MAX].encode("utf-8", "surrogatepass")


def _json(raw: Raw) -> bytes:
    """As the client wrote it, but without marks: where it holds one it is no JSON, and must not pass for two pieces."""
    return bytes(memoryview(raw)[:_BYTES_MAX]).replace(_MARK, b"")


def _ids(ids: tuple[int, ...]) -> bytes:
    """Four bytes for each; larger ids, which no model has, lose their upper bits."""
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        return array("I", (one & 0xFFFF_FFFF for one in ids)).tobytes()
