"""A whole system as child processes: emulated engines, their agents, `extproc serve` and Envoy, all on loopback.

Each part takes its ports from the operating system and says in its log which ones it got. What a part must know of
another it is told at its start, so the order is: engines and serve, then agents and Envoy.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from extproc import address, envoyconf
from extproc.address import Address, TcpAddress
from extproc.children import Child, ChildFailedError, envoy_binary, nats_binary, ourselves

ANY_PORT = TcpAddress("127.0.0.1", 0)
BOOTSTRAP = Path(__file__).parent.parent / "envoy" / "demo.yaml"
"""The bootstrap of a clone; an installed package has none."""

T = TypeVar("T")

_START_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Engine:
    """A running emulated engine."""

    name: str
    child: Child
    address: TcpAddress


@dataclass(frozen=True, slots=True)
class Serve:
    """A running `extproc serve`, and where it listens."""

    child: Child
    extproc: TcpAddress
    agents: TcpAddress
    admin: TcpAddress

    @property
    def listen(self) -> dict[str, str]:
        """For the configuration of a successor that shall be found at the same addresses."""
        return {"extproc": str(self.extproc), "agents": str(self.agents), "admin": str(self.admin)}


@dataclass(frozen=True, slots=True)
class Envoy:
    """A running Envoy."""

    child: Child
    url: str
    """Of its listener, as in http://127.0.0.1:8080."""
    admin_url: str


@dataclass(frozen=True, slots=True)
class Nats:
    """A running NATS server."""

    child: Child
    url: str
    """As in nats://127.0.0.1:4222."""


class Fleet:
    """The child processes of one folder. Leaving the context ends them all, however it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Fleet":
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*(child.stop() for child in self._children))
        finally:
            assert self._session is not None
            await self._session.close()

    async def engine(self, name: str, model: str, *options: str) -> Engine:
        """Start an emulated engine; `options` go to `extproc emulate`."""
        child = await self._start(
            name, ourselves("emulate", "--listen", str(ANY_PORT), "--name", name, "--model", model, *options)
        )
        return Engine(name, child, *await _listening(child, "host"))

    async def agent(self, node_id: str, engine: TcpAddress, serve: Serve, *, interval_s: float) -> Child:
        """Start the agent of an engine of any kind; it finds out which."""
        return await self._start(
            f"agent-{node_id}",
            ourselves(
                *("agent", "--router", str(serve.agents), "--node-id", node_id, "--interval", f"{interval_s}s"),
                *("--idle-interval", f"{interval_s}s", "--drain", "0s"),  # quick to see, and all of it ends together
                *("--engine", f"http://{engine}", "--host", str(engine)),
            ),
        )

    async def agents(
        self, name: str, engines: Sequence[Engine], serves: Sequence[Serve], *, interval_s: float, nats: Nats | None
    ) -> Child:
        """Start one agent for several engines, which tells every `serve`; over NATS where there is one."""
        config: dict[str, Any] = {
            "routers": [str(one.agents) for one in serves],
            "interval_s": interval_s,
            "idle_interval_s": interval_s,
            "drain_s": 0,
            "engines": [
                {"node_id": one.name, "engine": f"http://{one.address}", "host": str(one.address)} for one in engines
            ],
        }
        if nats is not None:
            config["nats"] = {"servers": [nats.url]}
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(config))
        return await self._start(name, ourselves("agent", "--config", str(path)))

    async def nats(self) -> Nats:
        """Start a NATS server of ours alone: nobody else on the machine is asked whether a port is free."""
        child = await self._start("nats", [nats_binary(), "--addr", ANY_PORT.host, "--port", "-1"])
        found = await child.logged(r"Listening for client connections on (\S+)$", within_s=_START_S)
        return Nats(child, f"nats://{found[1]}")

    async def serve(self, config: Mapping[str, Any], name: str = "serve") -> Serve:
        """Start `extproc serve` with a configuration; it takes ports of the system's choice where that names none."""
        listen = dict.fromkeys(("extproc", "agents", "admin"), str(ANY_PORT)) | dict(config.get("listen", {}))
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps({**config, "listen": listen}))
        child = await self._start(name, ourselves("serve", "--config", str(path)))
        return Serve(child, *await _listening(child, "extproc", "agents", "admin"))

    async def envoy(
        self,
        serve: Serve | Sequence[Serve] | None,
        known: Sequence[TcpAddress],
        *,
        listen: TcpAddress = ANY_PORT,
        bootstrap: Path = BOOTSTRAP,
        name: str = "envoy",
    ) -> Envoy:
        """Start Envoy with a bootstrap, its addresses replaced by those of the running parts.

        `serve` and `known` are put into the bootstrap's clusters `extproc` and `known-nodes`; `None` and an empty
        sequence leave those as they are.
        """
        placed = envoyconf.read_bootstrap(bootstrap)
        clusters: dict[str, Sequence[Address]] = {}
        if known:
            clusters["known-nodes"] = known
        if serve is not None:
            clusters["extproc"] = [one.extproc for one in ([serve] if isinstance(serve, Serve) else serve)]
        envoyconf.place(placed, admin=ANY_PORT, listeners={"llm": listen}, clusters=clusters)
        config, admin_file = self.folder / f"{name}.json", self.folder / f"{name}-admin"
        config.write_text(envoyconf.bootstrap_json(placed))
        admin_file.unlink(missing_ok=True)
        child = await self._start(
            name,
            [
                *(envoy_binary(), "--config-path", config, "--admin-address-path", admin_file),
                *("--concurrency", "1", "--disable-hot-restart", "--file-flush-interval-msec", "200"),
            ],
        )

        async def admin_page() -> str:
            return admin_file.read_text().strip() if admin_file.exists() else ""

        admin_url = "http://" + await self.until("Envoy's admin page", admin_page)
        await self.until("Envoy's readiness", lambda: self.answers(f"{admin_url}/ready"))
        listeners = await self.json(f"{admin_url}/listeners?format=json")
        (bound,) = (one["local_address"]["socket_address"] for one in listeners["listener_statuses"])
        return Envoy(child, f"http://{bound['address']}:{bound['port_value']}", admin_url)

    async def until(self, what: str, condition: Callable[[], Awaitable[T]], within_s: float = 30.0) -> T:
        """Wait for a condition's first true value. Raises ChildFailedError when a child has ended or time is up."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        while not (value := await condition()):
            for child in self._children:
                child.check()
            if asyncio.get_running_loop().time() > deadline_s:
                msg = f"{what}: not within {within_s:.0f} s; the logs are in {self.folder}"
                raise ChildFailedError(msg)
            await asyncio.sleep(_POLL_S)
        return value

    async def nodes_ready(self, serve: Serve, names: Collection[str]) -> bool:
        """Whether `serve` has a fresh snapshot of each of these nodes that says ready."""
        nodes = (await self.json(f"http://{serve.admin}/nodes"))["nodes"]
        ready = {one["node_id"] for one in nodes if one["freshness"] == "fresh" and one["state"] == "ready"}
        return ready.issuperset(names)

    async def stop(self, child: Child) -> int:
        """End a child in its own way; its exit status."""
        self._children.remove(child)
        return await child.stop()

    async def kill(self, child: Child) -> int:
        """End a child as a crash would; its exit status."""
        self._children.remove(child)
        return await child.kill()

    async def json(self, url: str) -> Any:
        """A page of one of the children. Raises aiohttp.ClientError."""
        assert self._session is not None
        async with self._session.get(url, raise_for_status=True) as response:
            return await response.json(content_type=None)

    async def answers(self, url: str) -> bool:
        """Whether a page is there with status 200."""
        assert self._session is not None
        try:
            async with self._session.get(url) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def _start(self, name: str, command: Sequence[str | Path]) -> Child:
        child = await Child.start(name, command, self.folder)
        self._children.append(child)
        return child


async def _listening(child: Child, *keys: str) -> list[TcpAddress]:
    """The addresses that a part of ours logs, under these keys, once it listens."""
    line = (await child.logged(r'^\{.*listening".*\}$', within_s=_START_S))[0]
    found = json.loads(line)
    return [_tcp(found[key]) for key in keys]


def _tcp(text: str) -> TcpAddress:
    found = address.parse(text)
    assert isinstance(found, TcpAddress), "the fleet asks for ports"
    return found
