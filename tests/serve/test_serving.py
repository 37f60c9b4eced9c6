"""What it does for Envoy and agents while it runs."""

import json
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2

from extproc.app import HEALTH_SERVICES
from extproc.cli import main
from tests.serve.served import Serve, asked, reported
from tests.tokens.bpe import train
from tests.waiting import until


async def test_it_is_ready_once_an_agent_has_reported_a_node(serve: Serve) -> None:
    served = await serve()
    assert await served.get("/readyz") == (503, {"ready": False, "reason": "no node has reported, or all have left"})
    await reported(served)
    assert await served.get("/readyz") == (200, {"ready": True, "nodes": 1, "nodes_ready": 1, "nodes_static": 0})
    _, page = await served.get("/nodes")
    assert [node["node_id"] for node in page["nodes"]] == ["gpu-1"]


async def test_a_reported_node_is_chosen_counted_and_freed_at_the_streams_end(serve: Serve) -> None:
    served = await serve(nodes={"report_interval_s": 0.01, "fresh_s": 60, "stale_s": 60})
    await reported(served)

    async def own() -> int:
        _, page = await served.get("/nodes")
        open_: int = page["nodes"][0]["own"]["sequences_open"]
        return open_

    async def destination() -> tuple[Any, Any] | None:
        stream = served.stream()
        reply = await asked(stream)
        if set_headers := reply.request_body.response.header_mutation.set_headers:
            return stream, set_headers[0]
        await stream.done_writing()  # two report intervals have not passed yet
        return None

    found: Any = await until(destination)
    stream, header = found
    assert (header.header.key, header.header.raw_value) == ("x-envoy-original-dst-host", b"127.0.0.1:8000")
    assert await own() == 1
    _, page = await served.get("/decisions?limit=1")
    assert page["decisions"][0]["outcome"]["node_id"] == "gpu-1"
    await stream.done_writing()
    assert await stream.code() == grpc.StatusCode.OK

    async def freed() -> bool:
        return await own() == 0

    await until(freed)


@pytest.mark.parametrize("service", HEALTH_SERVICES)
async def test_the_health_service_answers_for_its_names(serve: Serve, service: str) -> None:
    served = await serve()
    healthy = await served.health.Check(health_pb2.HealthCheckRequest(service=service))
    assert healthy.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_configured_tokenizer_counts_prompts(serve: Serve, tmp_path: Path) -> None:
    expected = len(train(tmp_path / "t.json").encode("the quick brown fox").ids)
    served = await serve(tokens={"models": {"known-*": {"tokenizer": "t.json"}}})

    async def tokens(model: str) -> tuple[float, bool]:
        reply = await asked(served.stream(), model=model, prompt="the quick brown fox")
        fields = reply.dynamic_metadata.fields["extproc"].struct_value.fields
        return fields["tokens"].number_value, fields["tokens_exact"].bool_value

    assert await tokens("known-1") == (expected, True)
    assert await tokens("other") == (5, False)


async def test_tokenizers_are_told_with_the_reason_of_each_choice(serve: Serve, tmp_path: Path) -> None:
    train(tmp_path / "t.json")
    models = {
        "known-*": {"tokenizer": "t.json"},
        "lora": {"base": "known-1"},
        "gone": {"tokenizer": "no-such", "required": False},
    }
    served = await serve(tokens={"models": models})
    page = await served.page("/metrics")
    told = [line for line in page.splitlines() if line.startswith("extproc_tokenizer_info")]
    gone, known = sorted(told, key=lambda line: 'engine="none"' not in line)
    assert 'reason="wanted a folder or a tokenizer.json' in gone
    assert 'models="gone"' in gone
    assert 'engine="fastokens"' in known
    assert 'reason="agrees with tokenizers on' in known
    assert 'models="known-*, lora"' in known


async def test_a_journal_is_replayed_to_the_same_decisions_and_holds_no_text(serve: Serve, tmp_path: Path) -> None:
    settings = {"nodes": {"report_interval_s": 0.01, "fresh_s": 60, "stale_s": 60}}
    served = await serve(journal={"path": str(tmp_path / "serve.journal")}, **settings)
    await reported(served)

    async def chosen() -> bool:
        stream = served.stream()
        reply = await asked(stream, prompt="a secret of the client's " * 40)
        await stream.done_writing()
        return bool(reply.request_body.response.header_mutation.set_headers)

    await until(chosen)
    served.child.signal(signal.SIGTERM)
    assert await served.child.ended() == 0
    assert "secret" not in (tmp_path / "serve.journal").read_text()
    replayed = CliRunner().invoke(main, ["replay", str(tmp_path / "serve.journal"), "--json"])
    told = json.loads(replayed.stdout)
    assert (replayed.exit_code, told["different"]) == (0, 0)
    assert told["identical"] >= 1


async def test_a_silent_node_is_forgotten(serve: Serve) -> None:
    served = await serve(nodes={"fresh_s": 0.1, "stale_s": 0.1, "member_s": 0.1, "prune_interval_s": 0.05})
    await reported(served)

    async def gone() -> bool:
        return (await served.get("/readyz"))[0] == 503

    await until(gone)
    await served.child.logged('"node left"', within_s=10)
