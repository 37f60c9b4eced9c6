"""Which tokenizer and chat template count which model's prompts, loaded whole before the first request."""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Final

import structlog
from tokenizers import Tokenizer

from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.settings import Fault
from extproc.tokens import boundary, declared, encoders, folder, frame
from extproc.tokens.boundary import AddedTokens
from extproc.tokens.encoders import Encoder
from extproc.tokens.folder import ModelFiles, UnusableError
from extproc.tokens.template import ChatTemplate, Renderer, TemplateFault
from extproc.tokensettings import ModelTokenizer, TokenSettings, by_precedence

log = structlog.get_logger()

WARMING: Final = ("a",)
"""What is encoded to have encoded once."""

_FAMILIES: Final = {
    Renderer.HARMONY: ("<|channel|>", "<|constrain|>"),
    Renderer.MISTRAL: ("[INST]", "[AVAILABLE_TOOLS]"),
}
"""Models whose chats engines do not render by a template, by tokens that only their vocabularies have."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedModel:
    """What the prompts of a model are counted with; the same object for all models that share it."""

    name: str
    """The tokenizer's path or repository, for people."""
    encoder: Encoder
    special_tokens: int
    """Tokens that the tokenizer adds to each text where it is asked to."""
    seed: int
    """A number for the vocabulary: where it is equal, counts are."""
    frame: tuple[bytes, bytes] = (b"", b"")
    """The ids of those, as `kvchain` wants them, before the text and behind it."""
    beginning: str = ""
    """The token that the tokenizer puts in front of texts where it is asked to, as BOS; empty: it puts none."""
    template: ChatTemplate | None = None
    """`None`: it has none, as base models have none; its chats cannot be rendered."""
    boundary: str | None = None
    """A rendered chat may be cut in front of each of these: the counts of the pieces add up. `None`: it may not."""

    @property
    def remark(self) -> str | None:
        """Why chats of this model are not counted exactly, in a phrase for people; `None`: usually they are."""
        if self.template is None:
            return "no chat template: chats are counted by their texts, never exactly"
        rendered = self.template.render(boundary.PROBE, boundary.NOW)
        if isinstance(rendered, TemplateFault):
            return f"its chat template fails on a plain chat, so chats are estimated: {rendered.message}"
        if "Three." not in rendered.text:
            return "its chat template leaves out what is said"
        if self.template.renderer is not Renderer.TEMPLATE:
            return f"engines render its chats by {self.template.renderer.value}, so they are never exact here"
        if not rendered.text.startswith(self.beginning):
            return f"its chat template leaves out {self.beginning!r}, which llama.cpp puts there: chats are never exact"
        return None


@dataclass(frozen=True, slots=True)
class Absent:
    """A tokenizer that could not be loaded and was not required: its models' prompts are estimated."""

    reason: str


class Tokenizers:
    """Tokenizers by model name: the exact name first, then patterns, the longest first."""

    def __init__(self, by_pattern: Mapping[str, CountedModel | Absent], adapters: Collection[str] = ()) -> None:
        """`adapters` are the patterns that are counted as another model."""
        self._by_name = dict(by_pattern)
        self._adapters = frozenset(adapters)
        patterns = by_precedence(by_pattern)
        self._by_pattern = [(re.compile(translate(one)).match, one) for one in patterns]

    def __iter__(self) -> Iterator[CountedModel]:
        """Each one that is loaded, once."""
        yield from dict.fromkeys(one for one in self._by_name.values() if isinstance(one, CountedModel))

    @property
    def absent(self) -> dict[str, str]:
        """Why entries of the configuration have no tokenizer."""
        return {name: one.reason for name, one in self._by_name.items() if isinstance(one, Absent)}

    def warm(self) -> None:
        """Encode once with each, in the calling thread: a thread's first time takes 5 to 35 ms and 16 MiB for each."""
        for one in self:
            one.encoder.counts(WARMING, add_special_tokens=False)

    def of(self, model: str) -> CountedModel | None:
        """What counts the model's prompts; `None`: nothing is configured for it, or could be loaded."""
        entry = self.entry_of(model)
        return entry if isinstance(entry, CountedModel) else None

    def entry_of(self, model: str) -> CountedModel | Absent | None:
        """What became of the model's entry; `None`: it has none."""
        pattern = self._pattern_of(model)
        return None if pattern is None else self._by_name[pattern]

    def is_adapter(self, model: str) -> bool:
        """Whether it is counted as another model, as LoRA adapters are: engines keep their KV blocks apart."""
        return self._pattern_of(model) in self._adapters

    def _pattern_of(self, model: str) -> str | None:
        if model in self._by_name:
            return model
        if len(model) > MODEL_CHARS_MAX:  # no pattern is tried on it
            return None
        return next((pattern for matches, pattern in self._by_pattern if matches(model)), None)


def load(settings: TokenSettings) -> Tokenizers | list[Fault]:
    """Load every entry's tokenizer and template, shared ones once; or every fault. Takes 1 to 4 s for each.

    Nothing is downloaded, unless an entry says `hub`. What is not `required` and cannot be loaded is logged.
    """
    loader = _Loader(settings.template_fuel)
    entries: dict[str, CountedModel | Absent] = {}
    faults = []
    for pattern, entry in settings.models.items():
        if entry.tokenizer is None:
            continue
        try:
            entries[pattern] = loader.model(pattern, entry, entry.tokenizer)
        except _RefusedError as error:
            if entry.required:
                faults.append(Fault(f"tokens.models.{pattern}.{error.key}", error.why.wanted, error.why.got))
            else:
                log.warning("no tokenizer: prompts are estimated", model=pattern, reason=str(error.why))
                entries[pattern] = Absent(str(error.why))
    if faults:
        return faults
    tokenizers = Tokenizers(entries)
    for name, entry in settings.models.items():
        if entry.base is not None:
            base = tokenizers.entry_of(entry.base)
            assert base is not None, "the configuration is whole"
            entries[name] = base
    return Tokenizers(entries, [name for name, entry in settings.models.items() if entry.base is not None])


class _RefusedError(Exception):
    """An entry that cannot be used, with the key that says so."""

    def __init__(self, key: str, why: UnusableError) -> None:
        self.key = key
        self.why = why
        super().__init__(key, why)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """A tokenizer before it has a template."""

    name: str
    files: ModelFiles
    encoder: Encoder
    special_tokens: int
    frame: tuple[bytes, bytes]
    beginning: str
    seed: int
    added_tokens: AddedTokens
    renderer: Renderer


class _Loader:
    """Loads once what entries share: the same vocabulary, and the same vocabulary with the same template."""

    def __init__(self, template_fuel: int) -> None:
        self._template_fuel = template_fuel
        self._vocabularies: dict[tuple[str, str | None], _Vocabulary | UnusableError] = {}
        self._models: dict[tuple[int, Path | None], CountedModel] = {}

    def model(self, pattern: str, entry: ModelTokenizer, tokenizer: str) -> CountedModel:
        """An entry's. Raises `_RefusedError`."""
        began_s = time.perf_counter()
        vocabulary = self._vocabulary(tokenizer, entry.revision if entry.hub else None)
        key = vocabulary.seed, entry.chat_template
        if (model := self._models.get(key)) is None:
            model = self._models[key] = self._with_template(vocabulary, entry.chat_template)
            log.info(
                "tokenizer loaded",
                model=pattern,
                tokenizer=model.name,
                engine=model.encoder.engine,
                reason=model.encoder.reason,
                template="none" if model.template is None else str(entry.chat_template or "its own"),
                renderer=vocabulary.renderer.value,
                boundary=model.boundary,
                remark=model.remark,
                seconds=round(time.perf_counter() - began_s, 2),
            )
        return model

    def _vocabulary(self, name: str, revision: str | None) -> _Vocabulary:
        key = (name if revision is not None else _same(Path(name)), revision)
        if (known := self._vocabularies.get(key)) is None:
            try:
                known = _vocabulary(name, revision, seed=len(self._vocabularies))
            except UnusableError as error:
                known = error
            self._vocabularies[key] = known
        if isinstance(known, UnusableError):
            raise _RefusedError("tokenizer", known)
        return known

    def _with_template(self, vocabulary: _Vocabulary, own: Path | None) -> CountedModel:
        files = vocabulary.files
        key, path = ("tokenizer", files.tokenizer.parent) if own is None else ("chat_template", own)
        try:
            source = files.template if own is None else folder.read_template(own)
            tool_use = files.tool_template if own is None else None
            template = None if source is None else self._compiled(source, tool_use, vocabulary)
        except UnusableError as error:
            raise _RefusedError(key, error) from None
        except ValueError as error:
            raise _RefusedError(key, UnusableError("a chat template that compiles", path, error)) from None
        cut_at = None if template is None else boundary.find(vocabulary.added_tokens, template, vocabulary.encoder)
        return CountedModel(
            vocabulary.name,
            vocabulary.encoder,
            vocabulary.special_tokens,
            vocabulary.seed,
            vocabulary.frame,
            vocabulary.beginning,
            template,
            cut_at,
        )

    def _compiled(self, source: str, tool_use: str | None, vocabulary: _Vocabulary) -> ChatTemplate:
        named = vocabulary.files.declared.named
        return ChatTemplate(source, named, vocabulary.renderer, self._template_fuel, tool_use)


def _vocabulary(name: str, revision: str | None, seed: int) -> _Vocabulary:
    """A tokenizer from a path, or with a `revision` from a hub. Raises `UnusableError`."""
    path = Path(name)
    if revision is not None:
        from extproc.tokens import hub  # noqa: PLC0415 - an HTTP client that few need

        path = hub.fetch(name, revision)
    files = folder.read(path)
    raw = folder.read_tokenizer(files.tokenizer)
    try:
        tokenizer = Tokenizer.from_buffer(raw)
        declared.apply(files.declared, tokenizer)
    except BaseException as error:
        if encoders.is_failure(error):
            raise UnusableError("a tokenizer.json", files.tokenizer, error) from None
        raise
    added_tokens, renderer = boundary.added_tokens(tokenizer), _renderer(tokenizer)
    beginning, framing = frame.beginning(tokenizer), frame.ids(tokenizer)
    encoder = encoders.choose(tokenizer)
    bare, framed = (encoder.counts([""], add_special_tokens=special) for special in (False, True))
    if bare is None or framed is None:
        raise UnusableError("a tokenizer.json", files.tokenizer, "it cannot encode an empty text")
    return _Vocabulary(name, files, encoder, framed[0] - bare[0], framing, beginning, seed, added_tokens, renderer)


def _same(path: Path) -> str:
    """A name for the files at a path and beside it. Not through a file's own link: hubs' caches share what is equal."""
    if path.is_dir() or path.name == folder.TOKENIZER:
        return os.path.realpath(path if path.is_dir() else path.parent)
    return str(Path(os.path.realpath(path.parent), path.name))


def _renderer(tokenizer: Tokenizer) -> Renderer:
    for renderer, tokens in _FAMILIES.items():
        if all(tokenizer.token_to_id(token) is not None for token in tokens):
            return renderer
    return Renderer.TEMPLATE
