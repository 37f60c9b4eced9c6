"""The agent's own port: whether it lives, what it saw, and calls to drain its nodes.

Whoever can call can take nodes out of use, so calls are taken from this machine only unless told otherwise. Nothing is
answered that another site's web page sends.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from ipaddress import ip_address

import msgspec
from aiohttp import web

from extproc.adminport import to_no_web_page
from extproc.agent.node import Node

WAIT_S_MAX = 3600.0
"""Longest wait that a call may ask for."""
WAITS_MAX = 32
"""Calls that wait at a time; further ones are refused. Fewer than the port's connections: others find room."""
BODY_BYTES_MAX = 1024
"""Calls need none."""
_INDEX = """extproc agent
GET  /healthz                        200 while the process lives
GET  /nodes                          what each engine showed last, and why a signal is absent
GET  /routers                        which routers are connected, and the bus; since when, and why not
POST /drain?node=ID&wait=SECONDS     report it as draining until its engine began anew, or /undrain; 200 once it has no
                                     requests, 504 if it still has some after `wait` (default: 0, at once). With hold=1
                                     until /undrain only. Without `node`: all
POST /undrain?node=ID                take requests again
"""


def build(nodes: Sequence[Node], routers: Callable[[], object], *, remote: bool) -> web.Application:
    """The application. `routers` tells them as JSON; `remote`: calls that change something are taken from other
    machines too.
    """
    pages = _Pages({node.node_id: node for node in nodes}, routers, remote)
    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[to_no_web_page])
    app.add_routes(
        [
            web.get("/", pages.index),
            web.get("/healthz", pages.healthz),
            web.get("/nodes", pages.nodes),
            web.get("/routers", pages.routers),
            web.post("/drain", pages.drain),
            web.post("/undrain", pages.undrain),
        ]
    )
    return app


class _Pages:
    def __init__(self, nodes: dict[str, Node], routers: Callable[[], object], remote: bool) -> None:
        self._nodes = nodes
        self._routers = routers
        self._remote = remote
        self._waits = 0

    async def index(self, _: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def nodes(self, _: web.Request) -> web.Response:
        return _json([node.shown() for node in self._nodes.values()])

    async def routers(self, _: web.Request) -> web.Response:
        return _json(self._routers())

    async def undrain(self, request: web.Request) -> web.Response:
        meant = self._meant(request)
        if isinstance(meant, web.Response):
            return meant
        for node in meant:
            node.undrain()
        return _json({"draining": []})

    async def drain(self, request: web.Request) -> web.Response:
        meant = self._meant(request)
        if isinstance(meant, web.Response):
            return meant
        wait_s = _seconds(request.query.get("wait", "0"))
        if wait_s is None:
            return _fault(400, f"wait: wanted seconds in 0..{WAIT_S_MAX:g}")
        hold = request.query.get("hold", "0")
        if hold not in ("0", "1"):
            return _fault(400, "hold: wanted 0 or 1")
        if wait_s and self._waits >= WAITS_MAX:
            return _fault(503, f"{WAITS_MAX} calls are waiting, which is all that may at once; try again")
        for node in meant:
            node.drain(hold=hold == "1")
        if wait_s:
            self._waits += 1
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        for node in meant:
                            await node.emptied.wait()
            finally:
                self._waits -= 1
        busy = [node.node_id for node in meant if not node.emptied.is_set()]
        told = {"draining": [node.node_id for node in meant], "busy": busy}
        return _json(told, status=504 if wait_s and busy else 200)

    def _meant(self, request: web.Request) -> list[Node] | web.Response:
        """The nodes that a call is about, or why it is refused."""
        if not (self._remote or _is_from_here(request)):
            return _fault(403, "calls are taken from this machine only; see admin_remote")
        wanted = request.query.getall("node", [])
        if unknown := [one for one in wanted if one not in self._nodes]:
            return _fault(404, f"node: wanted {', '.join(list(self._nodes)[:10])}, got {unknown[0][:128]!r}")
        return [self._nodes[one] for one in dict.fromkeys(wanted)] or list(self._nodes.values())


def _is_from_here(request: web.Request) -> bool:
    """By loopback, or by a unix socket, whose callers have no address."""
    if request.remote is None or request.remote == "":
        return True
    try:
        address = ip_address(request.remote)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= WAIT_S_MAX else None


def _fault(status: int, reason: str) -> web.Response:
    return _json({"fault": reason}, status=status)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", status=status, content_type="application/json")
