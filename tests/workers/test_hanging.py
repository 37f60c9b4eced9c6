"""A worker of `serve --workers` that is stopped by a signal: it neither ends nor answers."""

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.address import TcpAddress
from extproc.children import Child
from extproc.fleet import Fleet, Serve
from tests.serve.served import ANY_PORTS
from tests.waiting import until
from tests.workers.crewed import Crewed, is_there

_SERVES = """
from extproc.workers import pulse
pulse.HUNG_S_MAX = {hung_s_max}
from extproc.cli import main
main()
"""


@asynccontextmanager
async def serving(folder: Path, hung_s_max: float, **config: object) -> AsyncIterator[tuple[Crewed, list[int]]]:
    """Two workers, and their process ids as the log names them."""
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"listen": ANY_PORTS, "workers": 2} | config))
    command = [sys.executable, "-c", _SERVES.format(hung_s_max=hung_s_max), "serve", "--config", str(path)]
    async with Fleet(folder) as fleet, aiohttp.ClientSession() as client:
        child = await Child.start("serve", command, folder)
        try:
            await child.logged('"listening"', within_s=30)
            line = json.loads(next(one for one in child.log.read_text().splitlines() if '"listening"' in one))
            at = {name: TcpAddress("127.0.0.1", int(line[name].rpartition(":")[2])) for name in ANY_PORTS}
            one = Crewed(fleet, Serve(child, **at), client)
            assert sorted(line["pids"]) == one.pids
            yield one, line["pids"]
        finally:
            await child.kill()


async def states(one: Crewed) -> dict[str, float]:
    return {sample.labels["state"]: sample.value for sample in await one.samples("extproc_workers")}


def hangs(one: Crewed, number: int) -> Any:
    return one.serve.child.logged(f'"worker": {number}.*"worker does not answer"', within_s=10)


async def test_one_that_stays_so_is_started_again(tmp_path: Path) -> None:
    async with serving(tmp_path, hung_s_max=4) as (one, pids):
        os.kill(pids[1], signal.SIGSTOP)
        await hangs(one, 1)
        assert await states(one) == {"listening": 1, "hung": 1, "away": 0}
        await one.serve.child.logged('"worker is killed: it did not answer"', within_s=15)
        await one.serve.child.logged('"worker is there again"', within_s=20)
        assert await states(one) == {"listening": 2, "hung": 0, "away": 0}
        assert not is_there(pids[1])
        assert is_there(pids[0])


async def test_one_that_goes_on_in_time_is_left_alone_and_says_nothing_of_readers_that_left(tmp_path: Path) -> None:
    async with serving(tmp_path, hung_s_max=60) as (one, pids):
        os.kill(pids[0], signal.SIGSTOP)
        await hangs(one, 0)
        for page in ("/metrics", "/nodes", "/decisions"):
            await one.text(page)
        os.kill(pids[0], signal.SIGCONT)
        await one.serve.child.logged('"worker answers again"', within_s=10)
        assert await states(one) == {"listening": 2, "hung": 0, "away": 0}
        assert one.pids == sorted(pids)
        log = one.serve.child.log.read_text()
        assert log.count('"worker does not answer"') == 1
        assert "Traceback" not in log


async def test_one_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path, hung_s_max=600, drain_s=600) as (one, pids):
        os.kill(pids[1], signal.SIGSTOP)
        began_s = time.monotonic()
        one.serve.child.signal(signal.SIGTERM)
        assert await one.serve.child.ended() == 0
        assert time.monotonic() - began_s < 60
        await until(lambda: not any(is_there(pid) for pid in pids))
