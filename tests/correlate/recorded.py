"""A recorded hour in which it is known what first tokens depend on."""

import random
from pathlib import Path

from click.testing import CliRunner, Result
from msgspec.structs import replace

from extproc import cli
from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen
from extproc.core.policy import RoutingPolicy
from extproc.core.snapshot import NodeReported
from extproc.journal.balancer import balancer, close
from tests.core.fleet import MODEL, request, snapshot
from tests.journaled import START_S, config

TURNS = RoutingPolicy(strategy="round-robin")


def recorded(path: Path, requests: int = 400, *, first_tokens: bool = True, policy: RoutingPolicy = TURNS) -> None:
    """One node. A first token takes 20 ms for each that waits there, and 0.1 ms for each of its own tokens.

    The GPU's share is drawn by lot; the KV cache is the fuller the fewer wait; nobody knows the prefill's mean.
    """
    one = balancer(config(path), START_S, lambda: None)
    assert isinstance(one, Balancer)
    chance = random.Random(1)
    now_s = START_S + 60
    for number in range(requests):
        now_s += 1
        waiting, tokens = chance.randrange(16), chance.randrange(100, 2000)
        told = snapshot(
            sequence=number + 1,
            requests_waiting=waiting,
            requests_running=8,
            kv_usage=0.5 - waiting / 40,
            gpu_utilization=chance.random(),
        )
        one.observe(NodeReported(told), now_s)
        decision = one.route(replace(request(f"r{number}", tokens)), policy, now_s + 0.1)
        if first_tokens and isinstance(decision.outcome, Chosen):
            one.first_token(f"r{number}", now_s + 0.1 + waiting * 0.02 + tokens * 0.0001)
        one.finish(f"r{number}", now_s + 0.9)
    close(one)


def command(*arguments: str | Path) -> Result:
    """`extproc correlate` with these."""
    result = CliRunner().invoke(cli.main, ["correlate", *map(str, arguments)])
    assert not isinstance(result.exception, Exception), result.exception
    return result


__all__ = ["MODEL", "command", "recorded"]
