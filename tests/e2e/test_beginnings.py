"""What clients see of a serve or an Envoy that is not as it should be: each test starts its own."""

import re
import sys
from pathlib import Path

import aiohttp
import pytest

from extproc import fleet
from extproc.fleet import BOOTSTRAP
from extproc.traffic import Ask, chat
from tests.e2e.conftest import CONFIG, MODEL, PROBE, System, started
from tests.e2e.reporter import Reporter

HELLO = Ask("chat", "/v1/chat/completions", chat(MODEL, "Hello", output_tokens=2, stream=False))


async def errors_of_ours(system: System) -> float:
    async with system.client.get(f"http://{system.serve.admin}/metrics") as response:
        page = await response.text()
    assert "# TYPE extproc_errors_total counter" in page
    return sum(float(value) for value in re.findall(r"^extproc_errors_total\{.*\} (\S+)$", page, re.MULTILINE))


async def test_an_error_of_ours_is_counted_and_the_fallbacks_node_answers(
    agentless_system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = [sys.executable, str(Path(__file__).with_name("faulty.py"))]
    monkeypatch.setattr(fleet, "ourselves", lambda *arguments: [*runner, *arguments])
    async with started(tmp_path, CONFIG, agentless_system) as system, Reporter(system.serve.agents) as reporter:

        async def chosen() -> bool:
            await reporter.report("scripted", system.engines[0].address)
            return (await system.ask(PROBE)).chosen == "scripted"

        await system.fleet.until("choices", chosen)
        before = await errors_of_ours(system)
        await reporter.report("scripted", system.engines[0].address)
        answer = await system.ask(HELLO)
        assert (answer.served, answer.chosen, answer.reason) == (True, "scripted", "round robin of 1")
        assert await errors_of_ours(system) == before + 1


async def test_within_two_report_intervals_of_the_start_envoys_own_cluster_serves(
    agentless_system: System, tmp_path: Path
) -> None:
    config = {"nodes": {"report_interval_s": 60.0, "fresh_s": 120.0, "stale_s": 240.0}}
    async with started(tmp_path, config, agentless_system) as system, Reporter(system.serve.agents) as reporter:
        await reporter.report("scripted", system.engines[0].address)
        answer = await system.ask(HELLO, headers={"x-request-id": "too-early"})
        assert (answer.served, answer.chosen) == (True, None)
        assert answer.reason == "started less than two report intervals ago"
        line = await system.access_log_of("too-early")
        assert (line["outcome"], line["reason"], line["cluster"]) == ("unknown", answer.reason, "known-nodes")


async def test_an_envoy_near_the_end_of_its_memory_takes_no_more_requests(
    agentless_system: System, tmp_path: Path
) -> None:
    shipped = BOOTSTRAP.read_text()
    assert "max_heap_size_bytes: 2147483648" in shipped
    bootstrap = tmp_path / "little.yaml"
    # Less than Envoy takes for itself.
    bootstrap.write_text(shipped.replace("max_heap_size_bytes: 2147483648", "max_heap_size_bytes: 1048576"))
    async with started(tmp_path, CONFIG, agentless_system, bootstrap) as system:

        async def refused() -> aiohttp.ClientResponse | None:
            response = await system.client.post(system.envoy.url + HELLO.path, json=HELLO.body)
            return response if response.status == 503 else None

        response = await system.fleet.until("overload", refused)
        assert response is not None
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["code"] == "overloaded"
        async with system.client.get(f"{system.envoy.admin_url}/stats?filter=overload_actions.*active$") as page:
            active = (await page.text()).splitlines()
        assert sorted(active) == [
            "overload.envoy.overload_actions.shrink_heap.active: 1",
            "overload.envoy.overload_actions.stop_accepting_requests.active: 1",
        ]
