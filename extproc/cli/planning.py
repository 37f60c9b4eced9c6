"""The command that says how many nodes are needed."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from extproc.cli.common import CONFIG_FILE, refuse


@click.command()
@click.option("--trace", required=True, help="A file of Azure's or Mooncake's traces, or generated:heavy and the like.")
@click.option("--ttft", default="2s", show_default=True, help="Time to first token, at most.")
@click.option("--tpot", help="Mean time from token to token, at most.  [default: any]")
@click.option("--share", type=float, default=0.95, show_default=True, help="Of all requests that must be in time.")
@click.option("--nodes-max", type=click.IntRange(1, 1024), default=64, show_default=True, help="No more are tried.")
@click.option("--requests", type=click.IntRange(1, 200_000), default=20_000, show_default=True, help="At most so many.")
@click.option("--for", "for_", help="Only what comes in so long, as 10m.")
@click.option("--rate-factor", type=float, default=1.0, show_default=True, help="So many times faster than the trace.")
@click.option("--window", help="Also the nodes that each so long piece of the trace needs, as 60s.")
@click.option("--lead-in", default="30s", show_default=True, help="Simulated before each window, and not judged.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of each number of nodes."
)
@click.option("--node", type=CONFIG_FILE, help="A fleet file, whose first entry says what all nodes are like.")
@click.option("--speed", type=float, help="Of a node: 2 halves the time of every step.")
@click.option("--kv-blocks", type=int, help="Of a node, of 16 tokens each.")
@click.option("--kv-memory", help="Of a node, as 40GiB: KV blocks by the shape of --model.")
@click.option("--model", help="A known model, as Llama-3.3-70B. How fast it is stands in --profile.")
@click.option("--kv-fp8", is_flag=True, help="A number in --kv-memory takes one byte instead of two.")
@click.option("--sequences-max", type=int, help="That a node runs at once.")
@click.option("--step-tokens-max", type=int, help="That a node computes in one step.")
@click.option("--strategy", default="least-added-delay", show_default=True, help="Also as name:setting=value.")
@click.option("--policy", type=CONFIG_FILE, help="A YAML file with the other settings of the policy.")
@click.option("--profile", type=CONFIG_FILE, help="A YAML file with the times of an engine's steps.")
@click.option("--snapshot-interval", default="1s", show_default=True, help="How often agents report.")
@click.option("--delay", default="1ms", show_default=True, help="One way, between routers and nodes.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes.  [default: one for each CPU]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    jobs: int | None,
    as_json: bool,
    speed: float | None,
    kv_blocks: int | None,
    sequences_max: int | None,
    step_tokens_max: int | None,
    **options: Any,
) -> None:
    """Say how many nodes a trace needs, by simulating it with the code that serve runs.

    \b
    At the trace's own pace, or with twice as many users:
      extproc plan --trace azure.csv --ttft 2s --share 0.95
      extproc plan --trace azure.csv --rate-factor 2 --window 60s --json
      extproc plan --trace generated:conv --requests 5000 --node fleet.yaml

    The answer is enough, and one node less is not. Exit status 1 if not even --nodes-max are.
    """
    from rich.console import Console

    from extproc import comparing, planning, plantable, runprogress
    from extproc.sim import fleetsize

    shape = {
        "speed": speed,
        "kv_blocks": kv_blocks,
        "sequences_max": sequences_max,
        "step_tokens_max": step_tokens_max,
    }
    asked = planning.understood(shape=shape, **options)
    if isinstance(asked, list):
        refuse(asked)
    jobs = jobs or comparing.jobs_default()
    terminal = Console(stderr=True)
    terminal.print(planning.announced(asked, jobs), highlight=False, soft_wrap=True)
    with runprogress.told(terminal, jobs) as tell:
        sized = fleetsize.size(asked.sizing, jobs, tell)
    if as_json:
        click.echo(json.dumps(planning.as_json(asked, sized), indent=2))
    else:
        plantable.show(asked, sized, Console(highlight=False))
    if sized.cut:
        click.echo(f"{sized.cut} requests were longer than a node's context, and were cut to it.", err=True)
    sys.exit(sized.needed.nodes is None)
