"""What a decision costs: `decide` alone, and `route` and `finish` with the ledger, for fleets of several sizes.

    .venv/bin/python -m bench.decide

Medians of several rounds, CPU time of this thread. The ratio is to the smallest fleet of the same run.
"""

import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, Phase, TokenCount
from extproc.core.router import decide
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported, NodeState, ServedModel, Snapshot

FLEETS = (1, 10, 100, 1000)
ROUNDS = 7
NOW_S = 1000.0
POLICY = RoutingPolicy()
SETTINGS = BalancerSettings()


def fleet(nodes: int) -> Balancer:
    """A settled balancer whose nodes are ready and differently loaded."""
    made = Balancer(SETTINGS, NOW_S - 60)
    for number in range(nodes):
        snapshot = Snapshot(
            node_id=f"node-{number}",
            host=f"10.{number // 250}.0.{number % 250 + 1}:8000",
            boot_id="boot",
            sequence=1,
            sample_age_s=0.0,
            state=NodeState.READY,
            models=(ServedModel("llama", context_length_tokens=8192),),
            gpu_utilization=0.9,
            kv_usage=number * 7 % 80 / 100,
            kv_block_size_tokens=16,
            kv_blocks_total=1000,
            kv_blocks_available=1000 - number * 70 % 800,
            pending_prefills=number % 3,
            active_decodes=3,
            requests_running=4,
            requests_waiting=number % 3,
        )
        made.observe(NodeReported(snapshot), NOW_S)
    return made


def microseconds(call: Callable[[int], object], calls: int) -> float:
    """Median over the rounds of the CPU time of one call."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        for number in range(calls):
            call(number)
        rounds.append((time.thread_time() - begun) / calls * 1e6)
    return statistics.median(rounds)


def request(number: int) -> InferenceRequest:
    """A chat request of 500 tokens."""
    return InferenceRequest(f"r{number}", "llama", Endpoint.CHAT, TokenCount(500, exact=True))


def main() -> None:
    """Print the table."""
    table = Table(title=f"load-score · {machine()}", title_justify="left")
    for column in ("nodes", "decide µs", "ratio", "route + finish µs", "ratio"):
        table.add_column(column, justify="right")
    first: tuple[float, float] | None = None
    for nodes in FLEETS:
        balancer = fleet(nodes)
        calls = max(20, 4000 // nodes)
        views = balancer.views()
        asked = request(0)

        def choose(_number: int, asked: InferenceRequest = asked, views: object = views) -> object:
            return decide(asked, Phase.DECODE, views, POLICY, SETTINGS, NOW_S)  # type: ignore[arg-type]

        def route(number: int, balancer: Balancer = balancer) -> None:
            balancer.route(request(number), POLICY, NOW_S)
            balancer.finish(f"r{number}")

        alone, whole = microseconds(choose, calls), microseconds(route, calls)
        first = first or (alone, whole)
        table.add_row(str(nodes), f"{alone:.1f}", f"{alone / first[0]:.1f}", f"{whole:.1f}", f"{whole / first[1]:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
