"""`serve --workers` as its users have it: processes, real gRPC and HTTP, real signals."""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from extproc.address import TcpAddress, of_worker
from extproc.app import HEALTH_SERVICES
from extproc.children import Child, ourselves
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage
from extproc.pb.nodes_pb2_grpc import NodesStub
from tests.e2e.reporter import Reporter
from tests.nodes.messages import snapshot_message
from tests.nodes.test_kv_blocks import blocks
from tests.serve.served import ANY_PORTS, refusal
from tests.waiting import until
from tests.workers.crewed import Crewed, crewed, free_ports, is_there, workers_of


async def started(folder: Path, *options: str, **config: object) -> Child:
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"listen": ANY_PORTS} | config))
    return await Child.start("serve", ourselves("serve", "--config", str(path), *options), folder)


def addresses(one: Crewed) -> list[str]:
    line = next(line for line in one.serve.child.log.read_text().splitlines() if '"listening"' in line)
    found: list[str] = json.loads(line)["workers"]
    return found


def _health(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


async def test_each_worker_has_an_address_and_health_of_its_own_and_the_pages_are_of_all(tmp_path: Path) -> None:
    first = free_ports()
    async with crewed(tmp_path, listen={"extproc": str(first)}) as one:
        assert addresses(one) == [str(first), str(of_worker(first, 1))]
        for at in addresses(one):
            async with grpc.aio.insecure_channel(at) as channel:
                asked = health_pb2.HealthCheckRequest(service=HEALTH_SERVICES[1])
                answer = await _health(channel).Check(asked)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert await one.text("/healthz") == "ok\n"
        assert await one.status("/readyz") == 503
        async with Reporter(one.serve.agents) as reporter:
            await reporter.report("gpu-1", one.serve.admin)
            await one.known_to_all("gpu-1")
            ready = await one.json("/readyz")
            assert (ready["ready"], [ready["workers"][str(k)]["nodes_ready"] for k in (0, 1)]) == (True, [1, 1])
            assert [node["node_id"] for node in (await one.json("/nodes?node=gpu-1"))["nodes"]] == ["gpu-1"]
            assert (await one.json("/capacity"))["models"][0]["nodes_ready"] == 1

        async def met() -> bool:
            told = (await one.json("/peers"))["workers"]
            return [len(each["peers"]) for each in told.values()] == [1, 1]

        await until(met)
        for path, status in (("/nodes?worker=7", 404), ("/nodes?node=x", 404), ("/decisions?limit=x", 400)):
            assert await one.status(path) == status, path
        assert "/decisions" in await one.text("/")


async def test_the_metrics_of_all_are_one_page_that_parses(tmp_path: Path) -> None:
    async with crewed(tmp_path) as one:
        page = await one.text("/metrics")
        heads = [line for line in page.splitlines() if line.startswith("# HELP")]
        assert len(heads) == len(set(heads))
        families = {family.name: family for family in text_string_to_metric_families(page)}
        streams = families["extproc_streams_open"].samples
        assert [sample.labels for sample in streams] == [{"worker": "0"}, {"worker": "1"}]
        resident = families["process_resident_memory_bytes"].samples
        assert {sample.labels["worker"] for sample in resident} == {"0", "1", "parent"}
        assert all("worker" in sample.labels for family in families.values() for sample in family.samples)


async def test_a_killed_worker_comes_again_at_its_address_and_agents_tell_it_all(tmp_path: Path) -> None:
    async with crewed(tmp_path) as one:
        before = addresses(one)
        child = await one.fleet.agent("gpu-1", await _engine(one), one.serve, interval_s=0.2)
        await one.known_to_all("gpu-1")
        killed = one.pids[1]
        os.kill(killed, signal.SIGKILL)
        await one.serve.child.logged(r'"worker has ended"', within_s=5)
        await one.serve.child.logged(r'"worker is there again"', within_s=15)
        await one.known_to_all("gpu-1")
        assert child.running
        assert len(one.pids) == 2
        assert killed not in one.pids
        async with grpc.aio.insecure_channel(before[1]) as channel:
            await _health(channel).Check(health_pb2.HealthCheckRequest())
        assert [sample.value for sample in await one.samples("extproc_worker_restarts_total")] == [1]


async def test_kv_blocks_are_known_to_all_again_once_a_killed_worker_is_back(tmp_path: Path) -> None:
    async with crewed(tmp_path) as one, grpc.aio.insecure_channel(str(one.serve.agents)) as channel:

        async def told(sequence: int) -> Any:
            """A stream that tells everything, as an agent's each time that it comes."""
            stream = NodesStub(channel).Report()  # type: ignore[no-untyped-call]
            await stream.write(AgentMessage(snapshot=snapshot_message(boot_id="boot-1", sequence=sequence)))
            await stream.write(blocks(1, (1, 2, 3), everything=True))
            answers = [await stream.read() for _ in range(2)]
            assert [each.acknowledgement.verdict for each in answers] == [Acknowledgement.VERDICT_APPLIED] * 2
            return stream

        async def known() -> bool:
            pages = [await one.nodes_of(number) for number in (0, 1)]
            return [page.get("gpu-1", {}).get("kv_blocks_told") for page in pages] == [3, 3]

        stream = await told(1)
        await until(known)
        os.kill(one.pids[0], signal.SIGKILL)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        stream = await told(2)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE, "the worker has come again"
        stream = await told(3)
        await until(known)


async def _engine(one: Crewed) -> TcpAddress:
    return (await one.fleet.engine("gpu-1", "demo")).address


async def test_a_worker_that_hangs_is_left_out_and_hears_agents_again_when_it_goes_on(tmp_path: Path) -> None:
    async with crewed(tmp_path) as one:
        await one.fleet.agent("gpu-1", await _engine(one), one.serve, interval_s=0.05)
        await one.known_to_all("gpu-1")
        hanging = one.pids[1]
        os.kill(hanging, signal.SIGSTOP)
        try:
            ready = await one.json("/readyz")
            assert ready["workers"]["1"] == {"ready": False, "reason": "it does not answer"}
            assert ready["ready"] is True
            assert {sample.labels["worker"] for sample in await one.samples("extproc_streams_open")} == {"0"}
        finally:
            os.kill(hanging, signal.SIGCONT)
        await one.known_to_all("gpu-1")


async def test_sigterm_drains_all(tmp_path: Path) -> None:
    child = await started(tmp_path, "--workers", "2", drain_s=600)
    await child.logged('"listening"', within_s=30)
    pids = workers_of(child.pid)
    assert len(pids) == 2
    child.signal(signal.SIGTERM)
    assert await child.ended() == 0
    assert child.log.read_text().count('"drained"') == 3, "of the parent and of both"
    assert not any(is_there(pid) for pid in pids)


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the processes have left in the folder for such things."""
    (folder := tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return lambda: [one.name for one in folder.iterdir()]


async def test_a_second_signal_ends_all_at_once(tmp_path: Path, private: Callable[[], list[str]]) -> None:
    child = await started(tmp_path, "--workers", "2", drain_s=600)
    await child.logged('"listening"', within_s=30)
    pids = workers_of(child.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # they do not end by themselves
    child.signal(signal.SIGTERM)
    await child.logged('"draining"', within_s=10)
    child.signal(signal.SIGTERM)
    assert await child.ended() == 128 + signal.SIGTERM
    assert private() == []
    await until(lambda: not any(is_there(pid) for pid in pids))


@pytest.mark.parametrize("draining", [False, True])
async def test_workers_end_when_their_parent_is_killed(
    draining: bool, tmp_path: Path, private: Callable[[], list[str]]
) -> None:
    child = await started(tmp_path, workers=2)
    await child.logged('"listening"', within_s=30)
    pids = workers_of(child.pid)
    assert len(private()) == 1
    if draining:
        child.signal(signal.SIGTERM)
    await child.kill()
    await until(lambda: not any(is_there(pid) for pid in pids))
    assert private() == []
    assert "Traceback" not in child.log.read_text()


@pytest.mark.parametrize("sends", [signal.SIGTERM, signal.SIGKILL])
async def test_an_end_amid_the_start_leaves_nothing(
    sends: signal.Signals, tmp_path: Path, private: Callable[[], list[str]]
) -> None:
    child = await started(tmp_path, workers=2)
    await until(lambda: child.running and len(private()) == 1 and len(workers_of(child.pid)) == 2, within_s=30)
    pids = workers_of(child.pid)
    child.signal(sends)
    await child.ended()
    await until(lambda: not any(is_there(pid) for pid in pids), within_s=30)
    assert private() == []
    assert "Traceback" not in child.log.read_text()


@pytest.mark.parametrize("config", [{"workers": 2}, {}], ids=["workers", "one process"])
async def test_what_a_worker_refuses_is_told_as_without_workers(config: dict[str, int], tmp_path: Path) -> None:
    child = await started(tmp_path, tokens={"models": {"m": {"tokenizer": "no-such"}}}, **config)
    said = await refusal(child)
    assert said.startswith("tokens.models.m.tokenizer: wanted "), said
    assert len(said.splitlines()) == 1, said


async def test_a_place_that_is_taken_is_a_fault(tmp_path: Path) -> None:
    first = free_ports()
    second = of_worker(first, 1)
    assert isinstance(second, TcpAddress)
    with socket.create_server((second.host, second.port)):
        child = await started(tmp_path, workers=2, listen=ANY_PORTS | {"extproc": str(first)})
        assert await refusal(child) == (
            f"listen.extproc: wanted an address that can be listened at by worker 1, got {second}: "
            "Address already in use\n"
        )


async def test_addresses_that_meet_are_a_fault(tmp_path: Path) -> None:
    listen = {"extproc": "127.0.0.1:9002", "agents": "127.0.0.1:9004", "admin": "127.0.0.1:9012"}
    child = await started(tmp_path, workers=2, listen=listen)
    assert await refusal(child) == (
        "listen.admin: wanted an address of its own, not that of worker 1, got 127.0.0.1:9012\n"
    )
