"""Replaying a journal, and changing one."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from extproc import cli
from extproc.core.admissionqueue import AdmissionQueue
from extproc.core.balancer import Balancer
from extproc.core.quotas import Quotas
from extproc.replay.drive import run
from extproc.replay.follow import Follower
from extproc.replay.other import Other
from extproc.replay.result import Replayed
from tests.journaled import FLEET, Call, routes

WAIT: list[Call] = [("wait", {"seconds": 2.0})]
LONG: list[Call] = [*FLEET, *(FLEET + routes(3) + WAIT) * 20]
"""60 requests."""


def replayed(path: Path, other: Other | None = None) -> Replayed:
    found = run(path, other, lambda _done, _total: None)
    assert isinstance(found, Replayed), found
    return found


def command(path: Path, *options: str) -> Result:
    result = CliRunner().invoke(cli.main, ["replay", str(path), *options])
    assert not isinstance(result.exception, Exception), result.exception
    return result


@contextmanager
def followers() -> Iterator[list[Follower]]:
    """The balancers that are made meanwhile."""
    made: list[Follower] = []
    keep = Follower.__init__

    def kept(self: Follower, *arguments: Any) -> None:
        made.append(self)
        keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Follower, "__init__", kept)
        yield made


Edit = Callable[[dict[str, Any]], None]


def edited(path: Path, call: str, edit: Edit, which: int = 0) -> int:
    """Change one line; its number."""
    lines = path.read_bytes().splitlines()
    number = [place for place, line in enumerate(lines) if json.loads(line)["call"] == call][which]
    content = json.loads(lines[number])
    edit(content)
    lines[number] = json.dumps(content).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return number + 1


def state_of(one: Balancer) -> tuple[Any, ...]:
    """More than decisions show. Tenants are told apart, but they have other names in a journal."""
    robins = one._round_robin._credits, one._round_robin_uninspected._credits
    peers = [(name, vars_of(peer)) for name, peer in one._fleet.peers._peers.items()], one._fleet.peers._left
    queue, used = _queue_of(one._admission.queue), _used(one._quotas)
    return list(one.views()), one._chooser._turns, *robins, queue, used, peers


def vars_of(peer: Any) -> tuple[Any, ...]:
    """What another router told."""
    return peer.complete, peer.heard_s, peer.said


def _queue_of(queue: AdmissionQueue) -> tuple[Any, ...]:
    lanes = {
        lane: (fair.tokens, [_items_of(one) for one in fair._tenants.values()]) for lane, fair in queue._lanes.items()
    }
    shares = [(one._clock, [*one._starts.values()], [*one._waiting.values()]) for one in queue._shares]
    who = [(request_id, one.lane, one.tokens, one.since_s, one.until_s) for request_id, one in queue._waiting.items()]
    return who, lanes, shares, queue._requests, queue._bytes, queue.next_deadline_s


def _items_of(items: Any) -> list[tuple[Any, ...]]:
    return [(tokens, replace(one.request, tenant="")) for _, tokens, one in items.values()]


def _used(quotas: Quotas) -> tuple[Any, ...]:
    uses = [
        (one.key[0], one.key[2], one.owed, one.at_s, one.in_flight, one.requests, one.entry)
        for one in quotas._buckets.values()
    ]
    taken = [(request_id, tokens) for request_id, (_, tokens) in quotas._taken.items()]
    return uses, taken, list(quotas._ended), quotas._forgotten_until_s
