"""Which signals tell of first tokens, on a recorded run: clients, the real Envoy and four unequal emulated engines.

    .venv/bin/python -m bench.signals [--requests 2500] [--load 0.8] [--keep FOLDER]

The run is made twice with the same requests: all chosen by least-added-delay, and half of them left to the round robin
by a canary. Of each journal `extproc correlate` prints its table, of the second one for both arms, and `extproc replay`
says whether every decision came out the same. `--keep` leaves journals, plots and JSON in a folder.
"""

import asyncio
import dataclasses
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
import uvloop
import yaml
from rich.console import Console

from bench.engines.client import Target, ask_all
from bench.engines.scenarios import UNEQUAL, Scenario
from bench.engines.workloads import MODEL, Timed
from bench.machine import machine
from extproc.address import TcpAddress
from extproc.children import ourselves
from extproc.fleet import BOOTSTRAP, Fleet
from extproc.render import bootstrap
from extproc.render.description import Description, parse
from extproc.traffic import Ask, ask, completion

JOURNAL: Final = "journal"
POLICY: Final = "recorded"
RUNS: Final[dict[str, dict[str, Any]]] = {
    "least-added-delay": {"strategy": "least-added-delay"},
    "canary": {"strategy": "least-added-delay", "canary": 50},
}
_INTERVAL_S: Final = 1.0
_PROBE: Final = Ask("probe", "/v1/completions", completion(MODEL, "ping", output_tokens=1, stream=False))


def shows_first_tokens() -> str:
    """The bootstrap of the demo, whose routes show first tokens and have the policy that is recorded."""
    mapping = yaml.safe_load(BOOTSTRAP.with_name("demo.render.yaml").read_text())
    for route in mapping["routes"]:
        route |= {"first_tokens": True, "policy": POLICY}
    described = parse(mapping)
    assert isinstance(described, Description), described
    text = bootstrap.render(described)
    assert isinstance(text, str), text
    return text


async def record(scenario: Scenario, policy: dict[str, Any], asked: Sequence[Timed], folder: Path) -> str:
    """Send the requests through a system that writes a journal into the folder; how clients fared."""
    (folder / "envoy.yaml").write_text(shows_first_tokens())
    async with Fleet(folder) as fleet, aiohttp.ClientSession() as client:
        engines = await asyncio.gather(*(fleet.engine(one.name, MODEL, *one.options) for one in scenario.nodes))
        config = {
            "journal": {"path": JOURNAL},
            "nodes": {"report_interval_s": _INTERVAL_S},
            "policies": {POLICY: policy | {"leave_after_first_token": True}},
        }
        serve = await fleet.serve(config)
        envoy = await fleet.envoy(serve, [one.address for one in engines], bootstrap=folder / "envoy.yaml")
        await asyncio.gather(*(fleet.agent(one.name, one.address, serve, interval_s=_INTERVAL_S) for one in engines))
        await fleet.until("ready nodes", lambda: fleet.nodes_ready(serve, [one.name for one in engines]))

        async def probed() -> bool:
            return (await ask(client, envoy.url, _PROBE)).as_chosen

        await fleet.until("choices", probed)
        host, _, port = envoy.url.removeprefix("http://").rpartition(":")
        gc.collect()
        gc.freeze()
        outcomes = await ask_all(asked, Target(TcpAddress(host, int(port)), False, scenario.patience_s), lambda _: None)
    failures = dict(Counter(one.failure for one in outcomes if one.failure))
    late_ms = sorted(one.late_s * 1000 for one in outcomes)[len(outcomes) * 99 // 100]
    return f"{len(asked)} requests, sent late by {late_ms:.0f} ms (p99), answers not whole: {failures or 'none'}"


def tell(folder: Path, *arguments: str) -> None:
    """Run a command of ours on the folder's journal."""
    command, *options = arguments
    subprocess.run(ourselves(command, str(folder / JOURNAL), *options), check=False)


@click.command(help=__doc__)
@click.option("--requests", default=2500, show_default=True, type=click.IntRange(50, 100_000), help="Of each run.")
@click.option("--load", default=0.8, show_default=True, type=click.FloatRange(0.05, 2), help="Of the capacity.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Leave all of it there.")
def main(requests: int, load: float, keep: Path | None) -> None:
    """Record and correlate."""
    scenario = dataclasses.replace(UNEQUAL, load=load)
    asked = scenario.asked(requests, seed=1)
    console = Console(width=160)
    console.print(f"{machine()}; {requests} requests, {scenario.rate_per_s:.1f}/s, load {load}")
    with tempfile.TemporaryDirectory(prefix="extproc-signals-") as temporary:
        for name, policy in RUNS.items():
            folder = (keep or Path(temporary)) / name
            folder.mkdir(parents=True)
            begun_s = time.monotonic()
            fared = uvloop.run(record(scenario, policy, asked, folder))
            load_1m = os.getloadavg()[0]
            console.print(f"\n[bold]{name}[/bold]: {fared}; {time.monotonic() - begun_s:.0f} s, load {load_1m:.1f}")
            for arm in ([], ["--arm", "control"])[: 1 + ("canary" in policy)]:
                sys.stdout.flush()
                tell(folder, "correlate", *arm, "--plot", str(folder / f"signals{''.join(arm)}.png"))
            tell(folder, "replay")


if __name__ == "__main__":
    main()
