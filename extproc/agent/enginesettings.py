"""What an agent can be told of one engine."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from extproc import address
from extproc.address import TcpAddress, UnixAddress
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.genericsettings import GenericConfig
from extproc.agent.gpu.usage import GPUS_MAX, GpuName, name_of
from extproc.agent.kv.settings import KvEventsConfig
from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.snapshot import CONTEXT_LENGTH_TOKENS_MAX, MODELS_MAX

SETTINGS = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _host(value: object) -> TcpAddress:
    host = value if isinstance(value, TcpAddress) else address.parse(str(value))
    if isinstance(host, UnixAddress):
        msg = "host:port or [ipv6]:port"
        raise ValueError(msg)
    return with_port(host)


def _engine_url(value: object) -> str:
    msg = "http://host:port or https://host:port"
    text = str(value).rstrip("/")
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(msg) from None
    if (
        not sound
        or parts.username is not None
        or parts.query
        or parts.fragment
        or not text.isprintable()
        or " " in text
    ):
        raise ValueError(msg)
    return text


def with_port(host: TcpAddress) -> TcpAddress:
    """The same. Raises `ValueError` for port 0."""
    if host.port == 0:
        msg = "a port from 1 to 65535"
        raise ValueError(msg)
    return host


def _page_url(value: object) -> str:
    text = str(value)
    if not text.startswith("/"):
        return _engine_url(value)
    if not text.isprintable() or " " in text or text.startswith("//"):
        msg = "a path, or http://host:port/path"
        raise ValueError(msg)
    return text


def _gpus(value: object) -> tuple[GpuName, ...]:
    listed = value if isinstance(value, list | tuple) else [] if value is None else [value]
    names = [name_of(str(one)) if isinstance(one, int | str) and not isinstance(one, bool) else None for one in listed]
    known = tuple(name for name in names if name is not None)
    if len(known) != len(names) or len(set(known)) != len(known) or len(known) > GPUS_MAX:
        msg = f"an index, index:instance, GPU-… or MIG-…, or a list of up to {GPUS_MAX}, each once"
        raise ValueError(msg)
    return known


def _model_name(value: str) -> str:
    if not (1 <= len(value) <= MODEL_CHARS_MAX and value.isprintable()):
        msg = f"1..{MODEL_CHARS_MAX} printable characters"
        raise ValueError(msg)
    return value


ModelName = Annotated[str, AfterValidator(_model_name)]


class ModelConfig(BaseModel):
    """A model that an engine serves, for those that do not list their own."""

    model_config = SETTINGS

    name: ModelName
    """As clients write it in `model`."""
    context_length_tokens: int | None = Field(None, ge=1, le=CONTEXT_LENGTH_TOKENS_MAX)
    """Prompt and output together. `None`: not known."""


class EngineConfig(BaseModel):
    """One engine, which is one node."""

    model_config = SETTINGS

    node_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$")]
    """Unique in the fleet, stable over restarts."""
    engine: Annotated[str, PlainValidator(_engine_url)]
    """Where the agent reaches the engine; a path before `/metrics` may follow the port."""
    host: Annotated[TcpAddress, PlainValidator(_host)]
    """Where Envoy reaches the engine. A name is resolved here, since snapshots carry addresses only.
    Absent: the host and port of `engine`."""
    engine_kind: EngineKind = EngineKind.AUTO
    generic: GenericConfig | None = Field(None, validate_default=True)
    """Which of its metrics is what, for `engine_kind: generic` and only for that."""
    metrics: Annotated[str, PlainValidator(_page_url)] | None = None
    """Where its metrics are: a path there, or a URL where they have a port of their own. `None`: as usual for its
    kind."""
    health: Annotated[str, PlainValidator(_page_url)] | None = None
    """What answers 200 where it can serve, likewise. `None`: as usual for its kind."""
    models: Annotated[tuple[ModelConfig, ...], Field(max_length=MODELS_MAX)] | None = None
    """What it serves, where it lists no models itself. `None`: what it lists."""
    probe: bool = False
    """Whether it must answer a prompt of one token before it is ready, each time that it comes up."""
    weight: float = Field(1.0, gt=0, le=1000)
    """Share in the router's fallback round robin."""
    gpu: Annotated[tuple[GpuName, ...], PlainValidator(_gpus)] = ()
    """Its GPUs, one or several: each an index, an index with the id of MIG's instance as `0:1`, or a UUID of NVIDIA's.
    Empty: the machine's only GPU, if it has just one."""
    dcgm: Annotated[str, PlainValidator(_engine_url)] | None = None
    """The page of a DCGM exporter, to be asked for the GPUs instead of the machine's driver."""
    kv_events: KvEventsConfig | None = None
    """Where it publishes what its prefix cache has. `None`: that is not heard."""
    adapters_loadable: Annotated[tuple[ModelName, ...], Field(max_length=MODELS_MAX - 1)] = ()
    """LoRA adapters that the engine would load if they were asked for, by the names that clients write in `model`.
    Those that it lists itself are loaded, whether they stand here or not."""

    @field_validator("generic")
    @classmethod
    def _told_if_generic(cls, generic: GenericConfig | None, info: ValidationInfo) -> GenericConfig | None:
        kind = info.data.get("engine_kind")
        if kind is not None and (kind is EngineKind.GENERIC) != (generic is not None):
            needed, useless = "a mapping from fields to metrics, as", "no mapping, since it is only for"
            msg = f"{needed if generic is None else useless} engine_kind: generic{' needs' if generic is None else ''}"
            raise ValueError(msg)
        return generic

    @field_validator("adapters_loadable")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            msg = "each name once"
            raise ValueError(msg)
        return names

    @model_validator(mode="before")
    @classmethod
    def _reached_like_the_agent_does(cls, mapping: object) -> object:
        if not isinstance(mapping, dict) or mapping.get("host") is not None or "engine" not in mapping:
            return mapping
        try:
            parts = urlsplit(_engine_url(mapping["engine"]))
        except ValueError:
            # The URL is reported as a fault of its own; that of a missing host would only mislead.
            return mapping | {"host": TcpAddress("unknown", 80)}
        assert parts.hostname is not None
        return mapping | {"host": TcpAddress(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))}
