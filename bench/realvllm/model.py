"""A tiny Qwen3 for vLLM: a folder with a configuration and a real tokenizer; vLLM makes up the weights itself."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

MODEL: Final = "m"
"""As clients write it."""
CONTEXT_TOKENS: Final = 4096
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json")
_SHAPE: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": CONTEXT_TOKENS,
    "tie_word_embeddings": True,
    "eos_token_id": 151_645,
    "torch_dtype": "bfloat16",
}


def write_model(folder: Path, tokenizer: Path) -> None:
    """Write the model's folder. Raises FileNotFoundError where the tokenizer's folder has not all of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_SHAPE))
    for name in TOKENIZER_FILES:
        shutil.copy(tokenizer / name, folder / name)
