"""What `extproc serve` can be told, and how a mapping or a file becomes that.

A configuration is whole or it is refused: `parse` and `read` return a `Config`, or every fault with its path, what was
wanted and what stood there. Nothing is corrected silently and nothing is read from the environment.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, assert_never

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from extproc import nodehosts, yamlfile
from extproc.address import Address, TcpAddress
from extproc.bus.settings import NatsSettings
from extproc.core.policy import PolicyName, RoutingPolicy
from extproc.core.settings import BalancerSettings, Fault, faults_of, shown
from extproc.nearkeys import with_near_keys
from extproc.peers.tlssettings import PortsTls
from extproc.settingtypes import SETTINGS, AnyAddress, FilePath, Networks
from extproc.sizes import GIB, KIB, MIB, Size
from extproc.tokensettings import TokenSettings


def _any_port(listen: Address) -> bool:
    return isinstance(listen, TcpAddress) and listen.port == 0


class Listen(BaseModel):
    """Where the servers listen and who may call: `host:port`, `[ipv6]:port` or `unix:/path`. Port 0: any."""

    model_config = SETTINGS

    insecure: bool = False
    """Whether gRPC ports that other machines can reach may do without TLS."""
    tls: PortsTls = PortsTls()
    agent_tokens: FilePath | None = None
    """A file of bearer tokens, one a line, of which each agent must show one. `None`: agents need none."""
    extproc: AnyAddress = TcpAddress("127.0.0.1", 9002)
    """gRPC for Envoy: the external processor and the standard health service."""
    agents: AnyAddress = TcpAddress("127.0.0.1", 9004)
    """gRPC for the agents beside the engines."""
    admin: AnyAddress = TcpAddress("127.0.0.1", 9090)
    """HTTP for operators: health, metrics, nodes, decisions. Neither TLS nor login: keep it on a trusted network."""

    scaler: AnyAddress | None = None
    """gRPC for KEDA, an external scaler: how many nodes a model needs. `None`: not served."""

    @field_validator("agents", "admin", "scaler")
    @classmethod
    def _of_its_own(cls, listen: Address | None, info: ValidationInfo) -> Address | None:
        if listen is None:
            return None
        taken = [name for name, other in info.data.items() if other == listen and not _any_port(other)]
        if taken:
            msg = f"an address of its own, not that of {taken[0]}"
            raise ValueError(msg)
        return listen

    @field_validator("extproc", "agents", "scaler")
    @classmethod
    def _protected(cls, listen: Address | None, info: ValidationInfo) -> Address | None:
        port, told = info.field_name, info.data
        if listen is None or listen.is_local or port is None or told.get("insecure", True) or "tls" not in told:
            return listen
        if getattr(told["tls"], port) is None:
            msg = f"an address on loopback, a unix socket, listen.tls.{port}, or listen.insecure: true"
            raise ValueError(msg)
        return listen


class ServeLimits(BaseModel):
    """What clients, Envoy and agents can make us hold."""

    model_config = SETTINGS

    body_bytes_max: Size = Field(32 * MIB, ge=KIB, le=GIB)
    """Longest request body; longer ones get 413."""
    body_bytes_total_max: Size = Field(512 * MIB, ge=KIB, le=1024 * GIB, validate_default=True)
    """Request bodies held at a time over all requests; over it requests get 429."""
    body_claim_bytes_min: Size = Field(MIB, ge=0, le=GIB)
    """Bodies that announce this much or more must find room before they are sent; shorter ones when they have come.
    So nobody can shut out short requests by announcing long ones and sending nothing."""
    body_items_max: int = Field(500_000, ge=1000, le=50_000_000)
    """Opening brackets and braces of a body and a quarter of its commas, those in its texts included; more get 400. The
    worst body within the default, millions of one-letter strings, keeps the event loop for about 0.4 s."""
    streams_max: int = Field(20_000, ge=1, le=1_000_000)
    """Requests in flight: each holds a gRPC stream until its answer is complete. Further ones are refused."""
    policy_bytes_max: Size = Field(16 * KIB, ge=64, le=MIB)
    """A policy written in Envoy's configuration; longer ones are a fault and the default policy serves."""
    policies_cached_max: int = Field(256, ge=1, le=100_000)
    """Parsed policies of Envoy's configuration kept at a time."""
    agent_streams_max: int = Field(1024, ge=1, le=100_000)
    """Agents connected at a time; further ones are refused."""
    agent_message_bytes_max: Size = Field(256 * KIB, ge=KIB, le=16 * MIB)
    """Longest message of an agent."""

    @field_validator("body_bytes_total_max")
    @classmethod
    def _holds_one(cls, total: int, info: ValidationInfo) -> int:
        if total < info.data.get("body_bytes_max", 0):
            msg = "at least body_bytes_max"
            raise ValueError(msg)
        return total


class JournalSettings(BaseModel):
    """Where the balancer's calls are written down, for `extproc replay`."""

    model_config = SETTINGS

    path: FilePath | None = None
    """The file that is written; full ones become `.1`, `.2` and so on. `None`: no journal."""
    file_bytes_max: Size = Field(64 * MIB, ge=4 * MIB, le=64 * GIB)
    """A file is full with so much."""
    files_max: int = Field(4, ge=2, le=100)
    """So many are kept, with the one that is written; the oldest goes first."""


WORKERS_MAX = 16
LOOPBACK_NETWORKS: Networks = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
PRIVATE_NETWORKS: Networks = (
    IPv4Network("10.0.0.0/8"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.168.0.0/16"),
    IPv6Network("fc00::/7"),
)


def _default_hosts(settings: dict[str, Any]) -> Networks:
    listen = settings.get("listen", Listen())
    return (LOOPBACK_NETWORKS if listen.agents.is_local else ()) + PRIVATE_NETWORKS


class Config(BalancerSettings):
    """All that `extproc serve` can be told; the balancer's settings stand at the top level beside the rest."""

    listen: Listen = Listen()
    hosts_allowed: Networks = Field(default_factory=_default_hosts, min_length=1, max_length=1000)
    """Networks that agents may name hosts of, and that hold all static nodes. Link-local, multicast and unspecified
    addresses are never taken. The default is private networks; and loopback, where only this machine reaches the
    agents' port: an agent elsewhere has no business aiming Envoy at what listens beside it, as Envoy's own admin
    page."""
    policies: dict[PolicyName, RoutingPolicy] = Field({"default": RoutingPolicy()}, max_length=1000)
    """What routes can ask for by name. `default` is always there and can be given other values."""
    default_policy: str = "default"
    """The policy of routes that name none, or one that is not known."""
    policies_strict: bool = False
    """Whether requests are answered 500 whose route names a policy that cannot be used, instead of the default's."""
    limits: ServeLimits = ServeLimits()
    nats: NatsSettings | None = None
    """Where routers and agents of a fleet meet; needs the extra `nats`. `None`: agents push to each router, and routers
    know of each other's requests by reports alone."""
    prefix_secret: FilePath | None = None
    """A file whose bytes key the hashes of prompts that routers tell each other: the same bytes at every router of the
    fleet. `None`: the fleet's name keys them, so that who listens on the bus can tell whether a prompt that he knows
    was sent. Without `nats` nothing is told, and chance keys them."""
    workers: int = Field(1, ge=1, le=WORKERS_MAX)
    """Processes, each a full router with its own port for Envoy: that of `listen.extproc`, and for each further one the
    port 10 higher, or the path with `.1`, `.2` and so on."""
    tokens: TokenSettings = TokenSettings()
    journal: JournalSettings = JournalSettings()
    drain_s: float = Field(10.0, ge=0, le=600)
    """After SIGTERM: how long requests that are still being decided may take before they are cut off."""

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, settings: object) -> object:
        """A section whose keys are all commented out is empty, not wrong."""
        if not isinstance(settings, dict):
            return settings
        return {key: value for key, value in settings.items() if value is not None or key not in cls.model_fields}

    @field_validator("policies", mode="before")
    @classmethod
    def _named_by_key(cls, policies: object) -> object:
        if not isinstance(policies, dict):
            return policies
        named = {"default": RoutingPolicy()} | policies
        return {name: _named(name, policy) for name, policy in named.items()}

    @field_validator("policies")
    @classmethod
    def _of_known_classes(cls, policies: dict[str, RoutingPolicy], info: ValidationInfo) -> dict[str, RoutingPolicy]:
        classes = info.data.get("classes")
        for name, policy in policies.items():
            if classes is not None and policy.priority is not None and policy.priority not in classes:
                msg = f"for priority of {name} one of {_listed(classes)}, not {policy.priority}"
                raise ValueError(msg)
        return policies

    @field_validator("default_policy")
    @classmethod
    def _exists(cls, name: str, info: ValidationInfo) -> str:
        policies: dict[str, RoutingPolicy] = info.data.get("policies", {name: None})
        if name not in policies:
            msg = f"one of {_listed(policies)}"
            raise ValueError(msg)
        return name


def _named(name: object, policy: object) -> object:
    if not isinstance(policy, dict):
        return policy
    if policy.get("name", name) != name:
        msg = f"no `name` in policies.{name}, or the same name"
        raise ValueError(msg)
    return policy | {"name": name}


def _listed(names: Iterable[str], shown_max: int = 10) -> str:
    names = sorted(names)
    return ", ".join(names[:shown_max]) + (", …" if len(names) > shown_max else "")


def parse(mapping: object, folder: Path = Path()) -> Config | list[Fault]:
    """A configuration, or every fault of the mapping. Relative paths start at `folder`. Never raises."""
    try:
        config = Config.model_validate(mapping, strict=True, context={"folder": folder})
    except ValidationError as error:
        return with_near_keys(faults_of(error), Config)
    return _static_nodes_outside(config) or config


def _static_nodes_outside(config: Config) -> list[Fault]:
    """Static nodes have to be where agents' nodes may be: else no agent could ever speak for them, and one of the two
    settings is wrong."""
    return [
        Fault(f"static_nodes.{place}.host", wanted, shown(one.host))
        for place, one in enumerate(config.static_nodes)
        if (wanted := nodehosts.refusal(one.host, config.hosts_allowed)) is not None
    ]


def read(path: Path) -> Config | list[Fault]:
    """The configuration in a YAML or JSON file, or its faults. An empty file is the default configuration."""
    match yamlfile.load(path):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            return parse({} if content is None else content, folder=path.parent)
        case other:
            assert_never(other)
