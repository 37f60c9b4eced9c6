"""What it costs to learn of first tokens and ends, through the real Envoy, for answers that are streamed.

    .venv/bin/python -m bench.firsttoken [--seconds 4] [--rounds 3] [--connections 32] [--case nothing --case head]

CPU is that of `serve` and of Envoy (user and system, from /proc), a request. All cases share one `serve` and one
engine, which streams a piece every 5 ms; each has an Envoy of its own. Rounds are interleaved, so that a machine whose
speed drifts treats all alike; the table has their medians, and the ratio of both processes together to the first case.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from bench.wire import choosing, cpu_s, keep_reporting
from extproc.address import TcpAddress
from extproc.children import Child
from extproc.fleet import BOOTSTRAP, Fleet, Serve

PIECES = (20, 200)
LEAVING = '{"name": "bench", "leave_after_first_token": true}'


class Bootstrap:
    """The bootstrap that is shipped, with the parts that the cases change."""

    def __init__(self) -> None:
        self.mapping = yaml.safe_load(BOOTSTRAP.read_text())
        resources = self.mapping["static_resources"]
        self.hcm = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        filters = {one["name"]: one for one in self.hcm["http_filters"]}
        self.usage = filters["usage-of-answers"]
        self.ext_proc = filters["envoy.filters.http.ext_proc"]["typed_config"]
        (extproc,) = (one for one in resources["clusters"] if one["name"] == "extproc")
        extproc["health_checks"][0]["interval"] = extproc["health_checks"][0]["no_traffic_interval"] = "60s"
        self.stdout, *self.logs = self.hcm["access_log"]
        self.hcm["access_log"] = [self.stdout]

    def show(self, *, head: bool, pieces: bool) -> None:
        """What extproc sees of answers."""
        mode = self.ext_proc["processing_mode"]
        mode["response_header_mode"] = "SEND" if head else "SKIP"
        mode["response_body_mode"] = "STREAMED" if pieces else "NONE"

    def log(self, **common: Any) -> None:
        """Tell ends, as shipped but for these settings."""
        self.hcm["access_log"] = [self.stdout, *self.logs]
        for one in self.logs:
            one["typed_config"]["common_config"] |= common

    def leave(self) -> None:
        """Leave streams after the first token."""
        (policy,) = self.ext_proc["grpc_service"]["initial_metadata"]
        policy["value"] = LEAVING

    def tell_usage(self) -> None:
        """Have Envoy read answers' usage."""
        self.usage["disabled"] = False


def head(made: Bootstrap) -> None:
    """The head alone."""
    made.show(head=True, pieces=False)


def first_piece(made: Bootstrap) -> None:
    """Head and first piece; then the stream is left."""
    made.show(head=True, pieces=True)
    made.leave()
    made.log()


def all_pieces(made: Bootstrap) -> None:
    """Head and every piece."""
    made.show(head=True, pieces=True)


def head_and_log(made: Bootstrap) -> None:
    """The head and the end."""
    made.show(head=True, pieces=False)
    made.log()


def usage(made: Bootstrap) -> None:
    """The log, with what engines say of tokens."""
    made.log()
    made.tell_usage()


CASES: dict[str, Callable[[Bootstrap], None]] = {
    "nothing": lambda _: None,
    "head": head,
    "log": lambda made: made.log(),
    "log at once": lambda made: made.log(buffer_size_bytes=0),
    "log, usage": usage,
    "head, log": head_and_log,
    "first piece, log": first_piece,
    "all pieces": all_pieces,
}


@dataclass(frozen=True, slots=True)
class Case:
    """An Envoy and what it was made to show."""

    name: str
    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Round:
    """What one measurement found."""

    serve_us: float
    envoy_us: float
    requests_per_s: float
    first_p50_ms: float
    first_p99_ms: float


async def load(case: Case, serve: Serve, pieces: int, connections: int, seconds: float) -> Round:
    """Run the clients in a process of their own."""
    host, _, port = case.url.removeprefix("http://").partition(":")
    before = cpu_s(serve.child.pid), cpu_s(case.pid)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.pieces", "clients", host, port),
        *(str(pieces), str(connections), str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    found: dict[str, Any] = json.loads(output)
    if set(found["statuses"]) != {"200"} or found["pieces"] != pieces * found["requests"]:
        msg = f"{case.name}: {found}"
        raise RuntimeError(msg)
    serve_s, envoy_s = cpu_s(serve.child.pid) - before[0], cpu_s(case.pid) - before[1]
    return Round(
        serve_us=serve_s / found["requests"] * 1e6,
        envoy_us=envoy_s / found["requests"] * 1e6,
        requests_per_s=found["requests"] / found["seconds"],
        first_p50_ms=found["p50_ms"],
        first_p99_ms=found["p99_ms"],
    )


async def measure(names: Sequence[str], seconds: float, rounds: int, connections: int, console: Console) -> None:
    """Start everything, load it in turns, print the table."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="extproc-bench-")))
        engine_child = await Child.start("engine", [sys.executable, "-m", "bench.pieces", "engine"], folder)
        stack.push_async_callback(engine_child.stop)
        engine = TcpAddress("127.0.0.1", int((await engine_child.logged(r"listening on (\d+)", within_s=20))[1]))
        fleet = await stack.enter_async_context(Fleet(folder))
        serve = await fleet.serve({})
        reporting = asyncio.create_task(keep_reporting(serve, engine))
        stack.callback(reporting.cancel)
        cases = []
        for name in names:
            place = folder / name
            place.mkdir()
            made = Bootstrap()
            CASES[name](made)
            (place / "bootstrap.yaml").write_text(yaml.safe_dump(made.mapping))
            own = await stack.enter_async_context(Fleet(place))
            envoy = await own.envoy(serve, [engine], bootstrap=place / "bootstrap.yaml")
            await choosing(own, envoy.url)
            cases.append(Case(name, envoy.url, envoy.child.pid))
        for pieces in PIECES:
            for case in cases:
                await load(case, serve, pieces, connections, 1)
            found: dict[str, list[Round]] = {case.name: [] for case in cases}
            for number in range(rounds):
                for case in cases:
                    console.print(f"[dim]{pieces} pieces, round {number + 1} of {rounds}: {case.name}[/dim]")
                    found[case.name].append(await load(case, serve, pieces, connections, seconds))
            console.print(table_of(found, pieces, connections))


def table_of(found: dict[str, list[Round]], pieces: int, connections: int) -> Table:
    """Medians of the rounds."""
    title = f"{pieces} pieces, {connections} connections · {machine()}"
    table = Table(title=title, title_justify="left")
    columns = ("case", "serve µs", "Envoy µs", "both", "requests/s", "first p50 ms", "p99 ms")
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    first: float | None = None
    for name, rounds in found.items():
        serve, envoy, rate, p50, p99 = (
            statistics.median(getattr(one, field) for one in rounds) for field in Round.__dataclass_fields__
        )
        first = first or serve + envoy
        table.add_row(
            *(name, f"{serve:.0f}", f"{envoy:.0f}", f"{(serve + envoy) / first:.2f}"),
            *(f"{rate:.0f}", f"{p50:.1f}", f"{p99:.1f}"),
        )
    return table


@click.command(help=__doc__)
@click.option("--seconds", default=4.0, show_default=True, help="Length of each measurement.")
@click.option("--rounds", default=3, show_default=True, help="Measurements of each case.")
@click.option("--connections", default=32, show_default=True, help="Requests at a time.")
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Only these, in this order.")
def main(seconds: float, rounds: int, connections: int, names: tuple[str, ...]) -> None:
    """Measure."""
    begun_s = time.monotonic()
    console = Console()
    asyncio.run(measure(names or tuple(CASES), seconds, rounds, connections, console))
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


if __name__ == "__main__":
    main()
