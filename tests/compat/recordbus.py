"""Records what the routers and agents of one release publish: run it in that release's own tree.

    python -m tests.compat.recordbus bus.jsonl

Each line is a message with its subject, its bytes in base64, in the order in which they came. The last line says what
there was to tell: each router's open requests, and the nodes.
"""

import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.e2e.routers import Site, site
from tests.serve.served import Served
from tests.waiting import until

OPEN = (3, 2)
"""Requests of each router."""


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    """A plain client of a server."""
    found = await nats.connect(url)
    try:
        yield found
    finally:
        await found.close()


async def record(folder: Path) -> list[dict[str, Any]]:
    """The lines of one exchange."""
    async with site(folder, engines=2) as at, client(at.nats.url) as ear:
        heard: list[Msg] = []

        async def hear(message: Msg) -> None:
            heard.append(message)

        await ear.subscribe("extproc.>", cb=hear)
        await ear.flush()
        routers = [await at.router(exchange={}) for _ in OPEN]
        await at.agent(at.engines, routers)
        await at.ready()
        await at.begin(OPEN)
        await at.agree()
        assert [await at.ask(one, 3, "word " * 200) for one in routers] == [
            200,
            200,
        ]  # long enough to be told as placed
        await until(lambda: tells(at, heard), 20)
        await at.agree()
        lines = [
            {"subject": one.subject, "message": base64.b64encode(one.data).decode()}
            for one in heard
            if ".echo." not in one.subject
        ]
        names = [await name_of(one) for one in routers]
        nodes = [one.name for one in at.engines]
        return [*lines, {"open": dict(zip(names, OPEN, strict=True)), "nodes": nodes}]


async def tells(at: Site, heard: list[Msg]) -> bool:
    channels = {one.subject.split(".")[2] for one in heard}
    return channels >= {"loads", "routers", "placements", "nodes"}


async def name_of(router: Served) -> str:
    return str((await router.get("/peers"))[1]["router"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as at:
        told = asyncio.run(record(Path(at)))
    Path(sys.argv[1]).write_text("".join(json.dumps(line) + "\n" for line in told))
    print(len(told), "lines")
