"""Counting a prompt's tokens as its engine will: exactly where that is possible, at once where it takes no time.

| what is counted | how | exact |
|---|---|---|
| text of a completion or embedding | the model's tokenizer, special tokens as it adds them | yes |
| a chat | rendered by the model's template, then the tokenizer | where engines render it alike |
| token ids | as given | yes |
| image, audio and file parts | a cost for each, from the configuration | no |
| text without a tokenizer, or not in time | bytes, at the rate that exact counts have taught | no |

    count ──► read: render, cut, look up what is known ──► encode what is new ──► add up, remember, learn
              └ on the event loop, or in a thread           └ likewise, by its length

A thread has `token_budget_ms`: then the caller gets the estimate, and the count when it is there.
"""

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct

from extproc.config import TokenSettings
from extproc.core.request import CountSource, TokenCount
from extproc.ops.metrics import Estimated, Metrics
from extproc.prompt import CountedPrompt, Prompt, texts_of
from extproc.tokens.blocks import blocks_of
from extproc.tokens.calibration import Calibration
from extproc.tokens.loading import CountedModel, Tokenizers
from extproc.tokens.pieces import Cut, PieceCounts, cut
from extproc.tokens.template import Rendered

log = structlog.get_logger()

READ_INLINE_BYTES_MAX: Final = 64 * 1024
"""Bodies up to this are rendered, cut and looked up on the event loop: at most some 0.3 ms."""
TEXT_BYTES: Final = 200
"""What one more text weighs beside its own bytes while it waits: its objects here and in the library."""
WEIGHTS: Final = {"fastokens": 1, "tokenizers": 8}
"""How much more memory the libraries take than each other for the same text."""
MODELS_LEARNED_MAX: Final = 256
"""Models whose estimate is kept right; the configuration names as many at most that matter."""

LEARNED_ALL: Final = 64
"""So many counts of a model teach the estimate, and then every `LEARNED_EVERY`th: it costs a fifth of a short count."""
LEARNED_EVERY: Final = 8
NICENESS: Final = 10
"""Of the threads, so that the event loop does not wait for a core. At 19 a thread may hold Python's lock while other
processes leave it no core: measured, the loop then stood for half a second."""

Late = Callable[[TokenCount], None]


class _Reading(Struct, frozen=True):
    """A prompt's texts, ready to be encoded."""

    cut: Cut
    more_tokens: int
    """Special tokens that the tokenizer adds, and what no template has rendered."""
    exact: bool


class _Asked(Struct, frozen=True):
    """What a caller wants to know."""

    model: str
    tokenizer: CountedModel
    prompt: Prompt
    blocks: tuple[int, ...]
    began_s: float


class TokenCounter:
    """Counts on the event loop or in a few threads. Never raises: failures are estimated, counted and logged once.

    The libraries let other threads run while they encode, so threads keep the loop free. What they hold is bounded by
    `waiting_bytes_max`; over it prompts are estimated at once. To make one takes up to 0.1 s for each vocabulary.
    """

    def __init__(
        self,
        settings: TokenSettings,
        tokenizers: Tokenizers,
        metrics: Metrics,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._settings = settings
        self._tokenizers = tokenizers
        self._metrics = metrics
        self._now = now
        self._known = PieceCounts(settings.cache_bytes_max)
        self._secret = secrets.randbits(64)
        self._calibration = Calibration(settings.bytes_per_token, MODELS_LEARNED_MAX)
        self._threads = ThreadPoolExecutor(
            settings.threads, thread_name_prefix="tokens", initializer=_prepare_thread, initargs=(tokenizers,)
        )
        self._waiting_bytes = 0
        self._waiting_lock = threading.Lock()
        self._learned: dict[str, int] = {}
        self._told: set[Estimated] = set()
        tokenizers.warm()
        self._started = threading.Barrier(settings.threads)
        for _ in range(settings.threads):
            self._threads.submit(self._started.wait)  # so that each task starts a thread, and no request has to
        metrics.watch_tokens(lambda: self._waiting_bytes, lambda: self._known.bytes_held)

    @property
    def waiting_bytes(self) -> int:
        """Text in threads or waiting for one, as it weighs."""
        return self._waiting_bytes

    def count(
        self, model: str, prompt: Prompt, body_bytes: int, late: Late
    ) -> CountedPrompt | Awaitable[CountedPrompt]:
        """Count a prompt that came in a body of so many bytes; an awaitable where that needs a thread.

        Where the budget runs out, the estimate is returned and `late` is called with the count, on the event loop.
        """
        began_s = time.perf_counter()
        blocks: tuple[int, ...] = ()
        try:
            blocks = blocks_of(model, prompt, self._secret)
            if prompt.chat is None and not prompt.texts:
                return self._given(prompt, blocks)
            tokenizer = self._tokenizers.of(model)
            if tokenizer is None:
                return self._estimated(model, prompt, blocks, Estimated.NO_TOKENIZER)
            asked = _Asked(tokenizer.name, tokenizer, prompt, blocks, began_s)
            if body_bytes > READ_INLINE_BYTES_MAX:
                return self._in_thread(asked, None, body_bytes, late)
            reading = self._read(tokenizer, prompt)
            if isinstance(reading, Estimated):
                return self._estimated(asked.model, prompt, blocks, reading)
            if reading.cut.new_bytes <= self._settings.inline_bytes_max:
                return self._answer(asked, self._encode(tokenizer, reading))
            return self._in_thread(asked, reading, reading.cut.new_bytes, late)
        except Exception:
            log.exception("error of ours; a prompt was estimated")
            self._metrics.our_error("tokens")
            tokens = int(body_bytes / self._settings.bytes_per_token)
            return CountedPrompt(TokenCount(tokens, exact=False, source=CountSource.ESTIMATED), blocks)

    def close(self) -> None:
        """Drop what waits and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._started.abort()

    def _read(self, tokenizer: CountedModel, prompt: Prompt) -> _Reading | Estimated:
        """Turn a prompt into pieces of text, and look up what is known of them. For any thread."""
        texts: Sequence[str] = prompt.texts
        specials = prompt.add_special_tokens
        more_tokens, exact = 0, not prompt.media
        if (chat := prompt.chat) is not None:
            specials = chat.add_special_tokens
            if tokenizer.template is None:
                texts = tuple(texts_of(prompt))
                more_tokens, exact = len(chat.messages) * self._settings.message_tokens, False
            elif len(chat.messages) > self._settings.chat_messages_max:
                return Estimated.TEMPLATE
            else:
                rendered = tokenizer.template.render(chat, self._now())
                if not isinstance(rendered, Rendered):
                    self._tell(Estimated.TEMPLATE, tokenizer=tokenizer.name, fault=rendered.message)
                    return Estimated.TEMPLATE
                texts = (rendered.text,)
                # llama.cpp sees to it that texts begin as the tokenizer has them begin, whatever the template does.
                exact = exact and rendered.exact and rendered.text.startswith(tokenizer.beginning)
        if specials:
            more_tokens += len(texts) * tokenizer.special_tokens
        if tokenizer.special_tokens and specials == (prompt.chat is not None):
            exact = False  # not as usual: llama.cpp does not listen to it
        pieces = [piece for text in texts for piece in cut(text, tokenizer.boundary)]
        try:
            found = self._known.look_up(pieces, self._secret ^ tokenizer.seed)
        except UnicodeEncodeError:
            return Estimated.FAILED
        return _Reading(found, more_tokens, exact)

    @staticmethod
    def _encode(tokenizer: CountedModel, reading: _Reading) -> tuple[_Reading, list[int]] | Estimated:
        """Count what is new. For any thread."""
        counts = tokenizer.encoder.counts(reading.cut.pieces, add_special_tokens=False)
        return Estimated.FAILED if counts is None else (reading, counts)

    def _work(self, asked: _Asked, reading: _Reading | None) -> tuple[_Reading, list[int]] | Estimated:
        """The whole of it, or the rest, in a thread."""
        try:
            read = self._read(asked.tokenizer, asked.prompt) if reading is None else reading
            return read if isinstance(read, Estimated) else self._encode(asked.tokenizer, read)
        except Exception:
            log.exception("error of ours; a prompt was estimated")
            self._metrics.our_error("tokens")
            return Estimated.FAILED

    async def _in_thread(self, asked: _Asked, reading: _Reading | None, size: int, late: Late) -> CountedPrompt:
        texts = len(asked.prompt.texts) if reading is None else len(reading.cut.pieces)
        weight = (size + TEXT_BYTES * texts) * WEIGHTS[asked.tokenizer.encoder.engine]
        with self._waiting_lock:
            if self._waiting_bytes + weight > self._settings.waiting_bytes_max:
                return self._estimated(asked.model, asked.prompt, asked.blocks, Estimated.BUSY)
            self._waiting_bytes += weight

        def release(_: object) -> None:
            with self._waiting_lock:
                self._waiting_bytes -= weight

        try:
            future = self._threads.submit(self._work, asked, reading)
        except RuntimeError:  # closed
            release(None)
            return self._estimated(asked.model, asked.prompt, asked.blocks, Estimated.FAILED)
        # Released when the thread is through, not when the caller is: a client that hangs up stops no encoding.
        future.add_done_callback(release)
        encoded = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait((encoded,), timeout=self._settings.token_budget_ms / 1000)
        except asyncio.CancelledError:
            encoded.cancel()  # what has not begun need not begin any more
            raise
        if done:
            return self._answer(asked, _result(encoded))
        encoded.add_done_callback(lambda encoded: late(self._answer(asked, _result(encoded)).count))
        return self._estimated(asked.model, asked.prompt, asked.blocks, Estimated.LATE)

    def _answer(self, asked: _Asked, encoded: tuple[_Reading, list[int]] | Estimated) -> CountedPrompt:
        """Add up, remember, learn. On the event loop."""
        if isinstance(encoded, Estimated):
            return self._estimated(asked.model, asked.prompt, asked.blocks, encoded)
        reading, counts = encoded
        self._known.keep(reading.cut.keys, counts)
        tokens = reading.cut.known_tokens + sum(counts) + reading.more_tokens
        source = CountSource.CACHED if reading.cut.known_pieces else CountSource.COUNTED
        self._metrics.counted(source, time.perf_counter() - asked.began_s)
        self._learn(asked.model, asked.prompt, tokens)
        return CountedPrompt(TokenCount(tokens + self._beside(asked.prompt), reading.exact, source), asked.blocks)

    def _learn(self, model: str, prompt: Prompt, tokens: int) -> None:
        """Teach the estimate by a count; of a model's later counts by some."""
        nth = self._learned[model] = self._learned.get(model, 0) + 1
        if nth <= LEARNED_ALL or nth % LEARNED_EVERY == 0:
            error = self._calibration.learn(model, list(texts_of(prompt)), tokens - self._around(prompt))
            self._metrics.estimate_error(error)

    def _given(self, prompt: Prompt, blocks: tuple[int, ...]) -> CountedPrompt:
        self._metrics.counted(CountSource.COUNTED, 0.0)
        return CountedPrompt(TokenCount(self._beside(prompt), exact=not prompt.media), blocks)

    def _estimated(self, model: str, prompt: Prompt, blocks: tuple[int, ...], reason: Estimated) -> CountedPrompt:
        self._metrics.tokens_estimated(reason)
        tokens = self._calibration.estimate(model, list(texts_of(prompt))) + self._around(prompt) + self._beside(prompt)
        return CountedPrompt(TokenCount(tokens, exact=False, source=CountSource.ESTIMATED), blocks)

    def _around(self, prompt: Prompt) -> int:
        """What a template is expected to put around messages."""
        return 0 if prompt.chat is None else len(prompt.chat.messages) * self._settings.message_tokens

    def _beside(self, prompt: Prompt) -> int:
        """Tokens that stand in no text."""
        media, settings = prompt.media, self._settings
        return (
            prompt.token_ids
            + media.images * settings.image_tokens
            + media.audios * settings.audio_tokens
            + media.files * settings.file_tokens
        )

    def _tell(self, reason: Estimated, **what: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            log.warning("a prompt could not be counted and was estimated; told once", why=reason.value, **what)


def _prepare_thread(tokenizers: Tokenizers) -> None:
    """Let the event loop, and what else runs here, go first; and do once what encoding needs in each thread."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # Linux has it for each thread
    tokenizers.warm()


def _result(
    encoded: "asyncio.Future[tuple[_Reading, list[int]] | Estimated]",
) -> tuple[_Reading, list[int]] | Estimated:
    """What a thread found; cancelled are those that still wait when the counter is closed."""
    return Estimated.FAILED if encoded.cancelled() else encoded.result()
