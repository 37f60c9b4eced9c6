"""What `extproc serve` can be told of tokens: which tokenizer counts which prompts, and what counting may take."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from extproc.settingtypes import SETTINGS, FilePath, Pattern, path
from extproc.sizes import GIB, KIB, MIB, Size


class ModelTokenizer(BaseModel):
    """How the prompts of some models are counted: by a tokenizer, or as those of another model."""

    model_config = SETTINGS

    hub: bool = False
    """True: the files come from a hub of models (Hugging Face's, or HF_ENDPOINT). Nothing is downloaded without it."""
    tokenizer: str | None = Field(None, min_length=1, max_length=4096)
    """A `tokenizer.json`, or a folder with one, its `tokenizer_config.json` and its chat template; a relative path
    starts at the configuration's folder. With `hub`: a repository's name."""
    base: Pattern | None = None
    """Instead of a tokenizer: counted as this model, as a LoRA adapter is."""
    chat_template: FilePath | None = None
    """A Jinja file in place of the folder's own template."""
    required: bool = True
    """False: a tokenizer that cannot be loaded is logged, and prompts are estimated. True: then there is no start."""
    revision: str = Field("main", min_length=1, max_length=256)
    """Of the hub's repository: a branch, a tag or, best, a commit."""

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _from_the_folder(cls, tokenizer: object, info: ValidationInfo) -> object:
        return tokenizer if tokenizer is None or info.data.get("hub") else str(path(tokenizer, info))

    @model_validator(mode="after")
    def _one_way(self) -> "ModelTokenizer":
        if (self.tokenizer is None) == (self.base is None):
            msg = "either a tokenizer or a base"
        elif self.base is not None and {"chat_template", "hub", "revision"} & self.model_fields_set:
            msg = "no chat_template, hub or revision beside a base, which has its own"
        elif not self.hub and "revision" in self.model_fields_set:
            msg = "a revision only with hub"
        else:
            return self
        raise ValueError(msg)


def by_precedence(patterns: Iterable[str]) -> list[str]:
    """Patterns of model names in the order in which they are tried, after exact names: the longest first."""
    return sorted(patterns, key=lambda pattern: (-len(pattern), pattern))


class TokenSettings(BaseModel):
    """How prompts are counted."""

    model_config = SETTINGS

    models: dict[Pattern, ModelTokenizer] = Field({}, max_length=1000)
    """By model name, or by a pattern with `*`, `?` and `[…]`. The exact name wins, then the longest pattern."""
    token_budget_ms: float = Field(20.0, ge=0, le=10_000)
    """How long a request waits for its count; then it is routed by the estimate, and the count is put right later."""
    bytes_per_token: float = Field(4.0, ge=0.1, le=1000)
    """The estimate until exact counts have taught a better one: bytes of text per token."""
    message_tokens: int = Field(4, ge=0, le=1000)
    """Added for each chat message that no template renders: the control tokens around it."""
    image_tokens: int = Field(1000, ge=0, le=1_000_000)
    """What an image part costs."""
    audio_tokens: int = Field(500, ge=0, le=1_000_000)
    """What an audio part costs."""
    file_tokens: int = Field(2000, ge=0, le=1_000_000)
    """What a file, a video or a part of unknown kind costs."""
    inline_bytes_max: Size = Field(8 * KIB, ge=0, le=64 * KIB)
    """Text up to this is encoded on the event loop, longer text in a thread."""
    waiting_bytes_max: Size = Field(16 * MIB, ge=64 * KIB, le=GIB)
    """Text being encoded or waiting for it; over it prompts are estimated. `tokenizers` makes text weigh eightfold."""
    threads: int = Field(2, ge=1, le=64)
    """Threads that encode."""
    cache_bytes_max: Size = Field(64 * MIB, ge=0, le=GIB)
    """Memory for the counts of chats' earlier messages, so that only what is new is encoded; 0 keeps none."""
    kv_blocks: bool = False
    """Whether the token ids of exactly counted prompts are made blocks, by which it is known what of them stands in the
    cache of a node that tells its KV blocks. A prompt takes 0.15 µs more for each block of 16 tokens, and the cache of
    earlier messages 4 bytes for each token."""
    chat_messages_max: int = Field(2000, ge=1, le=100_000)
    """Chats of more messages are not rendered but estimated: a template takes 2 µs for each, on the event loop."""
    chat_bytes_max: Size = Field(4 * MIB, ge=KIB, le=GIB)
    """Chats of more text are not rendered either: no other Python runs meanwhile, 10 ms as a rule, 90 for odd text."""
    template_fuel: int = Field(100_000, ge=1000, le=10_000_000)
    """Steps that a chat template may take, beside 100 for each message and one for every 8 bytes of text; a chat that
    needs more is estimated."""

    @field_validator("models")
    @classmethod
    def _bases_are_tokenizers(cls, models: dict[str, ModelTokenizer]) -> dict[str, ModelTokenizer]:
        patterns = by_precedence(models)
        for name, entry in models.items():
            if entry.base is None:
                continue
            match = next((one for one in patterns if fnmatchcase(entry.base, one)), None)
            base = models.get(entry.base) or models.get(match or "")
            if base is None or base.base is not None:
                msg = f"for {name[:60]!r} a base that an entry with a tokenizer matches, not {entry.base[:60]!r}"
                raise ValueError(msg)
        return models
