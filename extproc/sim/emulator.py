"""An emulated vLLM: the step model of `engine.py` behind the OpenAI API, in real time.

It speaks HTTP as vLLM 0.32 does (answers, errors, server-sent events, /metrics) and computes nothing: answers are words
chosen by a hash of the prompt, and only their timing means something. Every response names the engine in `x-engine` and
tells in `x-body-bytes` how long the request's body was. `PUT /fault` orders a fault, see `emulatorfault.py`.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import assert_never

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from extproc.core.request import Endpoint
from extproc.sim import emulatorfault, pseudotokens
from extproc.sim.apianswer import Answer, fault_body
from extproc.sim.apirequest import ApiFault, ApiRequest, parse
from extproc.sim.driver import Driver
from extproc.sim.emulatorfault import EngineFault, Faults
from extproc.sim.emulatorsettings import EmulatorSettings
from extproc.sim.engine import Engine
from extproc.sim.events import Event, Finished, FirstToken, Preempted, Token
from extproc.sim.exposition import EngineCollector
from extproc.sim.sequences import Sequence, sequences_of

log = structlog.get_logger()

ENDPOINTS = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETION,
    "/v1/embeddings": Endpoint.EMBEDDING,
    "/v1/responses": Endpoint.RESPONSE,
}
SHUTDOWN_GRACE_S = 0.5
"""How long open requests may still run when the emulator ends; then they are cut off."""


class Emulator:
    """A running emulated engine; `emulated` makes one."""

    def __init__(self, settings: EmulatorSettings) -> None:
        self.settings = settings
        self.engine = Engine(settings.engine)
        self.host = settings.listen
        """`address:port` as bound, once it listens."""
        self.driver = Driver(self.engine)
        self.stepping = asyncio.create_task(self.driver.run())
        """Runs as long as the emulator; if it ends before, that is our fault and `emulated` raises it."""
        self.faults = Faults(self.driver)
        self._started_at_s = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(self.engine, settings.model, self._started_at_s))
        self._requests = 0

    @property
    def url(self) -> str:
        """Where its API is, without a slash at the end."""
        return f"http://{self.host}"

    def application(self) -> web.Application:
        """Its HTTP side."""
        app = web.Application(client_max_size=self.settings.body_bytes_max, middlewares=[_errors_as_json])
        app.on_response_prepare.append(self._sign)
        for path in ENDPOINTS:
            app.router.add_post(path, self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_put("/fault", self._begin_fault)
        return app

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-engine"] = self.settings.name
        if _BODY_BYTES in request:
            response.headers["x-body-bytes"] = str(request[_BODY_BYTES])

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(self._started_at_s),
            "owned_by": "vllm",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.context_length_tokens,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, _: web.Request) -> web.Response:
        # The text format of vLLM's own /metrics.
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=generate_latest(self._registry), headers=headers)

    async def _begin_fault(self, http: web.Request) -> web.Response:
        match emulatorfault.ordered(await http.read()):
            case EngineFault() as fault:
                pass
            case wrong:
                return web.json_response({"detail": [str(one) for one in wrong]}, status=400)
        if left_s := self.faults.left_s:
            return web.json_response({"detail": f"another fault lasts for {left_s:.1f} s"}, status=409)
        self.faults.begin(fault)
        log.info("fault begins", **fault.model_dump(mode="json", exclude_none=True))
        return web.Response(status=204)

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        endpoint = ENDPOINTS[http.path]
        settings = self.settings
        if self.faults.errors:
            return _fault(ApiFault(503, "ServiceUnavailableError", "The engine has a fault, as it was ordered to."))
        asked = parse(endpoint, await http.read(), settings.model, settings.context_length_tokens)
        match asked:
            case ApiFault():
                return _fault(asked)
            case ApiRequest():
                pass
            case _:
                assert_never(asked)
        wanted = len(asked.prompts) * asked.sequences
        if self.engine.requests_open + wanted > settings.requests_open_max:
            self.engine.counters.admission_rejections += 1
            message = f"Too many requests in flight: at most {settings.requests_open_max} (max_num_queued_reqs)."
            return _fault(ApiFault(503, "ServiceUnavailableError", message))
        self._requests += 1
        request_id = f"{_ID_PREFIXES[endpoint]}{self._requests:016x}"
        sequences = sequences_of(asked, request_id, settings.context_length_tokens, settings.output_tokens_max)
        answer = Answer(
            endpoint,
            request_id,
            int(time.time()),
            settings.model,
            [sequence.choice for sequence in sequences],
            sum(pseudotokens.count(prompt) for prompt in asked.prompts),
            asked.usage_in_stream,
            asked.base64,
        )
        try:
            if asked.stream:
                response = await self._stream(http, answer, sequences)
            else:
                response = await self._whole(answer, sequences)
        finally:
            # However this ends: a client that hung up cancels its handler.
            for sequence in sequences:
                self.driver.abort(sequence.request.request_id)
        self._count(asked, sequences)
        return response

    async def _whole(self, answer: Answer, sequences: list[Sequence]) -> web.StreamResponse:
        finished = asyncio.Semaphore(0)

        def deliver(event: Event) -> None:
            if isinstance(event, Finished):
                finished.release()

        for sequence in sequences:
            self.driver.submit(sequence.request, deliver)
        for _ in sequences:
            await finished.acquire()
        return web.Response(body=answer.whole(), content_type="application/json")

    async def _stream(self, http: web.Request, answer: Answer, sequences: list[Sequence]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        # Holds at most the answers' tokens.
        events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        for index, sequence in enumerate(sequences):
            self.driver.submit(sequence.request, _with_index(index, events))
        await response.prepare(http)
        frames = [answer.opening()]
        positions = [0] * len(sequences)
        unfinished = len(sequences)
        while unfinished:
            if events.empty():
                # One write for all that a step gave this client.
                await response.write(b"".join(frames))
                frames.clear()
            index, event = await events.get()
            match event:
                case FirstToken() | Token():
                    frames.append(answer.token(index, positions[index]))
                    positions[index] += 1
                case Finished():
                    unfinished -= 1
                case Preempted():
                    pass
                case _:
                    assert_never(event)
        frames.append(answer.closing())
        await response.write(b"".join(frames))
        await response.write_eof()
        return response

    def _count(self, asked: ApiRequest, sequences: list[Sequence]) -> None:
        counters = self.engine.counters
        for start in range(0, len(sequences), asked.sequences):
            group = sequences[start : start + asked.sequences]
            counters.request_params_n.observe(asked.sequences)
            longest = max(sequence.request.output_tokens for sequence in group)
            counters.request_max_num_generation_tokens.observe(longest)
            if asked.output_tokens_max is not None:
                counters.request_params_max_tokens.observe(asked.output_tokens_max)


_BODY_BYTES = web.RequestKey("body_bytes", int)
"""Absent where the body was too long to be read."""
_ID_PREFIXES = {
    Endpoint.CHAT: "chatcmpl-",
    Endpoint.COMPLETION: "cmpl-",
    Endpoint.EMBEDDING: "embd-",
    Endpoint.RESPONSE: "resp_",
}


def _with_index(index: int, events: asyncio.Queue[tuple[int, Event]]) -> Callable[[Event], None]:
    return lambda event: events.put_nowait((index, event))


def _fault(fault: ApiFault) -> web.Response:
    return web.Response(status=fault.status, body=fault_body(fault), content_type="application/json")


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        request[_BODY_BYTES] = len(await request.read())
        return await handler(request)
    except web.HTTPClientError as error:
        # Unknown paths and methods, bodies over the limit: as FastAPI words them.
        return web.json_response({"detail": error.reason}, status=error.status)


@asynccontextmanager
async def emulated(settings: EmulatorSettings) -> AsyncIterator[Emulator]:
    """Run an emulated engine on this event loop while the block lasts."""
    emulator = Emulator(settings)
    runner = web.AppRunner(
        emulator.application(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_GRACE_S
    )
    try:
        await runner.setup()
        address, _, port = settings.listen.rpartition(":")
        await web.TCPSite(runner, address.strip("[]"), int(port)).start()
        bound = runner.addresses[0]
        emulator.host = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        yield emulator
    finally:
        await runner.cleanup()
        emulator.stepping.cancel()
        await asyncio.wait([emulator.stepping])
    if not emulator.stepping.cancelled():
        emulator.stepping.result()


async def run(settings: EmulatorSettings) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled."""
    loop = asyncio.get_running_loop()
    stopped = loop.create_future()
    async with emulated(settings) as emulator:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.cancel)
        chosen = {"name": settings.name, "model": settings.model, "speed": settings.speed}
        log.info("emulated engine listening", host=emulator.host, **chosen)
        await asyncio.wait([stopped, emulator.stepping], return_when=asyncio.FIRST_COMPLETED)
