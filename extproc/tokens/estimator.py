"""Tokens of prompts whose text is not counted: by what counted ones have taught, and by what the configuration says."""

from typing import Final

from extproc.prompt import Prompt, texts_of
from extproc.tokens.calibration import Calibration
from extproc.tokensettings import TokenSettings

MODELS_MAX: Final = 256
"""Models whose rates are kept."""
LEARNED_ALL: Final = 64
"""So many counts of a model teach its rates, and then every `LEARNED_EVERY`th: it costs a fifth of a short count."""
LEARNED_EVERY: Final = 8


class Estimator:
    """Estimates by learned rates; what stands in no text costs what the configuration says. For the event loop only."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._calibration = Calibration(settings.bytes_per_token, MODELS_MAX)
        self._counts: dict[str, int] = {}

    def estimate(self, model: str, prompt: Prompt) -> int:
        """Tokens of all of a prompt. Leaves no trace of the model."""
        return self._calibration.estimate(model, list(texts_of(prompt))) + self.around(prompt) + self.beside(prompt)

    def by_size(self, size_bytes: int, prompt: Prompt) -> int:
        """Tokens of a prompt whose texts are too many to be looked at, or must not be."""
        return int(size_bytes / self._settings.bytes_per_token) + self.beside(prompt)

    def learn(self, model: str, prompt: Prompt, text_tokens: int) -> float | None:
        """Take the count of a prompt's text. How wrong the estimate was, relative to it; `None` where not looked at."""
        nth = self._counts[model] = self._counts.get(model, 0) + 1
        if nth > LEARNED_ALL and nth % LEARNED_EVERY:
            return None
        return self._calibration.learn(model, list(texts_of(prompt)), text_tokens - self.around(prompt))

    def around(self, prompt: Prompt) -> int:
        """What a template is expected to put around the messages."""
        return 0 if prompt.chat is None else len(prompt.chat.messages) * self._settings.message_tokens

    def beside(self, prompt: Prompt) -> int:
        """Token ids as they are, what images, audio and files cost, and what of the body is not shown, by its size."""
        media, settings = prompt.media, self._settings
        unread_tokens = 0 if prompt.unread_bytes is None else int(prompt.unread_bytes / settings.bytes_per_token)
        return (
            prompt.token_ids
            + unread_tokens
            + media.images * settings.image_tokens
            + media.audios * settings.audio_tokens
            + media.files * settings.file_tokens
        )
