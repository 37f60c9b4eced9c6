"""Which adapter reads which kind of engine, and how a metrics page tells whose it is."""

import re

from extproc.agent.engines import llamacpp, lmdeploy, sglang, tgi, triton, trtllm, vllm
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.reading import MEASURED, EngineReading

ADAPTERS = {
    EngineKind.VLLM: vllm.ADAPTER,
    EngineKind.SGLANG: sglang.ADAPTER,
    EngineKind.TRTLLM: trtllm.ADAPTER,
    EngineKind.TRITON: triton.ADAPTER,
    EngineKind.TGI: tgi.ADAPTER,
    EngineKind.LLAMACPP: llamacpp.ADAPTER,
    EngineKind.LMDEPLOY: lmdeploy.ADAPTER,
}
"""Those that need no mapping."""

METRICS_PATHS = ("/metrics", "/prometheus/metrics")
"""Where the metrics of the kinds above are: an engine whose kind is not known is asked at each in turn."""

_KINDS = {
    "vllm:": EngineKind.VLLM,
    "sglang:": EngineKind.SGLANG,
    "trtllm_": EngineKind.TRTLLM,
    "nv_trt_llm_": EngineKind.TRITON,
    "tgi_": EngineKind.TGI,
    "llamacpp:": EngineKind.LLAMACPP,
    "lmdeploy:": EngineKind.LMDEPLOY,
}
_PREFIX = re.compile(rf"^({'|'.join(map(re.escape, _KINDS))})", re.MULTILINE)


def kind_of(metrics: str) -> EngineKind | None:
    """Whose page this is, by the first metric that belongs to a known kind; `None`: nobody's."""
    found = _PREFIX.search(metrics)
    return None if found is None else _KINDS[found[1]]


def misread(metrics: str, kind: EngineKind, reading: EngineReading) -> str | None:
    """Why a page says nothing, where it is of another kind than it is read as; `None`: it says something, or is not."""
    if kind not in ADAPTERS or any(getattr(reading, name) is not None for name in MEASURED):
        return None
    found = _PREFIX.search(metrics)
    if found is None or _KINDS[found[1]] is kind:
        return None
    return f"the page has {found[1]} metrics, as {_KINDS[found[1]].value} has: engine_kind is {kind.value}"
