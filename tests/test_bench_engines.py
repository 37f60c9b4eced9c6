"""The comparison of ways to choose a node: its requests, its clients, its figures, and a tiny one for real."""

import asyncio
import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.engines import runs, system, tables, workloads
from bench.engines.client import Outcome, Target, ask_all
from bench.engines.comparing import Plan, carry_out
from bench.engines.model import alone
from bench.engines.runs import Run, Seen
from bench.engines.scenarios import BASELINE, ENVOYS, MIXED, UNEQUAL, Node, Scenario, variant
from bench.engines.workloads import Timed, timed
from extproc import envoyconf
from extproc.address import TcpAddress
from extproc.children import Child, envoy_binary
from extproc.sim.emulator import emulated
from extproc.sim.measures import measure
from extproc.sim.profiles import Even, Kind
from tests.waiting import until

SMALL = (Kind("small", 1.0, Even(20, 60), Even(4, 8)),)
TINY = Scenario("tiny", "a few short ones", (Node("node-1"), Node("node-2")), SMALL, load=0.05)
OK = b"HTTP/1.1 200 OK\r\nX-Engine: gpu-1\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
FIRST = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def asked(count: int = 1) -> list[Timed]:
    return timed(SMALL, count, 1000.0, 1)


@pytest.mark.parametrize("shape", [workloads.MIXED, workloads.CHATS])
def test_the_same_seed_gives_the_same_requests_and_another_gives_others(shape: workloads.Shape) -> None:
    one, again, other = (timed(shape, 30, 10.0, seed, workloads.BURSTS) for seed in (1, 1, 2))
    assert one == again
    assert {each.body for each in one}.isdisjoint(each.body for each in other)
    assert [each.at_s for each in one] == sorted(each.at_s for each in one)
    assert one[0].at_s == 0


def test_bursts_change_when_requests_come_and_not_how_many() -> None:
    bursts = workloads.BURSTS
    times = [one.at_s for one in timed(SMALL, 4000, 20.0, 3, bursts)]
    assert 4000 / times[-1] == pytest.approx(20.0, rel=0.07)
    seconds = [sum(int(at_s) == second for at_s in times) for second in range(int(times[-1]))]
    busy = sorted(seconds)[-len(seconds) // 10 :]
    quiet = 20.0 / (1 + (bursts.factor - 1) * bursts.lasting_s / bursts.every_s)
    assert sum(busy) / len(busy) > 2 * quiet


async def test_a_turn_repeats_the_answer_that_an_emulated_engine_gave() -> None:
    turns: dict[str, list[Timed]] = {}
    for one in timed(workloads.CHATS, 60, 4.0, 1):
        turns.setdefault(one.session, []).append(one)
    first, second = next(own for own in turns.values() if len(own) > 1)[:2]
    async with emulated(replace(MIXED.nodes[0].settings, speed=1000.0)) as engine:
        host, _, port = engine.host.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (len(first.body), first.body)
        )
        answer = (await reader.read()).decode()
        writer.close()
    texts = [line for line in answer.splitlines() if line.startswith("data: {")]
    text = "".join(json.loads(line[6:])["choices"][0]["delta"]["content"] for line in texts)
    messages = json.loads(second.body)["messages"]
    assert messages[:-2] == json.loads(first.body)["messages"]
    assert messages[-2] == {"role": "assistant", "content": text}
    assert len(text) == 4 * first.output_tokens
    assert engine.engine.counters.prompt_tokens == first.prompt_tokens


def test_loads_are_shares_of_what_the_engines_carry() -> None:
    full = MIXED.capacity_per_s(MIXED.nodes[0])
    assert MIXED.rate_per_s == pytest.approx(0.7 * 4 * full)
    slow, half, *equal = (UNEQUAL.capacity_per_s(node) for node in UNEQUAL.nodes)
    assert slow == pytest.approx(full / 3)
    assert half < full
    assert equal == [full, full]


def test_an_engine_alone_is_worse_off_beyond_its_capacity() -> None:
    node = MIXED.nodes[0]
    light, heavy = (
        measure(alone(node.settings.engine, timed(MIXED.shape, 150, load * MIXED.capacity_per_s(node), 1)), 0, [])
        for load in (0.5, 1.5)
    )
    assert light.ttft_p90_s is not None
    assert heavy.ttft_p90_s is not None
    assert light.ttft_p90_s < 2 < heavy.ttft_p90_s


async def answered(*pieces: bytes | float, patience_s: float = 60.0, close: bool = True) -> Outcome:
    """What a client sees of a server that sends these pieces, numbers being pauses."""
    received = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                writer.write(piece)
                await writer.drain()
        if close:
            writer.close()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        target = Target(TcpAddress(host, port), with_session=True, patience_s=patience_s)
        (outcome,) = await ask_all(asked(), target, lambda _: None)
    assert b"\r\nx-session: small-0\r\n" in received[0]
    return outcome


async def test_a_whole_answer_is_timed_to_its_first_content_and_its_end() -> None:
    outcome = await answered(OK, ROLE, 0.05, FIRST, 0.05, DONE)
    assert (outcome.status, outcome.engine, outcome.failure) == (200, "gpu-1", "")
    assert outcome.first_token_s is not None
    assert 0.05 <= outcome.first_token_s < outcome.ended_s


async def test_pieces_may_be_cut_anywhere() -> None:
    whole = OK + ROLE + FIRST + DONE
    outcome = await answered(*(piece for byte in whole for piece in (bytes([byte]), 0.0)))
    assert (outcome.status, outcome.engine, outcome.failure) == (200, "gpu-1", "")
    assert outcome.first_token_s is not None


@pytest.mark.parametrize(
    ("pieces", "status", "failure"),
    [
        ([OK, FIRST], 200, "cut"),
        ([], 0, "cut"),
        ([b"HTTP/1.1 200 OK\r\n"], 0, "cut"),
        ([b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"], 503, "503"),
        ([b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000], 0, "cut"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure(pieces: list[bytes], status: int, failure: str) -> None:
    outcome = await answered(*pieces)
    assert (outcome.status, outcome.failure) == (status, failure)


@pytest.mark.parametrize("pieces", [[], [OK], [OK, FIRST]])
async def test_a_client_leaves_when_nothing_comes_any_more(pieces: list[bytes]) -> None:
    outcome = await answered(*pieces, patience_s=0.2, close=False)
    assert outcome.failure == "timeout"
    assert (outcome.first_token_s is not None) == (FIRST in pieces)


async def test_nobody_listening_is_a_failure() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    server.close()
    await server.wait_closed()
    outcomes = await ask_all(asked(3), Target(TcpAddress(host, port), False, 5.0), lambda _: None)
    assert [(one.number, one.status, one.failure) for one in outcomes] == [(n, 0, "refused") for n in range(3)]


def seen(*outcomes: Outcome, fault_at_s: float | None = None) -> Seen:
    cores = dict.fromkeys(("node-1", "node-2", "envoy", "client", "machine"), 0.1)
    counters = {"prefix_cache_queries": 100.0, "prefix_cache_hits": 25.0, "num_preemptions": 3.0}
    return Seen(outcomes, cores, counters, fault_at_s)


def fine(number: int, first_token_s: float = 0.5) -> Outcome:
    return Outcome(number, 0.001, 200, "node-1", first_token_s, first_token_s + 0.1, "")


def failed(number: int, failure: str) -> Outcome:
    return Outcome(number, 0.001, 0, "", None, 1.0, failure)


def run(name: str, repetition: int, first_token_s: float) -> Run:
    requests = asked(3)
    outcomes = (fine(number, first_token_s) for number in range(3))
    return runs.run_of(TINY, variant(name), repetition, 1, requests, seen(*outcomes))


def test_a_run_tells_who_failed_and_when_their_requests_were_sent() -> None:
    requests = [replace(one, at_s=float(number)) for number, one in enumerate(asked(5))]
    outcomes = (fine(0), failed(1, "timeout"), failed(2, "503"), failed(3, "503"), fine(4))
    found = runs.run_of(TINY, BASELINE, 0, 1, requests, seen(*outcomes, fault_at_s=1.5))
    assert found.failures.by_kind == {"503": 2, "timeout": 1}
    assert (found.failures.sent_before, found.failures.last_sent_s) == (1, 1.5)
    assert (found.measures.failed, found.measures.ngood, found.measures.preemptions) == (3, 0.4, 3)
    assert found.measures.prefix_hit_share == 0.25
    assert found.measures.node_shares == {"node-1": 1.0, "node-2": 0.0}


def test_ratios_are_of_the_same_repetition() -> None:
    both = [run("ROUND_ROBIN", 0, 1.0), run("ROUND_ROBIN", 1, 4.0)]
    both += [run("least-added-delay", 1, 1.0), run("least-added-delay", 0, 0.5)]
    scenario = replace(TINY, aims=(("ttft_p90_s", 0.375),))
    grid = tables.of_clients(scenario, both)
    named = {row[0]: dict(zip(grid.columns, row, strict=True)) for row in grid.rows}
    assert named["least-added-delay"]["p90 of RR's"] == "0.38 (0.25–0.50)"
    assert named["ROUND_ROBIN"]["p90 of RR's"] == "1.00"
    assert grid.notes == ["aim: least-added-delay's ttft_p90_s at most 0.375 × ROUND_ROBIN's: met, 0.38 (0.25–0.50)"]
    assert tables.of_clients(replace(TINY, aims=(("ttft_p90_s", 0.374),)), both).notes[0].count("missed") == 1
    assert grid.markdown().count("\n| ") == 4


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], "–"), ([None], "–"), ([1.234], "1.23"), ([1.0, 1.001], "1.00"), ([3.0, 1.0, 2.0, None], "2.00 (1.00–3.00)")],
)
def test_a_spread_is_shown_where_there_is_one(values: list[float | None], shown: str) -> None:
    assert tables.spread(values) == shown


def test_strategies_are_known_by_name_and_weight() -> None:
    policy = variant("least-added-delay@4.5").policy
    assert policy is not None
    assert (policy.strategy, policy.first_token_weight) == ("least-added-delay", 4.5)
    assert variant("RING_HASH").with_session
    assert not variant("lmetric").with_session


@pytest.mark.parametrize("name", ["", "best", "lmetric@2", "least-added-delay@", "least-added-delay@-1", "round_robin"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="wanted one of"):
        variant(name)


@pytest.mark.parametrize("name", ENVOYS)
def test_envoy_takes_the_bootstrap_of_each_of_its_own_policies(tmp_path: Path, name: str) -> None:
    bootstrap = envoyconf.read_bootstrap(system.without_extproc(tmp_path, variant(name)))
    path = tmp_path / "envoy.json"
    path.write_text(envoyconf.bootstrap_json(bootstrap))
    assert "ext_proc" not in path.read_text()
    subprocess.run([envoy_binary(), "--mode", "validate", "-c", path], check=True, capture_output=True, timeout=60)


async def test_a_tiny_comparison_of_two_engines_loses_nothing_and_leaves_its_figures(tmp_path: Path) -> None:
    output = io.StringIO()
    plan = Plan(
        scenarios=[TINY],
        strategies=["least-added-delay"],
        repetitions=1,
        requests=10,
        seed=1,
        json=tmp_path / "figures.json",
        markdown=tmp_path / "tables.md",
    )
    found = await carry_out(plan, Console(file=output, width=140))
    assert [one.variant for one in found.runs] == ["least-added-delay", "ROUND_ROBIN"]
    assert [one.measures.failed for one in found.runs] == [0, 0]
    assert found.runs[1].measures.node_shares == {"node-1": 0.5, "node-2": 0.5}
    assert all(one.cores["machine"] > 0 <= one.cores["node-1"] for one in found.runs), "a node may take under 10 ms"
    kept: dict[str, Any] = json.loads((tmp_path / "figures.json").read_text())
    assert [one["measures"]["requests"] for one in kept["runs"]] == [10, 10]
    assert (tmp_path / "tables.md").read_text().count("| least-added-delay |") == 3
    assert "tiny: a few short ones; 10 requests" in output.getvalue()


def living(folder: Path) -> list[str]:
    """Processes that log somewhere below a folder, but not into it."""

    def log(process: Path) -> Path:
        try:
            return (process / "fd" / "1").readlink()
        except OSError:
            return Path()

    return [one.name for one in Path("/proc").glob("[0-9]*") if folder in log(one).parents[1:]]


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_comparison_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    command = ("env", f"TMPDIR={tmp_path}", sys.executable, "-m", "bench.engines", "--scenario", "curve")
    child = await Child.start("bench", command, tmp_path)
    try:
        await until(lambda: living(tmp_path), within_s=40)
        child.signal(signal.SIGTERM)
        assert await child.ended() == 130
        assert living(tmp_path) == []
        assert files(tmp_path) == ["bench.log"]
    finally:
        await child.stop()
