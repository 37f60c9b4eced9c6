"""What one report costs in this process, by parts, and what a node takes of memory: for `bench.ingest`."""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.agents import loaded
from extproc.agent.wire import Report, snapshot_message
from extproc.config import Config
from extproc.core.balancer import Balancer
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported
from extproc.nodehosts import Network
from extproc.nodes import wire
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, RouterMessage

ROUNDS = 8


def parts(nodes: int) -> dict[str, float]:
    """Of one report, in µs: the least of several rounds."""
    allowed, balancer, now_s = Config().hosts_allowed, Balancer(BalancerSettings(), 0.0), 100.0
    chances = [random.Random(number) for number in range(nodes)]
    known: dict[str, wire.Known] = {}
    found: dict[str, float] = {}

    def time_of(part: str, call: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
        gc.collect()
        gc.disable()
        began_s = time.thread_time()
        made = [call(one) for one in given]
        passed_us = (time.thread_time() - began_s) / len(given) * 1e6
        gc.enable()
        found[part] = min(found.get(part, passed_us), passed_us)
        return made

    for sequence in range(1, ROUNDS + 1):
        now_s += 1
        reports = [Report(loaded(number, sequence, chance), 0.0) for number, chance in enumerate(chances)]
        sent = [snapshot_message(report, 0.004, 0.001).SerializeToString() for report in reports]
        messages = time_of("protobuf", AgentMessage.FromString, sent)
        taken = time_of("snapshot", partial(_read, allowed, known), messages)
        known = {one.snapshot.node_id: one for one in taken}
        time_of("observe", partial(_observe, balancer, now_s), taken)
        time_of("acknowledgement", _acknowledged, taken)
    return found


def _read(allowed: Sequence[Network], known: dict[str, wire.Known], message: AgentMessage) -> wire.Known | str:
    return wire.report_of(message.snapshot, allowed, known.get(message.snapshot.node_id))


def _observe(balancer: Balancer, now_s: float, one: wire.Known) -> None:
    balancer.observe(NodeReported(one.snapshot), now_s)


def _acknowledged(one: wire.Known) -> bytes:
    told = Acknowledgement(
        node_id=one.snapshot.node_id,
        sequence=one.snapshot.sequence,
        verdict=Acknowledgement.VERDICT_APPLIED,
        takes_several=True,
    )
    return RouterMessage(acknowledgement=told).SerializeToString()


def node_bytes(nodes: int) -> float:
    """What a balancer holds of a node that reports and has no requests of ours, with the ingest's own."""
    allowed, chance = Config().hosts_allowed, random.Random(0)
    tracemalloc.start()
    balancer, known = Balancer(BalancerSettings(), 0.0), dict[str, wire.Known]()
    before = tracemalloc.get_traced_memory()[0]
    for sequence in (1, 2, 3):
        for number in range(nodes):
            message = AgentMessage.FromString(
                snapshot_message(Report(loaded(number, sequence, chance), 0.0), 0.004).SerializeToString()
            ).snapshot
            report = wire.report_of(message, allowed, known.get(message.node_id))
            assert isinstance(report, wire.Known), report
            known[message.node_id] = report
            balancer.observe(NodeReported(report.snapshot), 100.0 + sequence)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / nodes
