"""The kinds of engines that agents can read."""

import enum


class EngineKind(enum.Enum):
    """Whose pages an engine's are."""

    AUTO = "auto"
    """Whichever its metrics look like."""
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    """TensorRT-LLM's own server, `trtllm-serve`."""
    TRITON = "triton"
    """Triton with the TensorRT-LLM backend; its metrics have a port of their own."""
    TGI = "tgi"
    LLAMACPP = "llamacpp"
    LMDEPLOY = "lmdeploy"
    GENERIC = "generic"
    """Any other, whose metrics a mapping names."""
