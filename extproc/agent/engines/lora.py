"""LoRA adapters: models of their own by name, of which an engine computes only so many at a time."""

import math
from collections.abc import Sequence

from extproc.agent.engines.exposition import Page
from extproc.agent.engines.reading import NOT_TOLD
from extproc.core.snapshot import ADAPTERS_MAX, MODELS_MAX, ServedModel

LORA = "vllm:lora_requests_info"
"""vLLM's sample of it; engines without adapters have none, nor has one before its first request."""

_SLOTS = "max_lora"
_RUNNING = "running_lora_adapters"


def slots_free_of(page: Page) -> int | str:
    """How many adapters fit beside those that vLLM computes right now, or why it is not known.

    Each combination of adapters leaves a series behind, whose value is the Unix time at which it was last true: the
    latest one counts. Adapters are listed by name, with commas between.
    """
    samples = [sample for sample in page.get(LORA, ()) if math.isfinite(sample.value)]
    if not samples:
        return NOT_TOLD if LORA not in page else f"{LORA} has no time"
    labels = max(samples, key=lambda sample: sample.value).labels
    slots = labels.get(_SLOTS, "")
    if not (slots.isascii() and slots.isdigit() and len(slots) <= 18 and int(slots) <= ADAPTERS_MAX):
        return f"{LORA} has no {_SLOTS} in 0..{ADAPTERS_MAX}"
    if _RUNNING not in labels:
        return f"{LORA} has no {_RUNNING}"
    running = {name.strip() for name in labels[_RUNNING].split(",")} - {""}
    return max(0, int(slots) - len(running))


def with_loadable(
    listed: tuple[ServedModel, ...], loadable: Sequence[str]
) -> tuple[tuple[ServedModel, ...], str | None]:
    """What an engine lists, and the adapters that it may load besides; and why some of these were left out.

    An adapter has its base model's context length; which model that is nobody tells, so only if all have the same.
    """
    if not listed:
        return listed, None  # an engine without its base model loads nothing
    names = {model.name for model in listed}
    lengths = {model.context_length_tokens for model in listed if model.context_length_tokens is not None}
    length = lengths.pop() if len(lengths) == 1 else None
    more = [ServedModel(name, context_length_tokens=length, loaded=False) for name in loadable if name not in names]
    room = MODELS_MAX - len(listed)
    fault = None if len(more) <= room else f"adapters_loadable and the models listed are over {MODELS_MAX}"
    return (*listed, *more[:room]), fault
