"""Nodes of the configuration alone, with no agent at all, through the real Envoy."""

from collections import Counter
from pathlib import Path

from tests.e2e.conftest import CONFIG, PROBE, System, started
from tests.e2e.reporter import Reporter


async def test_they_serve_by_their_weights_from_the_first_request_on_until_an_agent_speaks(
    system: System, tmp_path: Path
) -> None:
    nodes = [
        {"host": str(engine.address), "node_id": engine.name, "weight": weight}
        for engine, weight in zip(system.engines, (2.0, 1.0, 1.0), strict=True)
    ]
    async with started(tmp_path, CONFIG | {"static_nodes": nodes}, system) as fleet:
        answers = [await fleet.ask(PROBE) for _ in range(8)]
        assert all(answer.as_chosen for answer in answers), answers
        assert Counter(answer.engine for answer in answers) == {"gpu-1": 4, "gpu-2": 2, "gpu-3": 2}
        assert {(await fleet.node(engine.name))["static"] for engine in system.engines} == {True}
        last = system.engines[-1]
        async with Reporter(fleet.serve.agents) as reporter:

            async def chosen_by_cost() -> bool:
                # For two report intervals after its start all take turns.
                await reporter.report("another-name", last.address)
                answer = await fleet.ask(PROBE)
                return answer.chosen == "another-name" and not (answer.reason or "").startswith("round robin")

            await fleet.fleet.until("choices", chosen_by_cost)
            assert await fleet.node(last.name) == {}
