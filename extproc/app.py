"""The composition root of `serve`: one event loop, one clock, one balancer, its servers, and how they end.

The end, on SIGTERM or SIGINT: the health service says NOT_SERVING and /readyz 503; the processor takes no new
streams, answers those it has not decided and lets the others go with gRPC OK, so that Envoy goes on with their
answers; the agents' streams end and their agents look for the next router; the admin pages go last. A second
signal ends the process at once.
"""

import asyncio
import gc
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial

import grpc
import msgspec
import structlog
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc import listening
from extproc.adminport import AdminPort
from extproc.config import Config
from extproc.core.balancer import Balancer
from extproc.core.forecast import ModelForecast
from extproc.core.settings import Fault
from extproc.gateway import accesslog, endings
from extproc.gateway import server as gateway
from extproc.gateway.accesslog import AnswerEnded
from extproc.gateway.routepolicy import RoutePolicies
from extproc.journal import balancer as journal
from extproc.nodes import ingest as nodes
from extproc.ops import admin, scaler
from extproc.ops.metrics import Metrics
from extproc.ops.nodegauges import samples_of
from extproc.ops.nodelog import NodeLog
from extproc.peers import ports
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import Tokenizers, load

log = structlog.get_logger()

HEALTH_SERVICES = ("", "envoy.service.ext_proc.v3.ExternalProcessor")
"""What gRPC health checks may ask for."""
ADMIN_CLOSE_S = 1.0
"""How long the admin pages may still be read at the end."""
LAST_READ_S = 1.0
"""How long Envoy has to read what was written last: connections that end with the process lose it, and an upload that
came back to the last piece would be answered 500."""

FORECAST_READ_S = 1.0
"""A reading of the forecast serves all pages and KEDA for so long."""
GC_YOUNG_OBJECTS_MAX = 10_000
"""New objects between two looks of the garbage collector; Python's own 700 cost 8 % of a request."""


class StartError(Exception):
    """`serve` cannot start, for these reasons."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def run(config: Config) -> None:
    """Serve on an event loop of its own until a signal. Raises `StartError`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config))


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises `StartError` where nothing could be served at all."""
    stop = _stop_on_signals()
    clock = time.monotonic
    metrics = Metrics()
    security = ports.secured(config.listen, metrics, clock, log)
    if isinstance(security, list):
        raise StartError(security)
    tokenizers = await asyncio.to_thread(_tokenizers, config, metrics)
    balancer = journal.balancer(config, clock(), partial(metrics.our_error, "journal"))
    if isinstance(balancer, Fault):
        raise StartError([balancer])
    counter = TokenCounter(config.tokens, tokenizers, metrics)
    boot = secrets.token_hex(3)
    access_log = accesslog.AccessLog(partial(_ended, balancer, metrics, clock), metrics)
    processor = gateway.ExternalProcessor(
        balancer,
        _policies(config),
        counter,
        config.limits,
        metrics,
        clock,
        boot=boot,
        ends_are_told=lambda: access_log.streams_open > 0,
    )
    ingest = nodes.NodeIngest(
        balancer, config.hosts_allowed, metrics, clock, log, streams_max=config.limits.agent_streams_max
    )
    healths = health.aio.HealthServicer()

    forecasts = _read_now_and_then(balancer, clock)
    nodes_scaler = scaler.NodesScaler(forecasts, clock)
    servers = _grpc_servers(config, security, processor, access_log, healths, ingest, nodes_scaler)
    pages = AdminPort(admin.build(balancer, metrics, clock, stop.is_set, forecasts), ADMIN_CLOSE_S)
    ticking = asyncio.create_task(_tick(balancer, metrics, clock, config.nodes.prune_interval_s))
    try:
        listen = config.listen
        places = zip(ports.PORTS, (listen.extproc, listen.agents, listen.scaler), servers, strict=True)
        addresses = {
            name: await listening.grpc_port(server, place, security[name].credentials)
            for name, place, server in places
            if place is not None
        }
        addresses["admin"] = await pages.open(listen.admin)
        await asyncio.gather(*(server.start() for server in servers))
        for name in HEALTH_SERVICES:
            await healths.set(name, health_pb2.HealthCheckResponse.SERVING)
        _spare_the_collector()
        log.info("listening", **{name: str(address) for name, address in addresses.items()})

        await stop.wait()
        log.info("draining", streams_open=processor.streams_open, agents=ingest.streams_open)
        await healths.enter_graceful_shutdown()
        await _drain(config.drain_s, servers, processor, access_log, ingest, nodes_scaler)
        log.info("drained", streams_open=processor.streams_open)
    except listening.ListenError as error:
        raise StartError([Fault("listen", "an address that can be listened at", str(error))]) from None
    finally:
        ticking.cancel()
        await asyncio.gather(*(server.stop(None) for server in servers))
        await pages.close()
        counter.close()
        journal.close(balancer)


async def _drain(
    drain_s: float,
    servers: Iterable[grpc.aio.Server],
    processor: gateway.ExternalProcessor,
    *others: accesslog.AccessLog | nodes.NodeIngest | scaler.NodesScaler,
) -> None:
    """Let streams come to their ends, for as long as that may take."""
    streams_open = processor.streams_open
    for one in (processor, *others):
        one.drain()
    await asyncio.gather(*(server.stop(drain_s) for server in servers))
    if streams_open:
        await asyncio.sleep(LAST_READ_S)


def _grpc_servers(
    config: Config,
    security: dict[str, ports.PortSecurity],
    processor: gateway.ExternalProcessor,
    access_log: accesslog.AccessLog,
    healths: health.aio.HealthServicer,
    ingest: nodes.NodeIngest,
    nodes_scaler: scaler.NodesScaler,
) -> tuple[grpc.aio.Server, grpc.aio.Server, grpc.aio.Server]:
    """For Envoy, for agents and for KEDA; none listens yet."""
    for_envoy, for_agents, for_keda = (
        grpc.aio.server(interceptors=security[port].gates, options=[*options, *listening.GRPC_OPTIONS])
        for port, options in (
            ("extproc", gateway.grpc_options(config.limits)),
            ("agents", nodes.grpc_options(config.limits.agent_message_bytes_max)),
            ("scaler", scaler.grpc_options()),
        )
    )
    gateway.register(for_envoy, processor)
    accesslog.register(for_envoy, access_log)
    health_pb2_grpc.add_HealthServicer_to_server(healths, for_envoy)
    nodes.register(for_agents, ingest)
    scaler.register(for_keda, nodes_scaler)
    return for_envoy, for_agents, for_keda


def _read_now_and_then(balancer: Balancer, clock: Callable[[], float]) -> Callable[[], tuple[ModelForecast, ...]]:
    """The forecast, a second old at most: reading it takes a millisecond for each model, on the loop that decides."""
    read_s = float("-inf")
    found: tuple[ModelForecast, ...] = ()

    def read() -> tuple[ModelForecast, ...]:
        nonlocal read_s, found
        now_s = clock()
        if now_s - read_s >= FORECAST_READ_S:
            read_s, found = now_s, balancer.forecasts(now_s)
        return found

    return read


def _spare_the_collector() -> None:
    """What the start made stays: without this each full collection walks the classes of all libraries, and requests pay
    for that. They make few cycles, so the young generation may grow."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS_MAX)


def _tokenizers(config: Config, metrics: Metrics) -> Tokenizers:
    loaded = load(config.tokens)
    if not isinstance(loaded, Tokenizers):
        raise StartError(loaded)
    for pattern, reason in loaded.absent.items():
        name = config.tokens.models[pattern].tokenizer or pattern
        metrics.tokens.tokenizer_loaded(name, "none", reason, "none", [pattern])
    for model in loaded:
        encoder, template = model.encoder, model.template
        renderer = "none" if template is None else template.renderer.value
        models = [name for name in config.tokens.models if loaded.of(name) is model]
        metrics.tokens.tokenizer_loaded(model.name, encoder.engine, encoder.reason, renderer, models)
    return loaded


def _ended(balancer: Balancer, metrics: Metrics, clock: Callable[[], float], answer: AnswerEnded) -> None:
    """Tell the balancer of a finished answer; count it, and how far its engine's count of the prompt is from ours."""
    now_s = clock()
    failed = endings.failed_before(answer, now_s)
    if failed is not None:
        balancer.answered(failed, now_s)
    balancer.answered(endings.of_entry(answer), now_s)
    metrics.answers.ended(answer.status, answer.completion_tokens, answer.first_byte_s, answer.duration_s, answer.arm)
    if answer.unheeded:
        metrics.answers.unheeded()
    log.debug("answer ended", **msgspec.structs.asdict(answer))
    if answer.prompt_tokens is not None and answer.counted_tokens is not None:
        metrics.tokens.usage_difference(answer.prompt_tokens - answer.counted_tokens, answer.counted_exactly)


def _policies(config: Config) -> RoutePolicies:
    return RoutePolicies(
        config.policies,
        config.policies[config.default_policy],
        policy_bytes_max=config.limits.policy_bytes_max,
        policies_cached_max=config.limits.policies_cached_max,
        classes=config.classes,
        strict=config.policies_strict,
    )


def _stop_on_signals() -> asyncio.Event:
    """An event that the first signal sets; the second ends the process."""
    stop = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled, number)
    return stop


async def _tick(balancer: Balancer, metrics: Metrics, clock: Callable[[], float], interval_s: float) -> None:
    node_log = NodeLog(log)
    while True:
        await asyncio.sleep(interval_s)
        try:
            now_s = clock()
            balancer.tick(now_s)
            nodes = samples_of(balancer, now_s)
            node_log.look(nodes)
            metrics.requests.keep_nodes({one.view.snapshot.node_id for one in nodes})
        except Exception:
            log.exception("error of ours; nodes were not looked through")
            metrics.our_error("tick")
