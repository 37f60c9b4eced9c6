"""Rows of a comparison, made up."""

from typing import Any

from extproc.sim.compared import Compared, Row


def row(strategy: str, load: float = 0.6, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "strategy": strategy,
        "load": load,
        "rate_per_s": 6.0,
        "ngood": 0.5,
        "ngood_spread": 0.1,
        "ttft_p50_s": 0.1,
        "ttft_p90_s": 1.0,
        "ttft_p99_s": 2.0,
        "tpot_p99_s": 0.05,
        "slowdown": 2.0,
        "preemptions": 1.0,
        "prefix_hits": 0.25,
        "refused": 0.0,
        "failed": 0.0,
        "per_node": {"a": 0.25, "b": 0.75},
        "ngood_vs_round_robin": 1.0,
        "ttft_p90_vs_round_robin": 1.0,
        "slowdown_vs_round_robin": 1.0,
    }
    return Row(**(values | changes))


def compared(*rows: Row, **changes: Any) -> Compared:
    """What a comparison found, with two seeds."""
    values: dict[str, Any] = {"rows": rows, "seeds": 2, "capacity_per_s": 10.0, "cut": 0}
    return Compared(**(values | changes))
