"""What an agent would tell of a simulated node: what it reads out of a vLLM's metrics, by the same rules.

The gauges are those of the last finished step, and a sample is as old as the last look at which the engine had gone on.
"""

from typing import Final

from extproc.core.snapshot import ServedModel, Snapshot
from extproc.sim.node import Node

MODEL: Final = "simulated"
"""What every node serves and every request asks for."""


class Sampler:
    """Looks at one node, again and again."""

    def __init__(self, node: Node, round_trip_s: float) -> None:
        self._node = node
        self._round_trip_s = round_trip_s
        self._models = (ServedModel(MODEL, context_length_tokens=node.engine.settings.context_length_tokens),)
        self._looks = 0
        self._marks: tuple[float, ...] | None = None
        self._sampled_at_s = 0.0
        self._gaps: tuple[float, int] = (0.0, 0)
        """Seconds between tokens, and how many gaps, until the look before."""

    def look(self, now_s: float) -> Snapshot:
        """What the agent sends now. The node must have been advanced until now."""
        node, settings, counters = self._node, self._node.engine.settings, self._node.engine.counters
        running, waiting = counters.num_requests_running, counters.num_requests_waiting
        finished = sum(counters.request_success.values())
        usage, generated = counters.kv_cache_usage, counters.generation_tokens
        marks = (generated, counters.prompt_tokens, running, waiting, node.first_tokens, finished, usage)
        # A page on which nothing has moved still shows the step of then; where there is no work it is news.
        if marks != self._marks or not running + waiting:
            self._sampled_at_s = now_s
        self._marks = marks
        self._looks += 1
        decoding = min(max(0, node.first_tokens - finished), running)
        return Snapshot(
            node_id=node.name,
            host=node.host,
            boot_id=node.name,
            sequence=self._looks,
            sample_age_s=now_s - self._sampled_at_s,
            state=node.state(now_s),
            models=self._models,
            # Engines keep a GPU busy as long as they have anything to do.
            gpu_utilization=1.0 if node.engine.requests_open else 0.0,
            kv_usage=usage,
            kv_block_size_tokens=settings.block_size_tokens,
            kv_blocks_total=settings.kv_blocks,
            kv_blocks_available=round((1 - usage) * settings.kv_blocks),
            pending_prefills=running + waiting - decoding,
            active_decodes=decoding,
            requests_running=running,
            requests_waiting=waiting,
            decode_ms_per_token=self._decode_ms(now_s),
            prefill_tokens_total=counters.prompt_tokens_computed,
            prefill_seconds_total=node.first_token_waits_s,
            first_tokens_total=node.first_tokens,
            prefix_queries_total=counters.prefix_cache_queries,
            prefix_hits_total=counters.prefix_cache_hits,
            round_trip_s=self._round_trip_s,
        )

    def _decode_ms(self, now_s: float) -> float | None:
        """Mean gap between tokens since the look before, by the simulation's clock."""
        histogram, pace = self._node.engine.counters.inter_token_latency, self._node.clock.pace(now_s)
        seconds, count = self._gaps
        self._gaps = (histogram.sum, histogram.count)
        if histogram.count == count or not pace:
            return None
        return (histogram.sum - seconds) / (histogram.count - count) / pace * 1000
