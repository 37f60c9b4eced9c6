"""Counting a prompt's tokens as its engine will: exactly where that is possible, at once where it takes no time.

| what is counted | how | exact |
|---|---|---|
| text of a completion or embedding | the model's tokenizer, special tokens as it adds them | yes |
| a chat | rendered by the model's template, then the tokenizer | where engines render it alike |
| token ids | as given | yes |
| image, audio and file parts | a cost for each, from the configuration | no |
| text without a tokenizer, or not in time | bytes, at the rate that exact counts have taught | no |

    count ──► read: render, cut, look up what is known ──► encode what is new ──► add up, learn
              └ on the event loop, or in a thread           └ likewise, by its length

A thread has `token_budget_ms`: then the caller gets the estimate, and the count when it is there.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from extproc.core.request import CountSource, TokenCount
from extproc.kvchain import BLOCK_BYTES, BLOCK_TOKENS, TOKEN_BLOCKS_MAX, id_bytes, numbers_of, root_of
from extproc.ops.metrics import Metrics
from extproc.ops.tokenmetrics import Estimated
from extproc.prompt import CountedPrompt, Prompt, items_of, json_items_of, let_go, text_size
from extproc.tokens.blocks import blocks_of
from extproc.tokens.estimator import Estimator
from extproc.tokens.loading import CountedModel, Tokenizers
from extproc.tokens.reader import Encoded, Reader
from extproc.tokens.workers import Workers
from extproc.tokensettings import TokenSettings

log = structlog.get_logger()

READ_INLINE_BYTES_MAX: Final = 64 * 1024
"""Prompts up to this, and of so many texts, messages and parts, are rendered, cut and looked up on the event loop."""
READ_INLINE_ITEMS_MAX: Final = 200
ITEMS_MAX: Final = 8192
"""Texts, messages and parts of a prompt that is counted at all; OpenAI takes 2048 texts at once."""
JSON_ITEMS_MAX: Final = 20_000
"""Values in a chat's tools, calls and documents: with more it is not rendered."""
TEXT_BYTES: Final = 200
"""What one more text weighs beside its own bytes while it waits: its objects here and in the library."""
WEIGHTS: Final = {"fastokens": 1, "tokenizers": 8}
"""How much more memory one library takes than the other for the same text."""

Late = Callable[[TokenCount], None]


class _Asked(Struct, frozen=True):
    """What a caller wants to know."""

    model: str
    name: str
    """Of the tokenizer, or of a model without one: whose rates the estimate goes by."""
    prompt: Prompt
    size: int
    """Of its text, about: see `text_size`."""
    items: int
    blocks: tuple[int, ...]
    began_s: float

    @property
    def is_short(self) -> bool:
        """Whether going through it on the event loop takes no time."""
        return self.size <= READ_INLINE_BYTES_MAX and self.items <= READ_INLINE_ITEMS_MAX


class TokenCounter:
    """Counts on the event loop or in a few threads. Never raises: failures are estimated and counted.

    The libraries let other threads run while they encode, so threads keep the loop free. What they hold is bounded by
    `waiting_bytes_max`; over it prompts are estimated at once. To make one takes up to 0.1 s for each vocabulary.
    `prefix_seed` (64 bits) keys the prompts' blocks: the same for all who compare them. `None`: by chance.
    """

    def __init__(
        self,
        settings: TokenSettings,
        tokenizers: Tokenizers,
        metrics: Metrics,
        now: Callable[[], datetime] = datetime.now,
        prefix_seed: int | None = None,
    ) -> None:
        self._settings = settings
        self._tokenizers = tokenizers
        self._metrics = metrics
        self._reader = Reader(settings, now)
        self._estimator = Estimator(settings)
        self._prefix_seed = secrets.randbits(64) if prefix_seed is None else prefix_seed
        tokenizers.warm()
        self._workers = Workers(settings.threads, settings.waiting_bytes_max, tokenizers.warm)
        metrics.tokens.watch(lambda: self._workers.waiting_bytes, lambda: self._reader.cache_bytes)

    @property
    def waiting_bytes(self) -> int:
        """Text in threads or waiting for one, as it weighs."""
        return self._workers.waiting_bytes

    def count(
        self, model: str, prompt: Prompt, body_bytes: int, late: Late
    ) -> CountedPrompt | Awaitable[CountedPrompt]:
        """Count a prompt that came in a body of so many bytes; an awaitable where that needs a thread.

        Where the budget runs out, the estimate is returned and `late` is called with the count, on the event loop.
        """
        items = items_of(prompt)
        size = text_size(prompt) if items <= ITEMS_MAX else body_bytes
        asked = _Asked(model, model, prompt, size, items, (), time.perf_counter())
        try:
            asked = replace(asked, blocks=blocks_of(model, prompt, self._prefix_seed))
            if prompt.unread_bytes is not None:
                return self._estimated(asked, Estimated.UNREAD)
            if prompt.chat is None and not prompt.texts:
                return self._given(asked)
            tokenizer = self._tokenizers.of(model)
            if tokenizer is None:
                return self._estimated(asked, Estimated.NO_TOKENIZER)
            asked = replace(asked, name=tokenizer.name)
            if self._too_long(asked):
                return self._estimated(asked, Estimated.TOO_LONG)
            if not asked.is_short:
                weight = asked.size + TEXT_BYTES * asked.items
                asked = replace(asked, prompt=let_go(prompt))  # what waits is weighed by its text: no images
                work = partial(self._read_and_encode, tokenizer, asked.prompt)
                return self._in_thread(asked, tokenizer, work, weight, late)
            reading = self._reader.read(tokenizer, prompt)
            if isinstance(reading, Estimated):
                return self._estimated(asked, reading)
            if reading.cut.new_bytes <= self._settings.inline_bytes_max:
                return self._answer(asked, self._reader.encode(tokenizer, reading))
            weight = reading.cut.new_bytes + TEXT_BYTES * len(reading.cut.pieces)
            asked = replace(asked, prompt=let_go(prompt))
            return self._in_thread(asked, tokenizer, partial(self._reader.encode, tokenizer, reading), weight, late)
        except Exception:  # noqa: BLE001
            return self._failed(asked)

    def _too_long(self, asked: _Asked) -> bool:
        chat, settings = asked.prompt.chat, self._settings
        return asked.items > ITEMS_MAX or (
            chat is not None
            and (
                len(chat.messages) > settings.chat_messages_max
                or asked.size > settings.chat_bytes_max
                or json_items_of(chat) > JSON_ITEMS_MAX
            )
        )

    def close(self) -> None:
        """Drop what waits and let the threads end."""
        self._workers.close()

    def _read_and_encode(self, tokenizer: CountedModel, prompt: Prompt) -> Encoded | Estimated:
        reading = self._reader.read(tokenizer, prompt)
        return reading if isinstance(reading, Estimated) else self._reader.encode(tokenizer, reading)

    async def _in_thread(
        self,
        asked: _Asked,
        tokenizer: CountedModel,
        work: Callable[[], Encoded | Estimated],
        weight: int,
        late: Late,
    ) -> CountedPrompt:
        try:
            weight *= WEIGHTS[tokenizer.encoder.engine]
            encoded = self._workers.submit(work, weight)
            if encoded is None:
                never = weight > self._workers.bytes_max
                return self._estimated(asked, Estimated.TOO_LONG if never else Estimated.BUSY)
            try:
                done, _ = await asyncio.wait((encoded,), timeout=self._settings.token_budget_ms / 1000)
            except asyncio.CancelledError:
                encoded.cancel()
                raise
            if done:
                return self._answer(asked, _result(encoded))
            encoded.add_done_callback(partial(self._came_late, asked, late))
            return self._estimated(asked, Estimated.LATE)
        except Exception:  # noqa: BLE001
            return self._failed(asked)

    def _came_late(self, asked: _Asked, late: Late, encoded: "asyncio.Future[Encoded | Estimated]") -> None:
        try:
            if not isinstance(found := _result(encoded), Estimated):
                late(self._answer(asked, found).count)
        except Exception:  # noqa: BLE001
            self._failed(asked)

    def _answer(self, asked: _Asked, encoded: Encoded | Estimated) -> CountedPrompt:
        """Add up and learn."""
        if isinstance(encoded, Estimated):
            return self._estimated(asked, encoded)
        reading, tokens = encoded.reading, encoded.text_tokens
        source = CountSource.CACHED if encoded.mostly_known else CountSource.COUNTED
        self._metrics.tokens.counted(source, time.perf_counter() - asked.began_s)
        # Long prompts teach no more than short ones, and their text would have to be gone through.
        if asked.is_short:
            error = self._estimator.learn(asked.name, asked.prompt, tokens)
            if error is not None:
                self._metrics.tokens.estimate_error(error)
        count = TokenCount(tokens + self._estimator.beside(asked.prompt), reading.exact, source)
        return CountedPrompt(count, asked.blocks, self._token_blocks(asked, encoded.ids))

    def _given(self, asked: _Asked) -> CountedPrompt:
        """Only token ids and media, or a prompt of a shape that we do not know."""
        prompt = asked.prompt
        self._metrics.tokens.counted(CountSource.COUNTED, 0.0)
        exact = prompt.as_usual and prompt.token_ids > 0 and not prompt.media
        count = TokenCount(self._estimator.beside(prompt), exact)
        ids = _given_ids(prompt) if exact and self._settings.kv_blocks else b""
        return CountedPrompt(count, asked.blocks, self._token_blocks(asked, ids))

    def _token_blocks(self, asked: _Asked, ids: bytes) -> tuple[int, ...]:
        """`ids` empty: they are not wanted, or not known."""
        if not ids:
            return ()
        adapter = asked.model if self._tokenizers.is_adapter(asked.model) else ""
        return numbers_of(ids[: TOKEN_BLOCKS_MAX * BLOCK_BYTES], root_of(adapter))

    def _estimated(self, asked: _Asked, reason: Estimated) -> CountedPrompt:
        self._metrics.tokens.estimated(reason)
        if asked.items > ITEMS_MAX:
            tokens = self._estimator.by_size(asked.size, asked.prompt)
        else:
            tokens = self._estimator.estimate(asked.name, asked.prompt)
        return CountedPrompt(TokenCount(tokens, exact=False, source=CountSource.ESTIMATED), asked.blocks)

    def _failed(self, asked: _Asked) -> CountedPrompt:
        """A fault of ours must not hold the request; nor can the estimate be trusted to work."""
        log.exception("error of ours; a prompt was estimated")
        self._metrics.our_error("tokens")
        self._metrics.tokens.estimated(Estimated.FAILED)
        tokens = self._estimator.by_size(asked.size, asked.prompt)
        return CountedPrompt(TokenCount(tokens, exact=False, source=CountSource.ESTIMATED), asked.blocks)


def _result(encoded: "asyncio.Future[Encoded | Estimated]") -> Encoded | Estimated:
    """What a thread found; cancelled are those that still wait when the counter is closed."""
    return Estimated.FAILED if encoded.cancelled() else encoded.result()


def _given_ids(prompt: Prompt) -> bytes:
    """As many as make blocks; none where one of them is no id of any model."""
    try:
        return id_bytes(prompt.ids[: TOKEN_BLOCKS_MAX * BLOCK_TOKENS])
    except OverflowError:
        return b""
