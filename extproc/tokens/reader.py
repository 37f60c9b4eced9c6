"""From a prompt to pieces of text that can be encoded: rendered, cut, and what is known of it looked up."""

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog
from msgspec import Struct

from extproc.ops.tokenmetrics import Estimated
from extproc.prompt import Chat, Prompt, texts_of
from extproc.tokens.loading import CountedModel
from extproc.tokens.pieces import Cut, Known, KnownPieces, cut, tokens_in
from extproc.tokens.template import TemplateFault
from extproc.tokensettings import TokenSettings

log = structlog.get_logger()


class Reading(Struct, frozen=True):
    """A prompt's text, ready to be encoded."""

    cut: Cut
    more_tokens: int
    """Special tokens that the tokenizer adds, and what no template has rendered."""
    exact: bool
    framed: bool = False
    """Whether the tokenizer adds its special tokens, to a single text."""
    single: bool = True
    """Whether it is one text: of several no ids are told."""


class Encoded(Struct, frozen=True):
    """A reading, and the tokens of its new pieces."""

    reading: Reading
    counts: list[int]
    ids: bytes = b""
    """Of the whole prompt, where they are wanted and known exactly."""

    @property
    def mostly_known(self) -> bool:
        """Whether more than half of the tokens were counted for earlier requests."""
        return 2 * self.reading.cut.known_tokens > self.text_tokens

    @property
    def text_tokens(self) -> int:
        """Of all text."""
        return self.reading.cut.known_tokens + sum(self.counts) + self.reading.more_tokens


class Reader:
    """Reads prompts and encodes them. Any thread may use it; it raises for faults of ours only."""

    def __init__(self, settings: TokenSettings, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._now = now
        self._known = KnownPieces(settings.cache_bytes_max)
        self._secret = secrets.randbits(64)
        self._told: set[str] = set()

    @property
    def cache_bytes(self) -> int:
        """Memory of the counts that are kept."""
        return self._known.bytes_held

    def read(self, model: CountedModel, prompt: Prompt) -> Reading | Estimated:
        """Turn a prompt into pieces, and look up what is known of them; or why that cannot be done."""
        texts: Sequence[str] = prompt.texts
        more_tokens, exact, specials = 0, prompt.as_usual and not prompt.media, prompt.add_special_tokens
        if (chat := prompt.chat) is not None:
            specials = chat.add_special_tokens
            if model.template is None:
                texts = tuple(texts_of(prompt))
                more_tokens, exact = len(chat.messages) * self._settings.message_tokens, False
            else:
                rendered = model.template.render(chat, self._now())
                if isinstance(rendered, TemplateFault):
                    self._tell(model, chat, rendered)
                    return Estimated.TEMPLATE
                texts = (rendered.text,)
                # llama.cpp sees to it that texts begin as the tokenizer has them begin, whatever the template does.
                exact = exact and rendered.exact and rendered.text.startswith(model.beginning)
        if specials:
            more_tokens += len(texts) * model.special_tokens
        if model.special_tokens and specials == (chat is not None):
            exact = False  # not as usual: llama.cpp does not listen to it
        pieces = [piece for text in texts for piece in cut(text, model.boundary)]
        try:
            found = self._known.look_up(pieces, self._secret ^ model.seed)
        except UnicodeEncodeError:
            return Estimated.FAILED
        return Reading(found, more_tokens, exact, specials, len(texts) == 1)

    def encode(self, model: CountedModel, reading: Reading) -> Encoded | Estimated:
        """Count what is new, and keep it."""
        known: Sequence[Known] | None
        if self._settings.kv_blocks:
            known = model.encoder.ids(reading.cut.pieces)
        else:
            known = model.encoder.counts(reading.cut.pieces, add_special_tokens=False)
        if known is None:
            return Estimated.FAILED
        self._known.keep(reading.cut.keys, known)
        ids = _ids_of(model, reading, known) if self._settings.kv_blocks and reading.exact and reading.single else b""
        return Encoded(reading, [tokens_in(one) for one in known], ids)

    def _tell(self, model: CountedModel, chat: Chat, fault: TemplateFault) -> None:
        # Without a message any template fails, and that is the client's fault.
        if chat.messages and model.name not in self._told:
            self._told.add(model.name)
            log.warning(
                "a template failed and the prompt was estimated; told once", tokenizer=model.name, fault=fault.message
            )


def _ids_of(model: CountedModel, reading: Reading, new: Sequence[Known]) -> bytes:
    """The prompt's ids, in their order."""
    encoded = iter(new)
    pieces = [next(encoded) if one is None else one for one in reading.cut.found]
    before, behind = model.frame if reading.framed else (b"", b"")
    return b"".join((before, *(piece for piece in pieces if isinstance(piece, bytes)), behind))
