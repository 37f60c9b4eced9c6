"""Counting a prompt's tokens: exactly where that can be done in time, by the size of its text elsewhere.

| what is counted | how | exact |
|---|---|---|
| text of a completion or embedding | the model's tokenizer, special tokens added as it adds them | yes |
| chat messages | their texts by the tokenizer, and `message_tokens` for each message's control tokens | no |
| token ids | as given | yes |
| text of a model without a tokenizer | bytes / `bytes_per_token` | no |
| image, audio and file parts | not at all | no |
"""

import asyncio
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from tokenizers import Tokenizer

from extproc.config import TokenSettings
from extproc.core.request import Prompt, TokenCount
from extproc.ops.metrics import Estimated, Metrics
from extproc.tokens.loading import Tokenizers

log = structlog.get_logger()

TEXT_BYTES = 200
"""What one more text weighs beside its own bytes while it waits: its objects here and in the library."""


class TokenCounter:
    """Counts on the event loop (`count_now`) or in a few threads (`count`). Neither raises: failures are estimated.

    `tokenizers` lets other threads run while it encodes, so threads keep the loop free. What they hold is
    bounded by `waiting_bytes_max`: over it a prompt is estimated at once, because a request that waits for its
    count waits longer than any choice of node could save it.
    """

    def __init__(self, settings: TokenSettings, tokenizers: Tokenizers, metrics: Metrics) -> None:
        self.inline_bytes_max = settings.inline_bytes_max
        self._settings = settings
        self._tokenizers = tokenizers
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="tokens")
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._failed = False

    @property
    def waiting_bytes(self) -> int:
        """Text being counted in threads or waiting for one."""
        return self._waiting_bytes

    def count_now(self, model: str, prompt: Prompt) -> TokenCount:
        """Count here and now: about 0.3 ms per KiB where there is a tokenizer. For short prompts."""
        began_s = time.perf_counter()
        tokenizer = self._tokenizers.of(model) if prompt.texts else None
        counted = None if tokenizer is None else _encoded(tokenizer, prompt)
        return self._answer(prompt, tokenizer, counted, began_s)

    async def count(self, model: str, prompt: Prompt) -> TokenCount:
        """Count in a thread, or estimate where too much text is waiting already."""
        began_s = time.perf_counter()
        tokenizer = self._tokenizers.of(model) if prompt.texts else None
        if tokenizer is None:
            return self._answer(prompt, None, None, began_s)
        size = _bytes(prompt.texts) + TEXT_BYTES * len(prompt.texts)
        with self._lock:
            if self._waiting_bytes + size > self._settings.waiting_bytes_max:
                self._metrics.tokens_estimated(Estimated.BUSY)
                return self._total(prompt, None)
            self._waiting_bytes += size

        def release(_: Future[int | None]) -> None:
            with self._lock:
                self._waiting_bytes -= size

        # Released when the thread is through, not when the caller is: a client that hangs up stops no encoding.
        future = self._threads.submit(_encoded, tokenizer, prompt)
        future.add_done_callback(release)
        return self._answer(prompt, tokenizer, await asyncio.wrap_future(future), began_s)

    def close(self) -> None:
        """Drop what waits and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, prompt: Prompt, tokenizer: Tokenizer | None, counted: int | None, began_s: float) -> TokenCount:
        if prompt.texts and tokenizer is None:
            self._metrics.tokens_estimated(Estimated.NO_TOKENIZER)
        elif prompt.texts and counted is None:
            self._metrics.tokens_estimated(Estimated.FAILED)
            if not self._failed:
                self._failed = True
                log.warning("a prompt could not be encoded and was estimated; told once", texts=len(prompt.texts))
        total = self._total(prompt, counted)
        if counted is not None:
            self._metrics.tokens(time.perf_counter() - began_s, total.exact)
        return total

    def _total(self, prompt: Prompt, counted: int | None) -> TokenCount:
        exact = not prompt.messages and not prompt.media_parts and (counted is not None or not prompt.texts)
        if counted is None:
            counted = math.ceil(_bytes(prompt.texts) / self._settings.bytes_per_token)
        return TokenCount(counted + prompt.token_ids + prompt.messages * self._settings.message_tokens, exact)


def _encoded(tokenizer: Tokenizer, prompt: Prompt) -> int | None:
    """Tokens of all texts; `None` where the library cannot encode them, as with lone surrogates."""
    try:
        # Only a prompt without messages goes to the model as it stands, with the tokenizer's own special tokens.
        encodings = tokenizer.encode_batch_fast(list(prompt.texts), add_special_tokens=not prompt.messages)
    except BaseException as error:
        # A panic in the library's Rust code is no `Exception`, and it must not end the handler.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            return None
        raise
    return sum(len(encoding) for encoding in encodings)


def _bytes(texts: Sequence[str]) -> int:
    """Size of the texts in UTF-8."""
    return sum(len(one) if one.isascii() else len(one.encode(errors="surrogatepass")) for one in texts)
