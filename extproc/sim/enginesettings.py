"""What one engine is like."""

from dataclasses import dataclass, field

from extproc.sim.kv import BLOCK_SIZE_TOKENS, blocks_for
from extproc.sim.steptime import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine. Raises ValueError where it could not run: vLLM refuses the same at its start."""

    kv_blocks: int = 25_000
    """One of them is never used. The default is what the default model leaves on its GPUs, at 16 tokens a block."""
    block_size_tokens: int = BLOCK_SIZE_TOKENS
    """Large blocks are coarse and cheap to simulate; `kv_blocks` and the requests' `block_keys` mean blocks of it."""
    context_length_tokens: int = 131_072
    """Prompt and output of one sequence together; the KV cache must hold it."""
    sequences_max: int = 256
    """Sequences running at once."""
    step_tokens_max: int = 8192
    """Tokens computed in one step."""
    speed: float = 1.0
    """2 halves every step's time."""
    cost: StepCost = field(default_factory=StepCost)

    def __post_init__(self) -> None:
        if min(self.context_length_tokens, self.sequences_max, self.block_size_tokens) < 1:
            msg = "context_length_tokens, sequences_max and block_size_tokens must be over 0"
            raise ValueError(msg)
        if not 0 < self.speed < float("inf"):
            msg = "speed must be over 0"
            raise ValueError(msg)
        needed = blocks_for(self.context_length_tokens, self.block_size_tokens) + 1
        if self.kv_blocks < needed:
            msg = f"{self.context_length_tokens} tokens of context need {needed} kv_blocks, got {self.kv_blocks}"
            raise ValueError(msg)
        if self.step_tokens_max < self.sequences_max:
            msg = f"step_tokens_max ({self.step_tokens_max}) must not be less than sequences_max ({self.sequences_max})"
            raise ValueError(msg)
