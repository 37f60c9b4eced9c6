"""What exact token counts cost, with real vocabularies: CPU, the next turn of a chat, the event loop, memory.

    .venv/bin/python -m bench.tokens [--family qwen3 …] [--quick]

The text is Python's own standard library, source and documentation, with made-up rare words in it; none comes twice.
Medians of several rounds or many chats; ratios are of one run. Two minutes, or --quick: 20 s.
"""

import os
import time
from dataclasses import replace

import click
import structlog
import uvloop
from rich.console import Console

from bench.machine import machine
from bench.tokens import bodies, cost, families, hostile, lag, memory
from bench.tokens.texts import FreshText

FAMILIES = ("qwen3", "llama3_1")


@click.command(help=__doc__)
@click.option("--family", "names", multiple=True, help="A folder of the cache; again for more. Default: two.")
@click.option(
    "--quick", is_flag=True, help="Fewer rounds, the first family; from table 4 on only the library that serves it."
)
def main(names: tuple[str, ...], quick: bool) -> None:
    """Measure."""
    begun_s = time.monotonic()
    console = Console()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # not between the tables
    asked = names or FAMILIES
    found = families.find(asked[:1] if quick else asked)
    if not found:
        msg = f"none of {', '.join(asked)} in {families.cache()}: run `make tokenizers`"
        raise click.ClickException(msg)
    text = FreshText()
    console.print(f"{machine()}; load {os.getloadavg()[0]:.1f} before")
    console.print("Text: Python's standard library in slices, with rare words; none comes twice")
    console.print(cost.exact_counts(found, text, rounds=3 if quick else 7))
    chatting = [one for one in found if one.loaded.template is not None]
    if chatting:
        console.print(uvloop.run(cost.short_chats(chatting, text, chats=100 if quick else 500)))
        console.print(uvloop.run(cost.growing_chats(chatting, text, chats=9 if quick else 25)))
    else:
        console.print("2 and 3 are left out: there is no chat template")
    if quick:
        found = [replace(one, models=(one.loaded,)) for one in found]
    console.print(lag.loop_lag(found, text, seconds=1.0 if quick else 2.5))
    console.print(lag.threads(found, text, seconds=0.7, rounds=1 if quick else 3))
    console.print(bodies.reading(text, rounds=3))
    console.print(hostile.hostile(found))
    prompts = (1000, 5000, 10_000) if quick else (10_000, 50_000, 100_000)
    console.print(memory.resident([one.name for one in found], prompts))
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


if __name__ == "__main__":
    main()
