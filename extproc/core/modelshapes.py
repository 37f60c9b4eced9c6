"""How large the KV cache of known models is: their shapes, from their published `config.json`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct


class ModelShape(Struct, frozen=True, kw_only=True):
    """What a model keeps of each token. Every layer keeps keys and values of `kv_heads` heads, or one latent vector."""

    layers: int
    """`num_hidden_layers`, the windowed ones among them."""
    kv_heads: int = 0
    """`num_key_value_heads`; not used where there is a latent vector."""
    head_size: int = 128
    """`head_dim`."""
    latent_size: int = 0
    """Multi-head latent attention: `kv_lora_rank` + `qk_rope_head_dim`; it stands for keys and values. 0: none."""
    window_layers: int = 0
    """Layers with sliding-window attention: they keep the last `window_tokens` of a sequence."""
    window_tokens: int = 0
    """`sliding_window`."""
    number_bytes: float = 2.0
    """Of one number: 2 in 16 bit, 1 where the engine keeps its cache in FP8."""


def _grouped(layers: int, kv_heads: int) -> ModelShape:
    return ModelShape(layers=layers, kv_heads=kv_heads)


def _gpt_oss(layers: int) -> ModelShape:
    """Every other layer has a window."""
    return ModelShape(layers=layers, kv_heads=8, head_size=64, window_layers=layers // 2, window_tokens=128)


_LLAMA_8B: Final = _grouped(32, 8)
_LLAMA_70B: Final = _grouped(80, 8)
_LATENT: Final = ModelShape(layers=61, latent_size=512 + 64)
_QWEN_7B: Final = _grouped(28, 4)
_QWEN_14B: Final = _grouped(48, 8)
_QWEN_32B: Final = _grouped(64, 8)
_QWEN_72B: Final = _grouped(80, 8)

MODEL_SHAPES: Final[Mapping[str, ModelShape | None]] = MappingProxyType(
    {
        "llama-3-8b": _LLAMA_8B,
        "llama-3.1-8b": _LLAMA_8B,
        "llama-3-70b": _LLAMA_70B,
        "llama-3.1-70b": _LLAMA_70B,
        "llama-3.3-70b": _LLAMA_70B,
        "llama-3.1-405b": _grouped(126, 8),
        "qwen2-7b": _QWEN_7B,
        "qwen2-72b": _QWEN_72B,
        "qwen2.5-7b": _QWEN_7B,
        "qwen2.5-14b": _QWEN_14B,
        "qwen2.5-32b": _QWEN_32B,
        "qwen2.5-72b": _QWEN_72B,
        "qwen3-8b": _grouped(36, 8),
        "qwen3-32b": _QWEN_32B,
        "qwen3-30b-a3b": _grouped(48, 4),
        "qwen3-235b-a22b": _grouped(94, 4),
        "qwen3-480b-a35b": _grouped(62, 8),
        "mistral-7b": _grouped(32, 8),
        "mistral-small-24b": _grouped(40, 8),
        "mixtral-8x7b": _grouped(32, 8),
        "deepseek-v3": _LATENT,
        "deepseek-v3.1": _LATENT,
        "deepseek-r1": _LATENT,
        "deepseek-r1-distill": None,  # not of DeepSeek's shape: that of the model it was made from
        "deepseek-r1-distill-llama-8b": _LLAMA_8B,
        "deepseek-r1-distill-llama-70b": _LLAMA_70B,
        "deepseek-r1-distill-qwen-7b": _QWEN_7B,
        "deepseek-r1-distill-qwen-14b": _QWEN_14B,
        "deepseek-r1-distill-qwen-32b": _QWEN_32B,
        "kimi-k2": _LATENT,
        "glm-4.5": _grouped(92, 8),
        "glm-4.5-air": _grouped(46, 8),
        "gpt-oss-20b": _gpt_oss(24),
        "gpt-oss-120b": _gpt_oss(36),
        "phi-4": _grouped(40, 10),
        "phi-4-mini": None,  # a model of its own
        "phi-4-multimodal": None,
        "gemma-3-27b": ModelShape(layers=62, kv_heads=16, window_layers=52, window_tokens=1024),
    }
)
"""By name, without who published it; what follows a name after a dash says how it was trained or packed."""

_SAME_SHAPE: Final = frozenset({"coder", "vl", "math"})
"""Words in names of models that keep the shape of the one without."""


def shape_of(model: str) -> ModelShape | None:
    """The shape of the model with this name, however it is spelt: `meta-llama/Llama-3.3-70B-Instruct`.

    `None`: not known. The longest known name at its beginning counts.
    """
    words = model.rsplit("/", 1)[-1].lower().replace("_", "-").removeprefix("meta-").split("-")
    words = [word for word in words if word not in _SAME_SHAPE]
    for count in range(len(words), 0, -1):
        name = "-".join(words[:count])
        if name in MODEL_SHAPES:
            return MODEL_SHAPES[name]
    return None
