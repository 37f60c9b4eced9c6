"""What messages between processes of one machine cost, by each of several ways: `python -m bench.buses [KIND…]`.

One member of four sends, the others hear. Figures: CPU of the sender for each message, and of one receiver; how long a
message takes; how many get through as fast as they can be sent; and the same with one receiver stopped, which must cost
neither memory nor what the others hear.
"""

import asyncio
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from struct import Struct

import structlog
import uvloop

from bench.buscandidates import KINDS, candidate, relay
from bench.machine import machine
from tests.natsserver import nats_server

MEMBERS = 4
BURST = 20_000
STOPPED = 1000
"""Long messages in 4 s while one receiver is stopped: 64 MB."""
SHORT_BYTES = 400
LONG_BYTES = 64 * 1024
QUIET_S = 1.0
_STAMP = Struct(">d")

Figures = dict[str, float]


def member(kind: str, folder: str, index: int, nats: str, pipe: Connection, told: Connection) -> None:
    """One process. It does what `told` says: a name of a case and a number of bytes, or nothing for the end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_member(kind, Path(folder), index, nats, pipe, told))


async def _member(kind: str, folder: Path, index: int, nats: str, pipe: Connection, told: Connection) -> None:
    took_s: list[float] = []
    last_s = time.monotonic()

    def heard(message: bytes) -> None:
        nonlocal last_s
        last_s = time.monotonic()
        if not index:
            return
        took_s.append(last_s - _STAMP.unpack_from(message)[0])

    bus = candidate(kind, folder, index, MEMBERS, pipe, nats)
    await bus.open(heard)
    told.send("open")
    while case := await asyncio.to_thread(told.recv):
        name, size = case
        took_s.clear()
        cpu_s, began_s = time.process_time(), time.monotonic()
        padding = b"x" * (size - _STAMP.size)
        figures: Figures = {}
        if index == 0:
            sent = await _send(bus.publish, name, padding)
            figures["sent"], figures["cpu_s"] = sent, time.process_time() - cpu_s
            figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            await asyncio.to_thread(told.send, figures)
            continue
        last_s = time.monotonic()
        while time.monotonic() - last_s < QUIET_S or not took_s:
            if time.monotonic() - began_s > 30:
                break
            await asyncio.sleep(0.1)
        took_s.sort()
        figures["heard"], figures["cpu_s"], figures["for_s"] = (
            len(took_s),
            time.process_time() - cpu_s,
            last_s - began_s,
        )
        for share in (50, 99):
            figures[f"p{share}_ms"] = 1000 * took_s[len(took_s) * share // 100] if took_s else float("nan")
        figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        await asyncio.to_thread(told.send, figures)


async def _send(publish: Callable[[bytes], None], name: str, padding: bytes) -> int:
    count, per_s = {"paced": (3000, 1000.0), "burst": (BURST, None), "stopped": (STOPPED, 250.0)}[name]
    began_s = time.monotonic()
    for number in range(count):
        publish(_STAMP.pack(time.monotonic()) + padding)
        if per_s is not None:
            await asyncio.sleep(max(began_s + number / per_s - time.monotonic(), 0))
        elif number % 20 == 19:
            await asyncio.sleep(0)
    await asyncio.sleep(QUIET_S / 2)
    return count


def measure(kind: str, folder: Path, nats: str) -> dict[str, list[Figures]]:
    """Figures of each member in each case."""
    spawn = multiprocessing.get_context("spawn")
    pipes, tolds, processes = [], [], []
    for index in range(MEMBERS):
        pipe, their_pipe = spawn.Pipe()
        told, their_told = spawn.Pipe()
        process = spawn.Process(
            target=member, args=(kind, str(folder), index, nats, their_pipe, their_told), daemon=True
        )
        process.start()
        pipes.append(pipe)
        tolds.append(told)
        processes.append(process)
    ended = threading.Event()
    relaying = threading.Thread(target=relay, args=(pipes, ended.is_set), daemon=True)
    if kind == "pipes":
        relaying.start()
    assert all(told.recv() == "open" for told in tolds)
    time.sleep(1)  # until all are connected to all
    results: dict[str, list[Figures]] = {}
    for case, name, size in (
        ("paced", "paced", SHORT_BYTES),
        ("burst", "burst", SHORT_BYTES),
        ("stopped", "stopped", LONG_BYTES),
    ):
        stopped = [processes[-1].pid] if case == "stopped" else []
        for told in tolds[1:]:
            told.send((name, size))
        time.sleep(0.2)
        for pid in stopped:
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
        tolds[0].send((name, size))
        results[case] = []
        for told in tolds[:-1] if stopped else tolds:
            results[case].append(told.recv() if told.poll(20) else {})
        for pid in stopped:
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
            results[case].append(tolds[-1].recv() if tolds[-1].poll(20) else {})
    ended.set()
    for process in processes:
        process.kill()
        process.join()
    return results


def line(kind: str, results: dict[str, list[Figures]]) -> str:
    """A row of the table."""
    paced, burst, stopped = results["paced"], results["burst"], results["stopped"]

    def part(figures: Figures, name: str, scale: float = 1) -> str:
        return f"{figures[name] * scale:.4g}" if name in figures else "-"

    def each(figures: Figures, count: str) -> str:
        return f"{figures['cpu_s'] * 1e6 / figures[count]:.0f}" if figures.get(count) else "-"

    grown = f"{stopped[0]['rss_mb'] - paced[0]['rss_mb']:.1f}" if stopped[0] else "blocked"
    heard = " ".join(part(one, "heard") for one in stopped[1:])
    per_s = f"{burst[1]['heard'] / burst[1]['for_s']:.0f}" if burst[1].get("heard") else "-"
    return (
        f"| {kind} | {each(paced[0], 'sent')} | {each(paced[1], 'heard')} | {part(paced[1], 'p50_ms')} | "
        f"{part(paced[1], 'p99_ms')} | {each(burst[0], 'sent')} | {each(burst[1], 'heard')} | {per_s} | "
        f"{part(burst[1], 'heard')} | {heard} | {grown} |"
    )


async def _main(kinds: list[str]) -> None:
    print(machine())
    print(
        "| way | paced: sender µs | receiver µs | p50 ms | p99 ms | burst: sender µs | receiver µs | per s | "
        f"heard of {BURST} | one stopped: heard of {STOPPED} by each | sender grew MB |"
    )
    print("|---|" + "---:|" * 10)
    async with nats_server() as server:
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                results = await asyncio.to_thread(measure, kind, Path(folder), server.url)
            print(line(kind, results), flush=True)
            print(json.dumps(results), file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:] or list(KINDS)))
