"""Counting files as `serve` counts prompts: how a tokenizer and its template are checked before they are trusted."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from extproc.config import GIB, ModelTokenizer, TokenSettings
from extproc.core.request import Endpoint
from extproc.core.settings import Fault
from extproc.gateway import openai
from extproc.ops.metrics import Metrics
from extproc.prompt import CountedPrompt, Prompt
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import CountedModel, Tokenizers, load

MODEL: Final = "counted"
ITEMS_MAX: Final = 50_000_000


class FileCount(Struct, frozen=True):
    """One file, counted; or why it could not be."""

    file: str
    bytes: int
    tokens: int | None = None
    exact: bool = False
    """Whether engines count the same."""
    source: str = ""
    seconds: float = 0.0
    """Reading the JSON of a chat included, as `serve` does."""
    fault: str | None = None


class Counting:
    """One tokenizer, and the counter around it. Raises `ValueError` with all that is wrong with its files."""

    def __init__(self, tokenizer: Path, chat_template: Path | None) -> None:
        entry = ModelTokenizer(tokenizer=str(tokenizer), chat_template=chat_template)
        # Whoever asks here can wait, and wants the count and not an estimate.
        settings = TokenSettings(
            models={MODEL: entry}, token_budget_ms=10_000, waiting_bytes_max=GIB, chat_bytes_max=GIB
        )
        loaded = load(settings)
        if not isinstance(loaded, Tokenizers):
            raise ValueError("; ".join(_without_model(fault) for fault in loaded))
        model = loaded.of(MODEL)
        assert model is not None, "required, so loaded or a fault"
        self.model: CountedModel = model
        self._counter = TokenCounter(settings, loaded, Metrics())

    def count(self, files: Iterable[tuple[str, bytes]], *, chat: bool) -> Iterator[FileCount]:
        """Count each of these names and contents, as a completion's prompt or as a chat's body."""
        with asyncio.Runner() as runner:
            for name, content in files:
                began_s = time.perf_counter()
                prompt = _chat_of(content) if chat else _text_of(content)
                if isinstance(prompt, str):
                    yield FileCount(name, len(content), fault=prompt)
                    continue
                counted = runner.run(self._count(prompt))
                seconds = time.perf_counter() - began_s
                found = counted.count
                yield FileCount(name, len(content), found.tokens, found.exact, found.source.value, seconds)

    @property
    def shown(self) -> dict[str, str | None]:
        """What counts, and why; for people and for JSON."""
        model = self.model
        return {
            "tokenizer": model.name,
            "engine": f"{model.encoder.engine}: {model.encoder.reason}",
            "template": None if model.template is None else model.template.renderer.value,
            "boundary": model.boundary,
        }

    def close(self) -> None:
        """End the counter's threads."""
        self._counter.close()

    async def _count(self, prompt: Prompt) -> CountedPrompt:
        counted = self._counter.count(MODEL, prompt, lambda _: None)
        return counted if isinstance(counted, CountedPrompt) else await counted


def _text_of(content: bytes) -> Prompt | str:
    try:
        return Prompt((content.decode(),))
    except UnicodeDecodeError as error:
        return f"wanted text in UTF-8, got {error.reason} at byte {error.start}"


def _chat_of(content: bytes) -> Prompt | str:
    """A request's body, or only its list of messages; read as `serve` reads it."""
    content = content.strip()
    if content[:1] == b"[":
        content = b'{"messages":' + content + b"}"
    if content[:1] == b"{":
        rest = content[1:].lstrip()
        # In front, so that the body's own model is the one that is read.
        content = b'{"model":"' + MODEL.encode() + (b'"' if rest[:1] == b"}" else b'",') + rest
    parsed = openai.parse(Endpoint.CHAT, content, ITEMS_MAX)
    return parsed.message if isinstance(parsed, openai.BodyFault) else parsed.prompt


def _without_model(fault: Fault) -> str:
    return f"{fault.path.rpartition('.')[2]}: wanted {fault.wanted}, got {fault.got}"
