"""What it costs to hear other routers, and to tell them, for fleets of several sizes.

    .venv/bin/python -m bench.peerwords

The fleet is that of bench/decide.py, and so are `route`, `begin`, `finish` and `observe`; each other router has as much
at every node as we have. `word heard` takes a word about all nodes, and shows them anew; `told` makes one; `journal`
makes the line of one. Medians of several rounds, CPU time of this thread, in microseconds; the last three of each node.
"""

import statistics
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.decide import NOW_S, PROMPTS, ROUNDS, chat, fleet, microseconds, report
from bench.machine import machine
from extproc.core.balancer import Balancer
from extproc.core.peershares import PeerTold, Word
from extproc.core.policy import RoutingPolicy
from extproc.journal.lines import encode
from extproc.journal.peerlines import line_of

FLEETS = (10, 100)
PEERS = (0, 2, 7)
CALLS = 200
WORDS = 20
"""Of each round."""


def all_told(balancer: Balancer, now_s: float) -> Word:
    """A word about all nodes."""
    word = balancer.word(now_s, everything=True)
    assert word is not None, "all was asked for"
    return word


def measured(nodes: int, peers: int) -> dict[str, float]:
    """Each part's cost of one call, or of one node of it, in microseconds."""
    policy = RoutingPolicy()
    balancer, word = fleet(nodes, policy), all_told(fleet(nodes, policy), NOW_S)
    rounds: dict[str, list[float]] = {}
    for turn in range(ROUNDS):
        now_s, sequence = NOW_S + turn * 0.2, turn * 1000
        told = [PeerTold(f"p{number % max(1, peers)}", sequence + number, now_s, word) for number in range(WORDS)]
        for one in told[:peers]:
            balancer.peer(one, now_s)
        requests = [chat(f"r{turn}.{number}", number % PROMPTS) for number in range(CALLS)]
        reports = [report(number % nodes, 3 + turn * CALLS + number) for number in range(CALLS)]
        steps: list[tuple[str, Callable[[int], object], int, int]] = [
            ("route", lambda number: balancer.route(requests[number], policy, now_s), CALLS, 1),  # noqa: B023
            ("begin", lambda number: balancer.first_token(requests[number].request_id, now_s), CALLS, 1),  # noqa: B023
            ("finish", lambda number: balancer.finish(requests[number].request_id, now_s), CALLS, 1),  # noqa: B023
            ("observe", lambda number: balancer.observe(reports[number], now_s + 0.1), CALLS, 1),  # noqa: B023
            ("told", lambda _: all_told(balancer, now_s), WORDS, nodes),  # noqa: B023
            ("journal", lambda number: encode(line_of(told[number], now_s)), WORDS, nodes),  # noqa: B023
        ]
        if peers:
            steps.append(("word heard", lambda number: balancer.peer(told[number], now_s), WORDS, nodes))  # noqa: B023
        for what, call, calls, parts in steps:
            rounds.setdefault(what, []).append(microseconds(call, calls) / parts)
    return {what: statistics.median(times) for what, times in rounds.items()}


def main() -> None:
    """Print the table."""
    columns = ("route", "begin", "finish", "observe", "word heard", "told", "journal")
    table = Table(title=f"µs · {machine()}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("nodes", "other routers", *columns):
        table.add_column(column, justify="right")
    for nodes in FLEETS:
        for peers in PEERS:
            found = measured(nodes, peers)
            costs = (f"{found[what]:.1f}" if what in found else "" for what in columns)
            table.add_row(str(nodes), str(peers), *costs)
    Console().print(table)


if __name__ == "__main__":
    main()
