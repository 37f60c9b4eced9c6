"""Which adapter reads which kind of engine, and how a metrics page tells whose it is."""

import re

from extproc.agent.engines import llamacpp, lmdeploy, sglang, tgi, triton, trtllm, vllm
from extproc.agent.engines.enginekind import EngineKind

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
