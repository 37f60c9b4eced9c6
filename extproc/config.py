"""What `extproc serve` can be told, and how a mapping or a file becomes that.

A configuration is whole or it is refused: `parse` and `read` return a `Config`, or every fault with its path, what was
wanted and what stood there. Nothing is corrected silently and nothing is read from the environment.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, assert_never

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from extproc import address, yamlfile
from extproc.address import Address, TcpAddress, UnixAddress
from extproc.core.policy import PolicyName, RoutingPolicy
from extproc.core.settings import BalancerSettings, Fault, faults_of

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_SIZE = re.compile(r"([0-9]{1,15})(KiB|MiB|GiB)")


def _address(value: object) -> Address:
    return value if isinstance(value, TcpAddress | UnixAddress) else address.parse(str(value))


def _size(value: object) -> object:
    if isinstance(value, str):
        if (match := _SIZE.fullmatch(value)) is None:
            msg = "bytes as a number, or with KiB, MiB or GiB as in 32MiB"
            raise ValueError(msg)
        return int(match[1]) * _UNITS[match[2]]
    return value


def _networks(value: object) -> object:
    if not isinstance(value, list | tuple):
        msg = "a list of networks as 10.0.0.0/8"
        raise ValueError(msg)
    networks = []
    for one in value:
        try:
            networks.append(ip_network(one if isinstance(one, str | IPv4Network | IPv6Network) else str(one)))
        except ValueError:
            msg = f"networks as 10.0.0.0/8 or fc00::/7, without host bits; not {str(one)[:60]!r}"
            raise ValueError(msg) from None
    return tuple(networks)


def _path(value: object, info: ValidationInfo) -> object:
    # Relative paths are relative to the file they stand in, so that a configuration can be moved with its tokenizers.
    folder: Path = (info.context or {}).get("folder", Path())
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        msg = "a path"
        raise ValueError(msg)
    return folder / value


AnyAddress = Annotated[TcpAddress | UnixAddress, PlainValidator(_address)]
Size = Annotated[int, BeforeValidator(_size)]
Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], BeforeValidator(_networks)]
FilePath = Annotated[Path, BeforeValidator(_path)]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]

_SETTINGS = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _any_port(listen: Address) -> bool:
    return isinstance(listen, TcpAddress) and listen.port == 0


class Listen(BaseModel):
    """Where the three servers listen: `host:port`, `[ipv6]:port` or `unix:/path`. Port 0 takes a free one."""

    model_config = _SETTINGS

    extproc: AnyAddress = TcpAddress("127.0.0.1", 9002)
    """gRPC for Envoy: the external processor and the standard health service."""
    agents: AnyAddress = TcpAddress("127.0.0.1", 9004)
    """gRPC for the agents beside the engines."""
    admin: AnyAddress = TcpAddress("127.0.0.1", 9090)
    """HTTP for operators: health, metrics, nodes, decisions. It has no login: keep it on a trusted network."""

    @field_validator("agents", "admin")
    @classmethod
    def _of_its_own(cls, listen: Address, info: ValidationInfo) -> Address:
        taken = [name for name, other in info.data.items() if other == listen and not _any_port(other)]
        if taken:
            msg = f"an address of its own, not that of {taken[0]}"
            raise ValueError(msg)
        return listen


class ServeLimits(BaseModel):
    """What clients, Envoy and agents can make us hold."""

    model_config = _SETTINGS

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


class ModelTokenizer(BaseModel):
    """How the prompts of some models are counted: by a tokenizer, or as those of another model."""

    model_config = _SETTINGS

    hub: bool = False
    """True: the files come from a hub of models (Hugging Face's, or HF_ENDPOINT). Nothing is downloaded without it."""
    tokenizer: str | None = Field(None, min_length=1, max_length=4096)
    """A `tokenizer.json`, or a folder with one, its `tokenizer_config.json` and its chat template; a relative path
    starts at the configuration's folder. With `hub`: a repository's name."""
    base: Pattern | None = None
    """Instead of a tokenizer: counted as this model, as a LoRA adapter is."""
    chat_template: FilePath | None = None
    """A Jinja file in place of the folder's own template."""
    required: bool = True
    """False: a tokenizer that cannot be loaded is logged, and prompts are estimated. True: then there is no start."""
    revision: str = Field("main", min_length=1, max_length=256)
    """Of the hub's repository: a branch, a tag or, best, a commit."""

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _from_the_folder(cls, tokenizer: object, info: ValidationInfo) -> object:
        return tokenizer if tokenizer is None or info.data.get("hub") else str(_path(tokenizer, info))

    @model_validator(mode="after")
    def _one_way(self) -> "ModelTokenizer":
        if (self.tokenizer is None) == (self.base is None):
            msg = "either a tokenizer or a base"
        elif self.base is not None and {"chat_template", "hub", "revision"} & self.model_fields_set:
            msg = "no chat_template, hub or revision beside a base, which has its own"
        elif not self.hub and "revision" in self.model_fields_set:
            msg = "a revision only with hub"
        else:
            return self
        raise ValueError(msg)


def by_precedence(patterns: Iterable[str]) -> list[str]:
    """Patterns of model names in the order in which they are tried, after exact names: the longest first."""
    return sorted(patterns, key=lambda pattern: (-len(pattern), pattern))


class TokenSettings(BaseModel):
    """How prompts are counted."""

    model_config = _SETTINGS

    models: dict[Pattern, ModelTokenizer] = Field({}, max_length=1000)
    """By model name, or by a pattern with `*`, `?` and `[…]`. The exact name wins, then the longest pattern."""
    token_budget_ms: float = Field(20.0, ge=0, le=10_000)
    """How long a request waits for its count; then it is routed by the estimate, and the count is put right later."""
    bytes_per_token: float = Field(4.0, ge=0.1, le=1000)
    """The estimate until exact counts have taught a better one: bytes of text per token."""
    message_tokens: int = Field(4, ge=0, le=1000)
    """Added for each chat message that no template renders: the control tokens around it."""
    image_tokens: int = Field(1000, ge=0, le=1_000_000)
    """What an image part costs."""
    audio_tokens: int = Field(500, ge=0, le=1_000_000)
    """What an audio part costs."""
    file_tokens: int = Field(2000, ge=0, le=1_000_000)
    """What a file, a video or a part of unknown kind costs."""
    inline_bytes_max: Size = Field(8 * KIB, ge=0, le=64 * KIB)
    """Text up to this is encoded on the event loop, longer text in a thread."""
    waiting_bytes_max: Size = Field(16 * MIB, ge=64 * KIB, le=GIB)
    """Text being encoded or waiting for it; over it prompts are estimated. `tokenizers` makes text weigh eightfold."""
    threads: int = Field(2, ge=1, le=64)
    """Threads that encode."""
    cache_bytes_max: Size = Field(64 * MIB, ge=0, le=GIB)
    """Memory for the counts of chats' earlier messages, so that only what is new is encoded; 0 keeps none."""
    chat_messages_max: int = Field(2000, ge=1, le=100_000)
    """Chats of more messages are not rendered but estimated: a template takes 2 µs for each, on the event loop."""
    chat_bytes_max: Size = Field(4 * MIB, ge=KIB, le=GIB)
    """Chats of more text are not rendered either: no other Python runs meanwhile, 5 ms for so much."""
    template_fuel: int = Field(100_000, ge=1000, le=10_000_000)
    """Steps that a chat template may take, beside 100 for each message and one for every 8 bytes of text; a chat that
    needs more is estimated."""

    @field_validator("models")
    @classmethod
    def _bases_are_tokenizers(cls, models: dict[str, ModelTokenizer]) -> dict[str, ModelTokenizer]:
        patterns = by_precedence(models)
        for name, entry in models.items():
            if entry.base is None:
                continue
            match = next((one for one in patterns if fnmatchcase(entry.base, one)), None)
            base = models.get(entry.base) or models.get(match or "")
            if base is None or base.base is not None:
                msg = f"for {name[:60]!r} a base that an entry with a tokenizer matches, not {entry.base[:60]!r}"
                raise ValueError(msg)
        return models


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
    """Networks that agents may name hosts of. Link-local, multicast and unspecified addresses are never taken. The
    default is private networks; and loopback, where only this machine reaches the agents' port: an agent elsewhere
    has no business aiming Envoy at what listens beside it, as Envoy's own admin page."""
    policies: dict[PolicyName, RoutingPolicy] = Field({"default": RoutingPolicy()}, max_length=1000)
    """What routes can ask for by name. `default` is always there and can be given other values."""
    default_policy: str = "default"
    """The policy of routes that name none, or one that is not known."""
    limits: ServeLimits = ServeLimits()
    tokens: TokenSettings = TokenSettings()
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
        return Config.model_validate(mapping, strict=True, context={"folder": folder})
    except ValidationError as error:
        return faults_of(error)


def read(path: Path) -> Config | list[Fault]:
    """The configuration in a YAML or JSON file, or its faults. An empty file is the default configuration."""
    match yamlfile.load(path):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            return parse({} if content is None else content, folder=path.parent)
        case other:
            assert_never(other)
