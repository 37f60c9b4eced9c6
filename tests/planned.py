"""Options of an `extproc plan`, and what they mean."""

from typing import Any

from extproc import planning
from extproc.planning import Planning

OPTIONS: dict[str, Any] = {
    "trace": "generated:conv",
    "requests": 100,
    "for_": None,
    "rate_factor": 1.0,
    "node": None,
    "shape": {},
    "kv_memory": None,
    "model": None,
    "kv_fp8": False,
    "ttft": "2s",
    "tpot": None,
    "share": 0.95,
    "nodes_max": 64,
    "seeds": 1,
    "window": None,
    "lead_in": "30s",
    "strategy": "least-added-delay",
    "policy": None,
    "profile": None,
    "snapshot_interval": "1s",
    "delay": "1ms",
}


def understood(**changes: Any) -> Planning:
    found = planning.understood(**(OPTIONS | changes))
    assert isinstance(found, Planning), found
    return found


def faults_of(**changes: Any) -> list[str]:
    found = planning.understood(**(OPTIONS | changes))
    return [str(one) for one in found] if isinstance(found, list) else []
