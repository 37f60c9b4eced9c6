"""The admin page of `serve --workers`: what the workers' own pages tell, put together."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from extproc.adminport import to_no_web_page
from extproc.core.forecast import ModelForecast
from extproc.ops.admin import DECISIONS_SHOWN, DECISIONS_SHOWN_MAX
from extproc.ops.capacitypage import capacity_page
from extproc.wholepages import JSON_TYPE, WholePages, encoded, json_page
from extproc.workers import exposition, together
from extproc.workers.asking import Answer, Asking

PAGES_MAX: Final = 4
"""Pages that are being asked for or sent at once; who asks for one more gets 503. Each holds a page of each worker."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_INDEX = """extproc, several workers (docs/workers.md)
/healthz               200 while the parent of the workers lives
/readyz                200 when a worker is ready and we do not drain, else 503; what each worker says
/metrics               for Prometheus: every worker's, with the label `worker`
/nodes                 every node as one worker sees it, the first that answers, or ?worker=N (?node=ID for one node)
/peers                 what each worker knows of other routers, the other workers among them
/capacity              how many nodes each model needs: the workers' forecasts, summed
/decisions?limit=N     the latest decisions of all workers, newest first
"""


class WorkersPages:
    """Makes them. `own_metrics` is the parent's own page for Prometheus."""

    def __init__(
        self, asking: Asking, own_metrics: Callable[[], bytes], draining: Callable[[], bool], ttft_s: float
    ) -> None:
        self._asking = asking
        self._own_metrics = own_metrics
        self._draining = draining
        self._ttft_s = ttft_s
        self._whole = WholePages()

    def application(self) -> web.Application:
        """The application that serves them."""
        app = web.Application(middlewares=[to_no_web_page])
        for path, page in (
            ("/", self._index),
            ("/healthz", self._healthz),
            ("/readyz", self._readyz),
            ("/metrics", self._bounded(self._metrics)),
            ("/nodes", self._bounded(self._nodes)),
            ("/peers", self._bounded(self._peers)),
            ("/capacity", self._bounded(self._capacity)),
            ("/decisions", self._bounded(self._decisions)),
        ):
            app.router.add_get(path, page)
        return app

    async def forecasts(self) -> tuple[ModelForecast, ...]:
        """Of all requests: the workers' forecasts, summed."""
        return together.forecasts(_good(await self._asking.all("/capacity")))

    def _bounded(self, page: Callable[[web.Request], Awaitable[web.Response]]) -> Handler:
        """A page of which few are made at once."""

        async def sent(request: web.Request) -> web.StreamResponse:
            return await self._whole.sent(request, lambda: page(request), PAGES_MAX)

        return sent

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._draining():
            return json_page({"ready": False, "reason": "draining"}, status=503)
        told = await self._asking.all("/readyz")
        workers = {str(number): _said(one) for number, one in told.items()}
        ready = any(one is not None and one.status == 200 for one in told.values())
        return json_page({"ready": ready, "workers": workers}, status=200 if ready else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        pages = {str(number): page for number, page in _good(await self._asking.all("/metrics")).items()}
        page = await asyncio.to_thread(exposition.merged, pages | {"parent": self._own_metrics()})
        return web.Response(body=page, headers={"content-type": _METRICS_TYPE})

    async def _nodes(self, request: web.Request) -> web.Response:
        asked = request.query.get("worker")
        numbers = self._asking.numbers
        if asked is not None:
            numbers = [number for number in numbers if str(number) == asked]
            if not numbers:
                return json_page({"error": f"no worker {asked[:80]!r}"}, status=404)
        query = {"node": request.query["node"]} if "node" in request.query else {}
        for number in numbers:
            answer = await self._asking.one(number, "/nodes", query)
            if answer is not None:
                return web.Response(body=answer.body, status=answer.status, headers={"content-type": JSON_TYPE})
        return json_page({"error": "no worker answers"}, status=503)

    async def _peers(self, _: web.Request) -> web.Response:
        told = await self._asking.all("/peers")
        return json_page({"workers": {str(number): _said(one) for number, one in told.items()}})

    async def _capacity(self, _: web.Request) -> web.Response:
        return _page(capacity_page(await self.forecasts(), self._ttft_s))

    async def _decisions(self, request: web.Request) -> web.Response:
        asked = request.query.get("limit", str(DECISIONS_SHOWN))
        told = await self._asking.all("/decisions", {"limit": asked})
        refused = next((one for one in told.values() if one is not None and one.status == 400), None)
        if refused is not None:
            return json_page(msgspec.json.decode(refused.body), status=400)
        limit = int(asked) if asked.isascii() and asked.isdigit() and len(asked) <= 6 else 0
        pages = _good(told)
        return _page(await asyncio.to_thread(_decisions_page, pages, min(limit, DECISIONS_SHOWN_MAX)))


def _decisions_page(pages: Mapping[int, bytes], limit: int) -> bytes:
    return encoded(together.decisions(pages, limit))


def _good(told: Mapping[int, Answer | None]) -> dict[int, bytes]:
    return {number: one.body for number, one in told.items() if one is not None and one.status == 200}


def _said(one: Answer | None) -> object:
    """A worker's own page, or that it did not answer."""
    if one is None:
        return {"ready": False, "reason": "it does not answer"}
    return msgspec.json.decode(one.body)


def _page(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"content-type": JSON_TYPE})
