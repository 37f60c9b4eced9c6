"""Ways to choose a node, compared for real: clients, Envoy and four emulated engines on this machine.

    .venv/bin/python -m bench.engines [--scenario curve,mixed,chats,unequal,faults] [--strategy least-added-delay,…]
        [--repetitions 3] [--requests 500] [--json FILE] [--markdown FILE]

In every repetition each way gets the same requests at the same moments (an open loop) before engines that are new, and
in the next one another way begins: what the machine does meanwhile meets all alike. Goodput is as in the simulator the
share of requests with TTFT < max(2 s, 5 × the isolated prefill) and TPOT < 100 ms. A strategy is one of extproc's,
`least-added-delay@4` for another w, or Envoy's own: ROUND_ROBIN, LEAST_REQUEST, RING_HASH (by session),
ROUND_ROBIN+outliers (with Envoy's outlier detection).
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.markup import escape

from bench.engines import curve
from bench.engines.comparing import Plan, carry_out
from bench.engines.scenarios import SCENARIOS, variant
from bench.machine import machine
from extproc.children import ChildFailedError

CURVE = "curve"
"""Beside the scenarios: one engine alone."""
_WIDTH_MIN = 132
"""What the tables need; in a file they shall not be folded."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


async def run(plan: Plan, console: Console) -> int:
    """Carry out a plan; the exit status: 130 when a signal ended it. However it ends, its children end first."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await carry_out(plan, console)
    except ChildFailedError as error:
        console.print(f"[red]✗[/red] {escape(str(error))}")
        return 1
    except asyncio.CancelledError:
        console.print("Stopped.")
        return 130
    return 0


def _listed(known: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A callback that splits names at commas; `known` raises KeyError or ValueError for one that there is not."""

    def split(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
        names = [name.strip() for name in value.split(",") if name.strip()]
        for name in names:
            try:
                known(name)
            except KeyError:
                msg = f"wanted {', '.join((CURVE, *SCENARIOS))}, got {name!r}"
                raise click.BadParameter(msg) from None
            except ValueError as error:
                raise click.BadParameter(str(error)) from None
        return names

    return split


@click.command(help=__doc__)
@click.option(
    "--scenario",
    "scenarios",
    default=",".join((CURVE, *SCENARIOS)),
    show_default=True,
    callback=_listed(lambda name: name == CURVE or SCENARIOS[name]),
)
@click.option("--strategy", "strategies", default="", callback=_listed(variant), help="Default: as the scenario says.")
@click.option("--repetitions", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--requests", default=500, show_default=True, type=click.IntRange(4, 20_000), help="Of each run.")
@click.option("--seed", default=1, show_default=True, help="Of the first repetition.")
@click.option("--json", "as_json", type=_FILE, help="Write the figures of every run there.")
@click.option("--markdown", type=_FILE, help="Write the tables there.")
def main(
    scenarios: list[str],
    strategies: list[str],
    repetitions: int,
    requests: int,
    seed: int,
    as_json: Path | None,
    markdown: Path | None,
) -> None:
    """Compare."""
    begun_s = time.monotonic()
    console = Console(width=max(Console().width, _WIDTH_MIN))
    plan = Plan(
        scenarios=[one for name in scenarios if name != CURVE for one in SCENARIOS[name]],
        loads=curve.LOADS if CURVE in scenarios else (),
        strategies=strategies,
        repetitions=repetitions,
        requests=requests,
        seed=seed,
        json=as_json,
        markdown=markdown,
    )
    console.print(f"{machine()}; load {os.getloadavg()[0]:.1f} before; about {plan.seconds / 60:.0f} min")
    status = uvloop.run(run(plan, console))
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")
    sys.exit(status)


if __name__ == "__main__":
    main()
