"""The demo as a user sees it, and that it leaves nothing behind."""

import asyncio
import io
import re
import signal
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from extproc import demo
from extproc.children import Child, ourselves
from extproc.traffic import Answer, Ask

ROW = r"^[a-z ]+ [0-9-]+ .* (200|503) +(-|[0-9.]+) +[0-9.]+ *$"
"""A line of the tables: a whole request."""


def living(folder: str) -> list[str]:
    """Command lines of running processes that were told of the demo's folder, or are of its engines and agents."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace").split("\0")
            log = (process.parent / "fd" / "1").readlink()
        except OSError:
            continue
        if str(log).startswith(folder):
            found.append(" ".join(words))
    return found


def exists(folder: str) -> bool:
    return Path(folder).exists()


async def test_the_demo_shows_everything_stays_up_and_ends_with_all_its_children(tmp_path: Path) -> None:
    child = await Child.start("demo", ourselves("demo"), tmp_path)
    try:
        said = await child.logged(r"(?s)The logs of all parts are in (\S+).*Stop with Ctrl-C\.", within_s=90)
        folder = said[1]
        assert "49 requests went to the node that was chosen for them,\n  7 were served without serve" in said[0]
        assert "✗" not in said[0]
        assert len(re.findall(ROW, said[0], re.MULTILINE)) == demo.REQUESTS + 2 * demo.REQUESTS_FAIL_OPEN
        assert len(living(folder)) == 8, "three engines, three agents, serve and Envoy"
        where = re.search(r"curl -i (http://\S+)", said[0])
        assert where is not None
        body = {"model": demo.MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        async with aiohttp.ClientSession() as client, client.post(where[1], json=body) as response:
            assert response.status == 200
            assert response.headers["x-engine"] == response.headers["x-extproc-node"]
        child.signal(signal.SIGINT)
        assert await child.ended() == 0
        assert living(folder) == []
        assert not exists(folder), "nobody needs the logs of what went well"
    finally:
        await child.stop()


async def test_a_demo_that_is_stopped_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    child = await Child.start("demo", ourselves("demo", "--once"), tmp_path)
    try:
        folder = (await child.logged(r"(?s)The logs of all parts are in (\S+).*extproc serve for Envoy", within_s=60))[
            1
        ]
        assert len(living(folder)) >= 4
        child.signal(signal.SIGTERM)
        assert await child.ended() == 130
        assert living(folder) == []
    finally:
        await child.stop()


async def test_a_part_that_cannot_start_is_named_and_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SPEEDS", {"gpu-1": 1.0, "gpu 2": 1.0})
    output = io.StringIO()
    assert await demo.run(Console(file=output, width=200), once=True) == 1
    assert "gpu 2 ended with status 2" in output.getvalue()
    assert "name: wanted 1 to 64 printable ASCII characters" in output.getvalue()
    folder = output.getvalue().splitlines()[0].rsplit(" ", 1)[1]
    assert living(folder) == []
    assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


@pytest.mark.parametrize(
    ("width", "why"),
    [
        (80, "least-added-delay 0.000125"),
        (100, "least-added-delay 0.000125"),
        (74, "least-added-delay 0.…"),
    ],
)
@pytest.mark.parametrize("engine", ["gpu-1", "gpu-2"])
def test_each_request_stands_in_one_line(width: int, why: str, engine: str) -> None:
    answer = Answer(
        status=200,
        text="",
        whole=True,
        engine=engine,
        chosen="gpu-1",
        reason="least-added-delay 0.000125, best of 3",
        phase="prefill-heavy",
        tokens="12345",
        policy=None,
        first_byte_s=0.5,
        seconds=10.25,
    )
    output = io.StringIO()
    table = demo.table_of("")
    table.add_row(*demo.row(Ask("chat once", "/", {}), answer))
    Console(file=output, width=width).print(table)
    line = output.getvalue().splitlines()[-1]
    assert re.fullmatch(ROW, line), line
    if engine == "gpu-1":
        assert why in line
