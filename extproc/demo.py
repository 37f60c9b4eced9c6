"""The whole system on one machine, shown: real Envoy, three emulated engines, an agent for each, and serve.

What is shown is checked too: every request must be answered by the node that was chosen for it, and while serve is
dead by any node at all.
"""

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extproc.address import TcpAddress
from extproc.children import ChildFailedError
from extproc.fleet import ANY_PORT, BOOTSTRAP, Engine, Envoy, Fleet, Serve
from extproc.traffic import Answer, Ask, ask, chat, completion, mixed

MODEL = "demo"
SPEEDS = {"gpu-1": 1.0, "gpu-2": 0.7, "gpu-3": 0.4}
REQUESTS = 42
REQUESTS_FAIL_OPEN = 7
CONCURRENCY = 8
ENVOY_PORT = 8080
ADMIN_PORT = 9090
"""Both are taken where they are free; else the operating system names others."""

WIDTH = 100
"""Characters of a line that goes to a file or a pipe."""

REPORT_INTERVAL_S = 0.5
CONFIG = {"nodes": {"report_interval_s": REPORT_INTERVAL_S}}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_ALL = f", best of {len(SPEEDS)}"
"""What ends every reason here, and says nothing."""
PROBE = Ask("probe", "/v1/completions", completion(MODEL, "ping", output_tokens=1, stream=False))
LONG = Ask("long story", "/v1/chat/completions", chat(MODEL, "Tell me all.", output_tokens=150, stream=True))


@dataclass(slots=True)
class _System:
    fleet: Fleet
    client: aiohttp.ClientSession
    envoy: Envoy
    serve: Serve


Play = Callable[[Console, Fleet, aiohttp.ClientSession], Awaitable[tuple[list[str], Callable[[], None]]]]
"""Starts a system and shows it: what was not as it should be, and what says where it is to be found."""


async def run(console: Console, once: bool, play: Play | None = None) -> int:
    """Show the demo; the exit status: 0 when all went as it should, 1 when not, 130 when stopped before the end.

    `play`: what is shown, in place of one router.
    Without `once` the system then stays up until SIGINT, SIGTERM or SIGHUP. However it ends, the children end first.
    Their logs stay unless all went as it should.
    """
    if not console.is_terminal:
        console.width = WIDTH
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    folder = Path(tempfile.mkdtemp(prefix="extproc-demo-"))
    console.print(f"The logs of all parts are in {folder}", soft_wrap=True)
    faults: list[str] | None = None
    try:
        async with Fleet(folder) as fleet, aiohttp.ClientSession() as client:
            faults, say_where = await (play or _one_router)(console, fleet, client)
            for fault in faults:
                _say_fault(console, fault)
            if not once:
                say_where()
                await asyncio.Event().wait()
    except (ChildFailedError, FileNotFoundError) as error:
        _say_fault(console, str(error))
        return 1
    except asyncio.CancelledError:
        console.print("Stopped.")
        if faults is None:
            return 130
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        if faults == []:
            shutil.rmtree(folder)
    return 1 if faults else 0


async def _one_router(
    console: Console, fleet: Fleet, client: aiohttp.ClientSession
) -> tuple[list[str], Callable[[], None]]:
    system = await _start(console, fleet, client)
    return await _show(console, system), partial(_say_where, console, system)


async def engines_of(console: Console, fleet: Fleet) -> list[Engine]:
    """The emulated engines, started and said. Raises FileNotFoundError where there is nothing to run Envoy with."""
    if not BOOTSTRAP.exists():
        msg = f"the demo runs from a clone of the project: there is no {BOOTSTRAP}"
        raise FileNotFoundError(msg)
    engines = []
    for name, speed in SPEEDS.items():
        engine = await fleet.engine(name, MODEL, "--speed", str(speed))
        engines.append(engine)
        console.print(f"[green]✓[/green] engine {name}, speed {speed}, on {engine.address}")
    return engines


async def _start(console: Console, fleet: Fleet, client: aiohttp.ClientSession) -> _System:
    engines = await engines_of(console, fleet)
    serve = await fleet.serve(CONFIG | {"listen": {"admin": str(free(ADMIN_PORT))}})
    console.print(f"[green]✓[/green] extproc serve for Envoy on {serve.extproc}, for agents on {serve.agents}")
    for engine in engines:
        await fleet.agent(engine.name, engine.address, serve, interval_s=REPORT_INTERVAL_S)
    envoy = await fleet.envoy(serve, [engine.address for engine in engines], listen=free(ENVOY_PORT))
    console.print(f"[green]✓[/green] Envoy on {envoy.url}")
    system = _System(fleet, client, envoy, serve)
    await _choosing(system)
    console.print("[green]✓[/green] an agent for each engine has reported; nodes are being chosen")
    return system


async def _show(console: Console, system: _System) -> list[str]:
    """All that is to be seen; what was not as it should be."""
    answers = await _send(
        console, system, f"{REQUESTS} requests, {CONCURRENCY} at a time; times in seconds", mixed(MODEL, REQUESTS)
    )
    faults = [fault_of(request, answer) for request, answer in answers if not answer.as_chosen]

    console.print("Now serve is killed while an answer runs:")
    running = asyncio.create_task(ask(system.client, system.envoy.url, LONG))
    await system.fleet.until("the long story's start", lambda: _requests_open(system))
    await system.fleet.kill(system.serve.child)
    answers = await _send(console, system, "without serve: Envoy's own round robin", mixed(MODEL, REQUESTS_FAIL_OPEN))
    faults += [fault_of(request, answer) for request, answer in answers if not answer.served or answer.chosen]
    long = await running
    if long.as_chosen:
        console.print(f"[green]✓[/green] the answer that ran when serve died came whole, from {long.engine}")
    else:
        faults.append(fault_of(LONG, long))

    system.serve = await system.fleet.serve(CONFIG | {"listen": system.serve.listen})
    await _choosing(system)
    answers = await _send(console, system, "serve is back, and so are its choices", mixed(MODEL, REQUESTS_FAIL_OPEN))
    faults += [fault_of(request, answer) for request, answer in answers if not answer.as_chosen]
    if not faults:
        console.print(
            f"[green]✓[/green] {REQUESTS + REQUESTS_FAIL_OPEN} requests went to the node that was chosen for them,\n"
            f"  {REQUESTS_FAIL_OPEN} were served without serve, none was lost",
        )
    return faults


async def _choosing(system: _System) -> None:
    """Wait until every node is fresh and ready, and requests go where serve says."""

    async def ready() -> bool:
        return await system.fleet.nodes_ready(system.serve, SPEEDS)

    async def chosen() -> bool:
        return (await ask(system.client, system.envoy.url, PROBE)).as_chosen

    await system.fleet.until("three ready nodes", ready)
    await system.fleet.until("serve's choices", chosen)


async def _requests_open(system: _System) -> bool:
    nodes = (await system.fleet.json(f"http://{system.serve.admin}/nodes"))["nodes"]
    return any(node["own"]["sequences_open"] for node in nodes)


async def _send(console: Console, system: _System, title: str, asks: Sequence[Ask]) -> list[tuple[Ask, Answer]]:
    """Send the requests, a few at a time, and show each answer as it comes."""
    table = table_of(title)
    turns = asyncio.Semaphore(CONCURRENCY)

    async def send(request: Ask) -> tuple[Ask, Answer]:
        async with turns:
            answer = await ask(system.client, system.envoy.url, request)
        table.add_row(*row(request, answer))
        return request, answer

    console.print()
    with Live(table, console=console, refresh_per_second=8):
        answers = await asyncio.gather(*(send(request) for request in asks))
    console.line()
    return answers


def table_of(title: str, *first: str) -> Table:
    """Where each answer has a `row`, of one line in a terminal of 80 columns and more; after the columns `first`."""
    table = Table(title=title, title_justify="left", box=None, collapse_padding=True, pad_edge=False)
    for column in (*first, "request", "tokens", "phase", "node", "why", "HTTP", "TTFT", "all"):
        right = column in ("tokens", "HTTP", "TTFT", "all")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "why")
    return table


def row(request: Ask, answer: Answer) -> tuple[str | Text, ...]:
    """Why the node was chosen is the longest, and is cut where the line would break."""
    node = answer.engine or "-"
    return (
        request.label,
        answer.tokens or "-",
        answer.phase or "-",
        node if answer.chosen in (answer.engine, None) else f"[red]{node}, not {answer.chosen}[/red]",
        Text((answer.reason or "-").removesuffix(_OF_ALL), no_wrap=True, overflow="ellipsis"),
        str(answer.status) if answer.served else f"[red]{answer.status}[/red]",
        "-" if answer.first_byte_s is None else f"{answer.first_byte_s:.2f}",
        f"{answer.seconds:.2f}",
    )


def fault_of(request: Ask, answer: Answer) -> str:
    """What is said of an answer that was not as it should be."""
    return (
        f"{request.label} to {request.path}: status {answer.status}, {'whole' if answer.whole else 'cut'}, "
        f"chosen {answer.chosen}, answered by {answer.engine}: {answer.text[:200]}"
    )


def _say_fault(console: Console, fault: str) -> None:
    console.print(f"[red]✗ {escape(fault)}[/red]", highlight=False, soft_wrap=True)


def _say_where(console: Console, system: _System) -> None:
    console.print(
        "\nEverything stays up. Send more:\n"
        f"  curl -i {system.envoy.url}/v1/chat/completions \\\n"
        "    -H 'content-type: application/json' \\\n"
        f"""    -d '{{"model": "{MODEL}", "max_tokens": 16, "messages": [{{"role": "user", "content": "Hi"}}]}}'\n"""
        f"Nodes:               http://{system.serve.admin}/nodes\n"
        f"Decisions:           http://{system.serve.admin}/decisions?limit=3\n"
        f"Envoy's admin page:  {system.envoy.admin_url}\n"
        "Stop with Ctrl-C.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def free(port: int) -> TcpAddress:
    """This port of loopback, or any if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return ANY_PORT
    return TcpAddress("127.0.0.1", port)
