"""What a decision costs with everything on, for fleets of several sizes.

    .venv/bin/python -m bench.decide [strategy]

Prompts have 100 blocks of text, and one node in four has the beginning of each to some depth; every node has requests
of ours that have not begun, and has reported since some of them were sent; one node is out for failing. `decide` stands
alone; `match` looks up a prompt's beginning; `route` does both and counts; `begin` and `finish` count a first token and
an end; `settle` puts a new prompt into the index, after the reply; `observe` takes a snapshot.
Medians of several rounds, CPU time of this thread, in microseconds.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.core.balancer import Balancer
from extproc.core.cost import DEFAULT_STRATEGY
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, TokenCount
from extproc.core.router import decide
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported, NodeState, ServedModel, Snapshot

FLEETS = (1, 10, 100, 1000)
AIMS = {10: 60.0, 100: 400.0, 1000: 3000.0}
"""Of `decide`."""
ROUNDS = 7
NOW_S = 1000.0
SETTINGS = BalancerSettings()
PROMPTS = 50
"""Different prompts, which come again and again."""
PROMPT_BLOCKS = 100
PROMPT_TOKENS = 6000
OPEN_A_NODE = 8


def report(number: int, sequence: int) -> NodeReported:
    """What a node tells: ready, and loaded differently from the others."""
    return NodeReported(
        Snapshot(
            node_id=f"node-{number}",
            host=f"10.{number // 250}.0.{number % 250 + 1}:8000",
            boot_id="boot",
            sequence=sequence,
            sample_age_s=0.01,
            state=NodeState.READY,
            models=(ServedModel("llama", context_length_tokens=131_072),),
            gpu_utilization=0.9,
            kv_usage=number * 7 % 80 / 100,
            kv_block_size_tokens=16,
            kv_blocks_total=100_000,
            kv_blocks_available=100_000 - number * 70 % 8000,
            pending_prefills=number % 3 + OPEN_A_NODE // 2,
            active_decodes=3,
            requests_running=4 + OPEN_A_NODE // 2,
            requests_waiting=number % 3,
            decode_ms_per_token=20 + number % 7 + sequence % 5 / 10,
            prefill_tokens_total=sequence * 4000,
            prefill_seconds_total=sequence * 0.5,
            first_tokens_total=sequence * 4,
            prefix_hits_total=sequence * 4000,
            round_trip_s=0.001,
        )
    )


def chat(
    request_id: str, number: int = 0, tokens: int = PROMPT_TOKENS, blocks: int = PROMPT_BLOCKS
) -> InferenceRequest:
    """A chat; those of one number begin alike."""
    chain = tuple(hash((number, block)) for block in range(blocks))
    return InferenceRequest(request_id, "llama", Endpoint.CHAT, TokenCount(tokens, exact=True), None, chain)


def fleet(nodes: int, policy: RoutingPolicy) -> Balancer:
    """A settled balancer in the midst of its work."""
    made = Balancer(SETTINGS, NOW_S - 60)
    for sequence in (1, 2):
        for number in range(nodes):
            made.observe(report(number, sequence), NOW_S - 3 + sequence)
        for number in range(nodes * OPEN_A_NODE // 2):
            made.route(chat(f"open-{sequence}-{number}", 0, 800, 0), policy, NOW_S - 3 + sequence)
    for number in range(0, nodes, 4):
        for prompt in range(PROMPTS):
            depth = 1 + (number * 13 + prompt * 7) % PROMPT_BLOCKS
            made._fleet.caches.computed(report(number, 2).snapshot, chat("", prompt).prompt_blocks[:depth])
    if nodes > 1:
        made.answered(Answered("failed", Ending.UNREACHABLE, report(1, 0).snapshot.host), NOW_S)
    return made


def measured(nodes: int, policy: RoutingPolicy) -> dict[str, float]:
    """Each part's cost of one call, in microseconds."""
    balancer = fleet(nodes, policy)
    calls = max(50, 2000 // nodes)
    views = balancer.views()
    asked = [chat(f"r{number}", number) for number in range(PROMPTS)]
    known = [balancer._chooser.known(one, policy) for one in asked]
    requests: list[InferenceRequest] = []
    now_s = NOW_S
    reports: list[NodeReported] = []
    steps: dict[str, Callable[[int], object]] = {
        "decide": lambda number: decide(
            asked[number % PROMPTS], views, policy, SETTINGS, known[number % PROMPTS], now_s
        ),
        "match": lambda number: balancer._fleet.caches.match(asked[number % PROMPTS].prompt_blocks),
        "route": lambda number: balancer.route(requests[number], policy, now_s),
        "begin": lambda number: balancer.first_token(requests[number].request_id, now_s),
        "finish": lambda number: balancer.finish(requests[number].request_id, now_s),
        "settle": lambda number: put_in(balancer, requests[number]),
        "observe": lambda number: balancer.observe(reports[number], now_s + 0.1),
    }
    rounds: dict[str, list[float]] = {what: [] for what in steps}
    for turn in range(ROUNDS):
        now_s = NOW_S + turn * 0.2
        requests[:] = [chat(f"r{turn}.{number}", number % PROMPTS) for number in range(calls)]
        reports[:] = [report(number % nodes, 3 + turn * calls + number) for number in range(calls)]
        for what, call in steps.items():
            if what == "settle":
                requests[:] = [chat("", PROMPTS + turn * calls + number) for number in range(calls)]
            rounds[what].append(microseconds(call, calls))
    return {what: statistics.median(times) for what, times in rounds.items()}


def put_in(balancer: Balancer, request: InferenceRequest) -> None:
    """Work that `route` leaves for after the reply."""
    balancer._fleet.caches.sent(report(0, 2).snapshot, request.prompt_blocks)
    balancer.settle()


def microseconds(call: Callable[[int], object], calls: int) -> float:
    """CPU time of one call. Garbage is collected between rounds, not in them."""
    gc.collect()
    gc.disable()
    begun = time.thread_time()
    for number in range(calls):
        call(number)
    passed = time.thread_time() - begun
    gc.enable()
    return passed / calls * 1e6


def main() -> None:
    """Print the table."""
    policy = RoutingPolicy(strategy=sys.argv[1] if len(sys.argv) > 1 else DEFAULT_STRATEGY)
    table = Table(
        title=f"{policy.strategy}, µs · {machine()}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    first: dict[str, float] = {}
    for nodes in FLEETS:
        found = measured(nodes, policy)
        if not first:
            first = found
            for column in ("nodes", "decide", "aim", "ratio", *(what for what in found if what != "decide")):
                table.add_column(column, justify="right")
        aim = f"{AIMS[nodes]:.0f}" if nodes in AIMS else ""
        rest = (f"{found[what]:.1f}" for what in found if what != "decide")
        table.add_row(str(nodes), f"{found['decide']:.1f}", aim, f"{found['decide'] / first['decide']:.1f}", *rest)
    Console().print(table)


if __name__ == "__main__":
    main()
