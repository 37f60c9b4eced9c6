"""Counting files as `serve` counts prompts: how a tokenizer and its template are checked before they are trusted."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from extproc.core.request import Endpoint
from extproc.core.settings import Fault
from extproc.gateway import openai
from extproc.ops.tokenmetrics import Estimated
from extproc.prompt import Prompt
from extproc.sizes import MIB
from extproc.tokens.estimator import Estimator
from extproc.tokens.loading import CountedModel, Tokenizers, load
from extproc.tokens.reader import Reader
from extproc.tokensettings import ModelTokenizer, TokenSettings

MODEL: Final = "counted"
ITEMS_MAX: Final = 50_000_000
FILE_BYTES_MAX: Final = 64 * MIB
_WHY: Final = {
    Estimated.TEMPLATE: "its template fails on it",
    Estimated.FAILED: "the text cannot be encoded",
}


class FileCount(Struct, frozen=True):
    """One file, counted; or why it could not be."""

    file: str
    bytes: int
    tokens: int | None = None
    exact: bool = False
    """Whether vLLM and llama.cpp count the same."""
    how: str = ""
    """What counted, as `template, fastokens`."""
    seconds: float = 0.0
    """Reading the JSON of a chat included, as `serve` does."""
    fault: str | None = None


class Counting:
    """One tokenizer, and what `serve` counts with. Raises `ValueError` with all that is wrong with its files."""

    def __init__(self, tokenizer: Path, chat_template: Path | None) -> None:
        entry = ModelTokenizer(tokenizer=str(tokenizer), chat_template=chat_template)
        # No counts of one file for the next: what each costs is to be seen.
        settings = TokenSettings(models={MODEL: entry}, cache_bytes_max=0)
        loaded = load(settings)
        if not isinstance(loaded, Tokenizers):
            raise ValueError("; ".join(_without_model(fault) for fault in loaded))
        model = loaded.of(MODEL)
        assert model is not None, "required, so loaded or a fault"
        self.model: CountedModel = model
        self._template = "the model's own" if chat_template is None else str(chat_template)
        self._reader = Reader(settings, datetime.now)
        self._estimator = Estimator(settings)
        loaded.warm()

    def count(self, name: str, content: bytes, *, chat: bool) -> FileCount:
        """Count a file as a completion's prompt, or as a chat's body."""
        if len(content) > FILE_BYTES_MAX:
            return FileCount(name, len(content), fault=f"wanted at most {FILE_BYTES_MAX // MIB} MiB, got more")
        began_s = time.perf_counter()
        prompt = _chat_of(content) if chat else _text_of(content)
        if isinstance(prompt, str):
            return FileCount(name, len(content), fault=prompt)
        reading = self._reader.read(self.model, prompt)
        encoded = reading if isinstance(reading, Estimated) else self._reader.encode(self.model, reading)
        if isinstance(encoded, Estimated):
            return FileCount(name, len(content), fault=f"serve would estimate it: {_WHY[encoded]}")
        tokens = encoded.text_tokens + self._estimator.beside(prompt)
        seconds = time.perf_counter() - began_s
        return FileCount(name, len(content), tokens, encoded.reading.exact, self._how(prompt), seconds)

    def _how(self, prompt: Prompt) -> str:
        engine = self.model.encoder.engine
        if prompt.chat is None:
            return engine
        return f"its texts alone, {engine}" if self.model.template is None else f"template, {engine}"

    @property
    def shown(self) -> dict[str, str | None]:
        """What counts, and why; for people and for JSON."""
        model = self.model
        return {
            "tokenizer": model.name,
            "engine": f"{model.encoder.engine}: {model.encoder.reason}",
            "template": None if model.template is None else self._template,
            "boundary": model.boundary,
            "remark": model.remark,
        }


def _text_of(content: bytes) -> Prompt | str:
    try:
        return Prompt((content.decode(),))
    except UnicodeDecodeError as error:
        return f"wanted text in UTF-8, got {error.reason} at byte {error.start}"


def _chat_of(content: bytes) -> Prompt | str:
    """A request's body, or only its list of messages; read as `serve` reads it."""
    # Python's JSON reader, and so `serve`, takes byte order marks and UTF-16.
    content = content.decode(json.detect_encoding(content), "surrogatepass").strip().encode("utf-8", "surrogatepass")
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
