"""Which adapter reads which kind of engine, and how a metrics page tells whose it is."""

import re

from extproc.agent.engines import llamacpp, vllm
from extproc.agent.engines.enginekind import EngineKind

ADAPTERS = {
    EngineKind.VLLM: vllm.ADAPTER,
    EngineKind.LLAMACPP: llamacpp.ADAPTER,
}
"""Those that need no mapping."""

METRICS_PATHS = ("/metrics",)
"""Where the metrics of the kinds above are: an engine whose kind is not known is asked at each in turn."""

_KINDS = {
    "vllm:": EngineKind.VLLM,
    "llamacpp:": EngineKind.LLAMACPP,
}
_PREFIX = re.compile(rf"^({'|'.join(map(re.escape, _KINDS))})", re.MULTILINE)


def kind_of(metrics: str) -> EngineKind | None:
    """Whose page this is, by the first metric that belongs to a known kind; `None`: nobody's."""
    found = _PREFIX.search(metrics)
    return None if found is None else _KINDS[found[1]]
