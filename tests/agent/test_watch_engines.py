"""Engines of other kinds behind the watch, over HTTP: found out by their page, and asked for nothing that computes."""

import pytest

from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.scrape import EnginePages
from extproc.agent.watch import EngineWatch
from extproc.core.snapshot import NodeState, ServedModel
from tests.agent import sglangpages, test_lmdeploy, test_tgi
from tests.agent.engine import Handler, vllm_engine

SERVERS: dict[EngineKind, dict[str, str | int | Handler]] = {
    EngineKind.SGLANG: {
        "/health": 503,  # it would compute a token
        "/metrics": sglangpages.scheduler(running=4, queue=2),
        "/v1/models": '{"data": [{"id": "m", "max_model_len": 4096}]}',
    },
    EngineKind.TGI: {
        "/health": 200,
        "/metrics": test_tgi.page(batch=4, queue=2),
        "/info": test_tgi.INFO,
        "/v1/models": 404,
    },
    EngineKind.LMDEPLOY: {
        "/health": 200,
        "/metrics": test_lmdeploy.page(running=4, waiting=2),
        "/v1/models": '{"data": [{"id": "m"}]}',
    },
}


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("kind", SERVERS)
async def test_an_engine_of_each_kind_is_watched(kind: EngineKind, auto: bool) -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        engine.pages = {**SERVERS[kind], **({"/health": 200} if auto else {})}
        told = {"node_id": "n", "engine": engine.url, "engine_kind": EngineKind.AUTO if auto else kind}
        watch = EngineWatch(pages, EngineConfig.model_validate(told), 5.0, 3600)
        seen = await watch.look()
        assert (seen.state, seen.not_ready) == (NodeState.READY, None)
        length = None if kind is EngineKind.LMDEPLOY else 4096
        assert seen.models == (ServedModel("m", context_length_tokens=length),)
        assert (seen.reading.requests_running, seen.reading.requests_waiting) == (4, 2)
        engine.asked.clear()
        assert (await watch.look()).state is NodeState.READY
        assert ("/health" in engine.asked) == (kind is not EngineKind.SGLANG)
