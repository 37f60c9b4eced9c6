"""What of an unknown engine's metrics is which field of a report."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, PlainValidator, model_validator

from extproc.agent.engines import expressions
from extproc.agent.engines.expressions import Expression

_SETTINGS = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _expression(value: object) -> Expression:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        msg = "an expression, as a text or a number"
        raise ValueError(msg)
    return expressions.parse(str(value))


Told = Annotated[Any, PlainValidator(_expression)]


class MeanOf(BaseModel):
    """A mean as two counters: what came to them since the look before, the one by the other."""

    model_config = _SETTINGS

    seconds: Told
    """Seconds spent."""
    count: Told
    """How many times."""


class GenericConfig(BaseModel):
    """An expression for each field that the engine tells, see `expressions`; `None`: it does not tell it."""

    model_config = _SETTINGS

    requests_running: Told | None = None
    """Requests in the batch."""
    requests_waiting: Told | None = None
    """Requests in the engine's own queue."""
    active_decodes: Told | None = None
    """Requests past their first token."""
    pending_prefills: Told | None = None
    """Requests without one, those in the queue too. `None`: the others, if `active_decodes` is told."""
    kv_usage: Told | None = None
    """Share 0..1 of the KV cache in use."""
    kv_blocks_total: Told | None = None
    kv_blocks_available: Told | None = None
    """`None`: as many as `kv_usage` leaves of `kv_blocks_total`."""
    kv_block_size_tokens: Told | None = None
    prefill_latency_ms: MeanOf | None = None
    decode_ms_per_token: MeanOf | None = None
    prefill_tokens_total: Told | None = None
    """Prompt tokens computed, not found in the cache, by requests past their first token; since the engine's start."""
    prefill_seconds_total: Told | None = None
    """Σ over these requests of the time from arrival to first token."""
    first_tokens_total: Told | None = None
    """How many these requests are."""
    prefix_queries_total: Told | None = None
    """Tokens looked up in the prefix cache, since the engine's start."""
    prefix_hits_total: Told | None = None
    """Tokens found there."""
    adapter_slots_free: Told | None = None
    """LoRA adapters that could be loaded without throwing another out."""

    @model_validator(mode="after")
    def _tells_something(self) -> Self:
        if not self.expressions and not self.means:
            msg = "at least one field of a report"
            raise ValueError(msg)
        return self

    @property
    def expressions(self) -> Mapping[str, Expression]:
        """By field."""
        told = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: one for name, one in told.items() if one is not None and not isinstance(one, MeanOf)}

    @property
    def means(self) -> Mapping[str, MeanOf]:
        """By field."""
        told = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: one for name, one in told.items() if isinstance(one, MeanOf)}
