"""What a `serve` consists of, put together: everything but its ports, its loop and its end."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
import structlog
from grpc_health.v1 import health, health_pb2_grpc

from extproc import listening
from extproc.address import Address
from extproc.config import Config
from extproc.core.balancer import Balancer
from extproc.core.forecast import ModelForecast
from extproc.core.settings import Fault
from extproc.exchange import joining
from extproc.exchange.exchange import Exchange
from extproc.gateway import accesslog, endings
from extproc.gateway import server as gateway
from extproc.gateway.accesslog import AnswerEnded
from extproc.gateway.routepolicy import RoutePolicies
from extproc.nodes import ingest as nodes
from extproc.ops import scaler
from extproc.ops.exchangepage import peers_page
from extproc.ops.metrics import Metrics
from extproc.peers import ports
from extproc.tokens.counter import TokenCounter
from extproc.tokens.loading import Tokenizers, load

log = structlog.get_logger()

FORECAST_READ_S = 1.0
"""A reading of the forecast serves all pages and KEDA for so long."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What one of several processes of a `serve` is told by their parent."""

    number: int
    """From 0 on."""
    folder: Path
    """Private to the workers: without NATS they meet there."""
    prefix_seed: int
    """Keys the hashes of prompts, the same at all workers and after each restart."""
    listening: Callable[[dict[str, Address]], None]
    """Told the addresses once all is served, instead of the log."""


class Parts:
    """One router. Whoever makes it closes `counter`, and joins `bus` for `exchange` where there are such."""

    def __init__(
        self,
        config: Config,
        balancer: Balancer,
        tokenizers: Tokenizers,
        metrics: Metrics,
        clock: Callable[[], float],
        worker: Worker | None = None,
    ) -> None:
        self._config = config
        self.router = router = secrets.token_hex(4)
        """This run of this process: its requests' ids begin with it, and others know it by it."""
        self.clock = clock
        seed = joining.prefix_seed(config)
        assert not isinstance(seed, Fault), "that was looked at"
        if seed is None and worker is not None:
            seed = worker.prefix_seed
        self.counter = TokenCounter(config.tokens, tokenizers, metrics, prefix_seed=seed)
        self.bus = joining.bus_of(config.nats, None if worker is None else (worker.folder, worker.number), clock, log)
        self.access_log = accesslog.AccessLog(lambda answer: ended(balancer, metrics, clock, answer, exchange), metrics)
        exchange = None
        if self.bus is not None:
            key, hears_ends, settings = joining.key_of(seed), self._hears_ends, config.exchange
            exchange = Exchange(
                balancer, self.bus, router, settings, clock, metrics, log, key=key, hears_ends=hears_ends
            )
        self.exchange = exchange
        self.processor = gateway.ExternalProcessor(
            balancer,
            _policies(config),
            self.counter,
            config.limits,
            metrics,
            clock,
            boot=router,
            ends_are_told=lambda: self._hears_ends() or (exchange is not None and exchange.ends_are_told),
        )
        self.ingest = nodes.NodeIngest(
            balancer,
            config.hosts_allowed,
            metrics,
            clock,
            log,
            router=router if self.bus is not None else "",
            streams_max=config.limits.agent_streams_max,
        )
        if self.bus is not None:
            self.ingest.hear(self.bus)
        self.healths = health.aio.HealthServicer()
        self.forecasts = read_now_and_then(balancer, clock)
        self.nodes_scaler = scaler.NodesScaler(self.forecasts, clock)

    def _hears_ends(self) -> bool:
        return self.access_log.streams_open > 0

    def grpc_servers(
        self, security: dict[str, ports.PortSecurity]
    ) -> tuple[grpc.aio.Server, grpc.aio.Server, grpc.aio.Server]:
        """For Envoy, for agents and for KEDA; none listens yet."""
        limits = self._config.limits
        for_envoy, for_agents, for_keda = (
            grpc.aio.server(interceptors=security[port].gates, options=[*options, *listening.GRPC_OPTIONS])
            for port, options in (
                ("extproc", gateway.grpc_options(limits)),
                ("agents", nodes.grpc_options(limits.agent_message_bytes_max)),
                ("scaler", scaler.grpc_options()),
            )
        )
        gateway.register(for_envoy, self.processor)
        accesslog.register(for_envoy, self.access_log)
        health_pb2_grpc.add_HealthServicer_to_server(self.healths, for_envoy)
        nodes.register(for_agents, self.ingest)
        scaler.register(for_keda, self.nodes_scaler)
        return for_envoy, for_agents, for_keda


def peers_page_of(parts: Parts) -> bytes:
    """Which other routers are heard."""
    return peers_page(parts.router, None if parts.exchange is None else parts.exchange.state(parts.clock()))


def ended(
    balancer: Balancer,
    metrics: Metrics,
    clock: Callable[[], float],
    answer: AnswerEnded,
    exchange: Exchange | None = None,
) -> None:
    """Tell the balancer of a finished answer, and whose it was; count it, and how far its engine's count of the prompt
    is from ours."""
    now_s = clock()
    for told in (endings.failed_before(answer, now_s), endings.of_entry(answer)):
        if told is not None:
            balancer.answered(told, now_s)
            if exchange is not None:
                exchange.ended(told)
    metrics.answers.ended(answer.status, answer.completion_tokens, answer.first_byte_s, answer.duration_s, answer.arm)
    if answer.unheeded:
        metrics.answers.unheeded()
    log.debug("answer ended", **msgspec.structs.asdict(answer))
    if answer.prompt_tokens is not None and answer.counted_tokens is not None:
        metrics.tokens.usage_difference(answer.prompt_tokens - answer.counted_tokens, answer.counted_exactly)


def tokenizers_of(config: Config, metrics: Metrics) -> Tokenizers | list[Fault]:
    """What prompts are counted by, or why that cannot be loaded. It takes a while."""
    loaded = load(config.tokens)
    if not isinstance(loaded, Tokenizers):
        return loaded
    for pattern, reason in loaded.absent.items():
        name = config.tokens.models[pattern].tokenizer or pattern
        metrics.tokens.tokenizer_loaded(name, "none", reason, "none", [pattern])
    for model in loaded:
        encoder, template = model.encoder, model.template
        renderer = "none" if template is None else template.renderer.value
        models = [name for name in config.tokens.models if loaded.of(name) is model]
        metrics.tokens.tokenizer_loaded(model.name, encoder.engine, encoder.reason, renderer, models)
    return loaded


def read_now_and_then(balancer: Balancer, clock: Callable[[], float]) -> Callable[[], tuple[ModelForecast, ...]]:
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


def _policies(config: Config) -> RoutePolicies:
    return RoutePolicies(
        config.policies,
        config.policies[config.default_policy],
        policy_bytes_max=config.limits.policy_bytes_max,
        policies_cached_max=config.limits.policies_cached_max,
        classes=config.classes,
        strict=config.policies_strict,
    )
