"""What reading a page of metrics costs: our reader, one regular expression over all names, and Prometheus' own parser.

    .venv/bin/python -m bench.exposition

Medians of several rounds, processor time of this thread, one page of each kind that the tests have. All three look for
the same names: those that the adapter of the page's engine wants, or all of the page.
"""

import re
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.agent.engines import llamacpp, vllm
from extproc.agent.engines.exposition import samples_of

AIM_MS = 0.5
"""For the busy vLLM's page."""
SAMPLES = Path(__file__).parent.parent / "tests" / "samples"
PAGES: Mapping[str, Collection[str]] = {
    "vllm_0.32.0_cpu_load_3.prom": vllm._WANTED,
    "vllm_0.32.0_cpu_smallcache_5.prom": vllm._WANTED,
    "vllm_0.32.0_cpu_idle_fresh.prom": vllm._WANTED,
    "llamacpp_b10434_load_2.prom": llamacpp._WANTED,
}
ROUNDS = 15
_LINE = re.compile(r"\n([a-zA-Z_:][a-zA-Z0-9_:]*+)(\{[^\n}]*+\})?[ \t]++([^\s]++)")


def by_prometheus(text: str, names: Collection[str]) -> int:
    """Samples of the names that its parser finds; it can only read all."""
    families = text_string_to_metric_families(text)
    return sum(sample.name in names for family in families for sample in family.samples)


def by_expression(text: str, names: Collection[str]) -> int:
    """The same by one expression over every line, without its labels being taken apart."""
    return sum(name in names and float(value) is not None for name, _, value in _LINE.findall("\n" + text))


def by_us(text: str, names: Collection[str]) -> int:
    """The same by our reader, labels and all."""
    return sum(map(len, samples_of(text, names).values()))


def milliseconds(call: Callable[[], object], calls: int) -> float:
    """Median over the rounds of the processor time of one call."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        for _ in range(calls):
            call()
        rounds.append((time.thread_time() - begun) / calls * 1000)
    return statistics.median(rounds)


def main() -> None:
    """Print the table."""
    columns = ("page", "KB", "names", "samples", "ours ms", "all of it ms", "one expression ms", "prometheus_client ms")
    table = Table(*columns, "times ours", title=f"{machine()}; aim: {AIM_MS} ms for the first")
    for page, names in PAGES.items():
        text = (SAMPLES / page).read_text()
        every = frozenset(re.findall(r"^[a-zA-Z_:][a-zA-Z0-9_:]*", text, re.MULTILINE))
        found = by_us(text, names)
        assert found == by_expression(text, names)
        ours = milliseconds(partial(by_us, text, names), 20)
        whole = milliseconds(partial(by_us, text, every), 5)
        one = milliseconds(partial(by_expression, text, names), 20)
        theirs = milliseconds(partial(by_prometheus, text, names), 1)
        table.add_row(
            page,
            f"{len(text) / 1000:.0f}",
            str(len(names)),
            str(found),
            *(f"{ms:.3f}" for ms in (ours, whole, one, theirs)),
            f"{theirs / ours:.0f}",
        )
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
