"""SGLang's metrics pages, of both generations, with the numbers that a test wants."""


def labels(dp: int | None = None, tp: int = 0, pp: int = 0, **more: str) -> str:
    """Those of a scheduler's series."""
    every = {"engine_type": "unified", "model_name": "m", "pp_rank": str(pp), "tp_rank": str(tp), **more}
    if dp is not None:
        every["dp_rank"] = str(dp)
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(every.items())) + "}"


def also(where: str, name: str, value: str) -> str:
    """The labels with one more."""
    return where.replace("{", f'{{{name}="{value}",')


def scheduler(
    where: str = labels(),
    *,
    running: float = 0,
    queue: float = 0,
    grammar: float = 0,
    usage: float = 0.0,
    pages: float | None = 1000,
    page_size: float = 16,
    decoded: float | None = None,
) -> str:
    """One rank's gauges. Without `pages` it is a version before 0.5.11, with `decoded` one that counts steps."""
    size = (
        f"sglang:max_total_num_tokens{where} 4096\n"
        if pages is None
        else f"sglang:page_size{where} {page_size}\nsglang:num_pages{where} {pages}\n"
    )
    mode = also(where, "mode", "decode")
    steps = "" if decoded is None else f"sglang:realtime_tokens_total{mode} {decoded}\n"
    pid = also(where, "pid", "7")
    return f"""
sglang:num_running_reqs{where} {running}
sglang:num_running_reqs_offline_batch{where} 7777.0
sglang:num_queue_reqs{where} {queue}
sglang:num_grammar_queue_reqs{where} {grammar}
sglang:num_retracted_reqs{pid} 7777.0
sglang:num_paused_reqs{pid} 7777.0
sglang:token_usage{where} {usage}
sglang:num_used_tokens{where} {usage * 16000}
{size}{steps}"""


def computed(where: str = labels(), *, computed: float = 0, found: float | None = None) -> str:
    """Prompt tokens that the scheduler counts as prefills begin."""
    counts = {"prefill_compute": computed, "prefill_cache": found}
    return "".join(
        f"sglang:realtime_tokens_total{also(where, 'mode', mode)} {count}\n"
        for mode, count in counts.items()
        if count is not None
    )


def looked_up(where: str = labels(), **tokens: float) -> str:
    """Newer versions' tokens by where they were found."""
    return "".join(
        f"sglang:prefill_effective_tokens_total{also(where, 'mode', mode)} {count}\n" for mode, count in tokens.items()
    )


def stopwatch(where: str = labels(), *, prefills: tuple[float, float], queued_s: float) -> str:
    """Newer versions' times of prefills and in the queue; other stages are of no interest."""
    stage = "sglang:per_stage_req_latency_seconds"
    mine, other = (also(where, "stage", name) for name in ("prefill_forward", "decode_forward"))
    return f"""
{stage}_sum{mine} {prefills[0]}
{stage}_count{mine} {prefills[1]}
{stage}_sum{other} 7777.0
{stage}_count{other} 7777.0
sglang:queue_time_seconds_sum{where} {queued_s}
"""


def front(
    *,
    prompt: float | None = None,
    cached: float | None = None,
    first_tokens: tuple[float, float] | None = None,
    streamed: bool | None = None,
    gaps: tuple[float, float] | None = None,
    done: float = 0,
) -> str:
    """What its tokenizer's process counts, of all ranks."""
    stream = "" if streamed is None else f',is_streaming="{str(streamed).lower()}"'
    lines = f'sglang:num_requests_total{{model_name="m"}} {done}\n'
    for name, value in (("prompt_tokens_total", prompt), ("cached_tokens_total", cached)):
        if value is not None:
            lines += f'sglang:{name}{{model_name="m"}} {value}\n'
    for name, more, pair in (
        ("time_to_first_token_seconds", stream, first_tokens),
        ("inter_token_latency_seconds", "", gaps),
    ):
        if pair is not None:
            lines += f'sglang:{name}_sum{{model_name="m"{more}}} {pair[0]}\n'
            lines += f'sglang:{name}_count{{model_name="m"{more}}} {pair[1]}\n'
    return lines


def config_info(where: str = labels(), *, pages: str = "1000", page_size: str = "16") -> str:
    """The cache's size before 0.5.11."""
    return f"sglang:cache_config_info{also(also(where, 'num_pages', pages), 'page_size', page_size)} 1.0\n"


FULL = (
    scheduler(running=7, queue=3, usage=0.25, decoded=5)
    + computed(computed=900, found=100)
    + looked_up(input=900, device_hit=60, host_hit=40)
    + stopwatch(prefills=(4.0, 20), queued_s=6.0)
    + front(prompt=800, cached=80, first_tokens=(12.0, 20), streamed=True, gaps=(30.0, 1000), done=13)
    + f"sglang:lora_pool_slots_total{labels()} 8\nsglang:lora_pool_slots_used{labels()} 3\n"
)
"""One of a recent version, with adapters."""
