"""vLLM's metrics page, with just the lines that matter and the numbers that a test wants."""

from pathlib import Path

SAMPLES = Path(__file__).parent.parent / "samples"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def vllm_lines(
    engine: int = 0,
    *,
    running: float = 0,
    waiting: float = 0,
    first_tokens: float = 0,
    finished: float = 0,
    kv_usage: float = 0.0,
    blocks: int | str = 1000,
    block_size: int = 16,
    generated: float = 0,
    prefill: tuple[float, float] = (0.0, 0),
    decode: tuple[float, float] = (0.0, 0),
) -> str:
    label = f'engine="{engine}",model_name="m"'
    return f"""
vllm:num_requests_running{{{label}}} {running}
vllm:num_requests_waiting{{{label}}} {waiting}
vllm:num_requests_waiting_by_reason{{{label},reason="capacity"}} 7777.0
vllm:kv_cache_usage_perc{{{label}}} {kv_usage}
vllm:cache_config_info{{engine="{engine}",block_size="{block_size}",num_gpu_blocks="{blocks}"}} 1.0
vllm:time_to_first_token_seconds_count{{{label}}} {first_tokens}
vllm:request_success_total{{{label},finished_reason="stop"}} {finished}
vllm:request_success_total{{{label},finished_reason="length"}} 0.0
vllm:generation_tokens_total{{{label}}} {generated}
vllm:request_prefill_time_seconds_sum{{{label}}} {prefill[0]}
vllm:request_prefill_time_seconds_count{{{label}}} {prefill[1]}
vllm:inter_token_latency_seconds_sum{{{label}}} {decode[0]}
vllm:inter_token_latency_seconds_count{{{label}}} {decode[1]}
"""


def vllm_totals(
    engine: int = 0,
    *,
    prompt: float = 0,
    computed: float | None = None,
    queries: float = 0,
    hits: float = 0,
    first_tokens_s: float = 0.0,
) -> str:
    """What it counts since its start, to stand below `vllm_lines`. Versions that tell no source have no `computed`."""
    label = f'engine="{engine}",model_name="m"'
    source = f"vllm:prompt_tokens_by_source_total{{{label},source="
    by_source = (
        ""
        if computed is None
        else f"""
{source}"local_compute"}} {computed}
{source}"local_cache_hit"}} 777.0
{source}"external_kv_transfer"}} 77.0"""
    )
    return f"""
vllm:prompt_tokens_total{{{label}}} {prompt}
vllm:prefix_cache_queries_total{{{label}}} {queries}
vllm:prefix_cache_hits_total{{{label}}} {hits}
vllm:time_to_first_token_seconds_sum{{{label}}} {first_tokens_s}{by_source}
"""


def vllm_adapters(slots: int | str, running: str, waiting: str = "", at_s: float | str = 1.8e9) -> str:
    labels = f'max_lora="{slots}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {at_s}\n"


def started(at_s: float) -> str:
    return f"process_start_time_seconds {at_s}\n"
