"""The metrics of TensorRT-LLM's own server, and of Triton before it, with the numbers that a test wants."""

from collections.abc import Mapping

LABELS = 'engine_type="trtllm",model_name="m"'


def trtllm_lines(
    *,
    running: float = 0,
    waiting: float = 0,
    decodes: float = 0,
    batch: Mapping[int, float] | None = None,
    used: float = 0,
    blocks: float = 1000,
    tokens_per_block: float = 32,
    step_s: float = 0.01,
    prompt: float = 0,
    cached: float = 0,
    finished: float = 0,
    ttft: tuple[float, float] = (0.0, 0),
    prefill: tuple[float, float] | None = None,
    per_token: tuple[float, float] = (0.0, 0),
) -> str:
    """A page; `batch` has the newer versions' batch by rank. Gauges come with the process that wrote them."""
    gauges = f'{{{LABELS},pid="7"}}'
    page = f"""# HELP trtllm_num_requests_running Active requests
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{gauges} {running}
trtllm_num_requests_waiting{gauges} {waiting}
trtllm_max_num_active_requests{gauges} 2048.0
trtllm_num_generation_requests{gauges} {decodes}
trtllm_num_context_requests{gauges} 777.0
trtllm_iteration_latency_seconds{gauges} {step_s}
trtllm_kv_cache_utilization{gauges} {used / blocks if blocks else 0.0}
trtllm_kv_cache_host_utilization{gauges} 0.777
trtllm_kv_cache_max_blocks{gauges} {blocks}
trtllm_kv_cache_used_blocks{gauges} {used}
trtllm_kv_cache_free_blocks{gauges} {blocks - used}
trtllm_kv_cache_tokens_per_block{gauges} {tokens_per_block}
trtllm_prompt_tokens_total{{{LABELS}}} {prompt}
trtllm_prompt_cached_tokens_total{{{LABELS}}} {cached}
trtllm_request_success_total{{{LABELS},finished_reason="stop"}} {finished}
trtllm_request_success_total{{{LABELS},finished_reason="length"}} 0.0
trtllm_time_to_first_token_seconds_bucket{{{LABELS},le="0.001"}} 77.0
trtllm_time_to_first_token_seconds_sum{{{LABELS}}} {ttft[0]}
trtllm_time_to_first_token_seconds_count{{{LABELS}}} {ttft[1]}
trtllm_time_per_output_token_seconds_sum{{{LABELS}}} {per_token[0]}
trtllm_time_per_output_token_seconds_count{{{LABELS}}} {per_token[1]}
"""
    if prefill is not None:
        page += f"trtllm_request_prefill_time_seconds_sum{{{LABELS}}} {prefill[0]}\n"
        page += f"trtllm_request_prefill_time_seconds_count{{{LABELS}}} {prefill[1]}\n"
    for rank, size in (batch or {}).items():
        page += f'trtllm_scheduled_batch_size{{{LABELS},pid="8",rank="{rank}"}} {size}\n'
    return page


def triton_lines(
    model: str = "tensorrt_llm",
    *,
    active: float = 0,
    scheduled: float = 0,
    waiting: float | None = None,
    generation: float | None = 0,
    used: float = 0,
    blocks: float = 1000,
    fraction: float | None = None,
    tokens_per_block: float = 64,
    iteration: float = 1,
    succeeded: float = 0,
) -> str:
    """A page of one model. `waiting`: what the engine makes of the two before, if not told otherwise."""
    labels = f'model="{model}",version="1"'
    told_waiting = active - scheduled if waiting is None else waiting
    told_fraction = (used / blocks if blocks else 0.0) if fraction is None else fraction
    page = f"""
nv_trt_llm_request_metrics{{{labels},request_type="active"}} {active}
nv_trt_llm_request_metrics{{{labels},request_type="scheduled"}} {scheduled}
nv_trt_llm_request_metrics{{{labels},request_type="waiting"}} {told_waiting}
nv_trt_llm_request_metrics{{{labels},request_type="context"}} 77
nv_trt_llm_request_metrics{{{labels},request_type="max"}} 512
nv_trt_llm_kv_cache_block_metrics{{{labels},kv_cache_block_type="max"}} {blocks}
nv_trt_llm_kv_cache_block_metrics{{{labels},kv_cache_block_type="used"}} {used}
nv_trt_llm_kv_cache_block_metrics{{{labels},kv_cache_block_type="free"}} {blocks - used}
nv_trt_llm_kv_cache_block_metrics{{{labels},kv_cache_block_type="fraction"}} {told_fraction}
nv_trt_llm_kv_cache_block_metrics{{{labels},kv_cache_block_type="tokens_per"}} {tokens_per_block}
nv_trt_llm_inflight_batcher_metrics{{{labels},inflight_batcher_specific_metric="micro_batch_id"}} 7
nv_trt_llm_general_metrics{{{labels},general_type="iteration_counter"}} {iteration}
nv_inference_request_success{{{labels}}} {succeeded}
nv_inference_pending_request_count{{{labels}}} 0
"""
    if generation is not None:
        page += (
            f'nv_trt_llm_inflight_batcher_metrics{{{labels},inflight_batcher_specific_metric="generation_requests"}} '
            f"{generation}\n"
        )
    return page
