"""What an emulated engine can be told."""

import re
from dataclasses import dataclass, field

from extproc.sim.engine import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorSettings:
    """One emulated engine. Raises ValueError, in words for its user, where it could not run."""

    listen: str = "127.0.0.1:0"
    """`address:port`; port 0 lets the system choose."""
    name: str = "engine-1"
    """Value of the header `x-engine`."""
    model: str = "emulated"
    speed: float = 1.0
    """1: Llama-3.3-70B on two H100, see `steptime.py`; 2 is twice as fast."""
    kv_blocks: int = 4000
    """Far fewer than such an engine has, so that a small load fills them."""
    context_length_tokens: int = 32_768
    sequences_max: int = 48
    """Sequences in one batch."""
    step_tokens_max: int = 8192
    output_tokens_max: int = 4096
    """No answer is longer, whatever a request allows."""
    requests_open_max: int = 1024
    """Sequences waiting and running; more are answered 503 (vLLM's `max_num_queued_reqs`)."""
    body_bytes_max: int = 64 * 1024 * 1024
    engine: EngineSettings = field(init=False)

    def __post_init__(self) -> None:
        address, _, port = self.listen.rpartition(":")
        if not address or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
            msg = f"listen: wanted address:port, got {self.listen!r}"
            raise ValueError(msg)
        if not re.fullmatch(r"[!-~]{1,64}", self.name):
            msg = f"name: wanted 1 to 64 printable ASCII characters, got {self.name!r}"
            raise ValueError(msg)
        if not self.model or min(self.output_tokens_max, self.requests_open_max, self.body_bytes_max) < 1:
            msg = "model, output_tokens_max, requests_open_max and body_bytes_max must not be empty or 0"
            raise ValueError(msg)
        engine = EngineSettings(
            kv_blocks=self.kv_blocks,
            context_length_tokens=self.context_length_tokens,
            sequences_max=self.sequences_max,
            step_tokens_max=self.step_tokens_max,
            speed=self.speed,
        )
        object.__setattr__(self, "engine", engine)
