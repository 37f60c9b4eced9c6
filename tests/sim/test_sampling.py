from dataclasses import fields

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from extproc.agent.engines import pagevalues, vllm
from extproc.agent.engines.reading import MEASURED
from extproc.core.snapshot import NodeState, Snapshot
from extproc.sim.events import Request
from extproc.sim.exposition import EngineCollector
from extproc.sim.node import Node
from extproc.sim.sampling import MODEL, Sampler
from extproc.sim.steptime import StepCost
from tests.sim.fleets import fleet


def node(**group: object) -> Node:
    return Node(fleet(group).nodes[0], 0, StepCost())


def advanced(one: Node, now_s: float) -> Node:
    list(one.advance(now_s))
    return one


def test_the_sampler_tells_what_an_agent_reads_out_of_the_same_engine() -> None:
    one = node(kv_blocks=8500)
    sampler, registry = Sampler(one, 0.002), CollectorRegistry()
    registry.register(EngineCollector(one.engine, MODEL, 1.0))
    look: pagevalues.Look | None = None
    sampled_at_s = 0.0
    compared = set()
    for second in range(40):
        now_s = float(second)
        advanced(one, now_s)
        reading, look = vllm.read(generate_latest(registry).decode(), look)
        sampled_at_s = sampled_at_s if reading.frozen else now_s
        told = sampler.look(now_s)
        assert told.sample_age_s == pytest.approx(now_s - sampled_at_s)
        for name in set(MEASURED) - {"prefill_latency_ms", "adapter_slots_free"}:
            expected = getattr(reading, name)
            if second or expected is not None:  # at the first look an agent has no interval
                assert getattr(told, name) == pytest.approx(expected), (second, name)
                compared.add(name)
        for index in range(3 if second in (0, 3, 4, 20) else 0):
            blocks = tuple(range(index * 1000, index * 1000 + 300))
            one.submit(Request(f"{second}-{index}", 20_000 + second, 100, block_keys=blocks), now_s)
    assert len(compared) == len(MEASURED) - 2
    assert one.engine.counters.prefix_cache_hits > 0


def test_a_step_that_lasts_longer_than_an_interval_makes_the_sample_older() -> None:
    one = node(speed=0.05)
    sampler = Sampler(one, 0.0)
    one.submit(Request("a", 8000, 10), 0.0)
    ages = [sampler.look(now_s).sample_age_s for now_s in (0.0, 1.0, 2.0, 3.0) if advanced(one, now_s)]
    assert ages == [0.0, 0.0, 0.0, 0.0], "no step has ended, so an idle engine is all that is known"
    one = node(speed=0.05)
    sampler = Sampler(one, 0.0)
    one.submit(Request("a", 100, 10), 0.0)
    one.submit(Request("b", 8000, 10), 0.1)
    ages = [sampler.look(now_s).sample_age_s for now_s in (0.6, 1.0, 2.0, 3.0) if advanced(one, now_s)]
    assert ages == pytest.approx([0.0, 0.4, 1.4, 2.4])


def test_an_engine_that_hangs_shows_the_same_and_gets_older() -> None:
    one = node(faults=[{"kind": "hang", "at_s": 2, "for_s": 10}])
    sampler = Sampler(one, 0.0)
    one.submit(Request("a", 100, 1000), 0.0)
    told = [sampler.look(float(second)) for second in range(14) if advanced(one, float(second))]
    assert [round(one.sample_age_s) for one in told] == [0, 0, 0, *range(1, 11), 0]
    assert {one.requests_running for one in told[1:]} == {1}


def test_times_are_those_of_the_simulation_where_the_engine_is_slow() -> None:
    one = node(faults=[{"kind": "slow", "at_s": 0, "for_s": 100, "factor": 10}])
    sampler = Sampler(one, 0.0)
    one.submit(Request("a", 1000, 100), 0.0)
    alone = node()
    alone.submit(Request("a", 1000, 100), 0.0)
    first, plain = sampler.look(0.0), Sampler(alone, 0.0)
    assert first.decode_ms_per_token is None
    slow, usual = sampler.look(5.0 if advanced(one, 5.0) else 0.0), plain.look(0.5 if advanced(alone, 0.5) else 0.0)
    assert slow.prefill_seconds_total == pytest.approx(10 * (usual.prefill_seconds_total or 0.0))
    assert slow.decode_ms_per_token == pytest.approx(10 * (usual.decode_ms_per_token or 0.0))


@pytest.mark.parametrize(
    ("now_s", "state"),
    [
        (5.0, NodeState.LOADING),
        (6.9, NodeState.LOADING),
        (7.0, NodeState.READY),
        (19.9, NodeState.READY),
        (20.0, NodeState.DRAINING),
    ],
)
def test_the_state_follows_the_plan(now_s: float, state: NodeState) -> None:
    one = node(joins_at_s=5, ready_after_s=2, leaves_at_s=20)
    assert one.state(now_s) is state
    assert Sampler(one, 0.0).look(now_s).state is state
    assert one.refuses(now_s) == (state is not NodeState.READY)
    assert one.gone(now_s) == (state is NodeState.DRAINING)


def test_every_signal_of_a_snapshot_is_told_but_those_that_no_simulated_engine_has() -> None:
    one = node()
    sampler = Sampler(one, 0.0)
    one.submit(Request("a", 1000, 100), 0.0)
    sampler.look(0.0)
    told = sampler.look(1.0 if advanced(one, 1.0) else 0.0)
    absent = {field.name for field in fields(Snapshot) if getattr(told, field.name) is None}
    assert absent == {"prefill_latency_ms", "adapter_slots_free", "not_ready_reason", "gpu_memory_usage"}
