"""What `extproc agent` can be told, and how a mapping or a file becomes that."""

import enum
import re
from pathlib import Path
from typing import Annotated, Self, assert_never
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
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
from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.settings import Fault, faults_of
from extproc.core.snapshot import MODELS_MAX
from extproc.settingtypes import FilePath

_SETTINGS = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}


class EngineKind(enum.Enum):
    """Whose pages an engine's are."""

    AUTO = "auto"
    """Whichever /metrics looks like."""
    VLLM = "vllm"
    LLAMACPP = "llamacpp"


def _seconds(value: object) -> object:
    if isinstance(value, bool):
        msg = "seconds as a number, or with ms, s or m as in 500ms"
        raise ValueError(msg)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)) is not None:
        return float(match[1]) * _UNITS_S[match[2]]
    return value


def _router(value: object) -> Address:
    router = value if isinstance(value, TcpAddress | UnixAddress) else address.parse(str(value))
    return _with_port(router) if isinstance(router, TcpAddress) else router


def _host(value: object) -> TcpAddress:
    host = value if isinstance(value, TcpAddress) else address.parse(str(value))
    if isinstance(host, UnixAddress):
        msg = "host:port or [ipv6]:port"
        raise ValueError(msg)
    return _with_port(host)


def _with_port(host: TcpAddress) -> TcpAddress:
    if host.port == 0:
        msg = "a port from 1 to 65535"
        raise ValueError(msg)
    return host


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


def _model_name(value: str) -> str:
    if not (1 <= len(value) <= MODEL_CHARS_MAX and value.isprintable()):
        msg = f"1..{MODEL_CHARS_MAX} printable characters"
        raise ValueError(msg)
    return value


Seconds = Annotated[float, BeforeValidator(_seconds)]


class EngineConfig(BaseModel):
    """One engine, which is one node."""

    model_config = _SETTINGS

    node_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$")]
    """Unique in the fleet, stable over restarts."""
    engine: Annotated[str, PlainValidator(_engine_url)]
    """Where the agent reaches the engine; a path before `/metrics` may follow the port."""
    host: Annotated[TcpAddress, PlainValidator(_host)]
    """Where Envoy reaches the engine. A name is resolved here, since snapshots carry addresses only.
    Absent: the host and port of `engine`."""
    engine_kind: EngineKind = EngineKind.AUTO
    weight: float = Field(1.0, gt=0, le=1000)
    """Share in the router's fallback round robin."""
    gpu: int | None = Field(None, ge=0, le=255)
    """NVML's index of the engine's GPU. Absent: the machine's only GPU, if it has just one."""
    adapters_loadable: Annotated[
        tuple[Annotated[str, AfterValidator(_model_name)], ...], Field(max_length=MODELS_MAX - 1)
    ] = ()
    """LoRA adapters that the engine would load if they were asked for, by the names that clients write in `model`.
    Those that it lists itself are loaded, whether they stand here or not."""

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


class RouterTls(BaseModel):
    """TLS towards every router. Files are PEM, and are read anew for each connection."""

    model_config = _SETTINGS

    ca: FilePath
    """Certificates of authorities, of which one signed the routers'."""
    certificate: FilePath | None = None
    """What the agent shows to routers that ask for a certificate, and after it those between it and its authority."""
    key: FilePath | None = None
    """The private key of `certificate`, without a password."""
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_*.:-]{1,253}$")] | None = None
    """The name that routers' certificates must have. `None`: the host in `routers`."""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            msg = "certificate and key, or neither"
            raise ValueError(msg)
        return self


class AgentConfig(BaseModel):
    """All that `extproc agent` can be told. Times are seconds, or texts as `500ms`, `1s` and `2m`."""

    model_config = _SETTINGS

    routers: Annotated[
        tuple[Annotated[TcpAddress | UnixAddress, PlainValidator(_router)], ...], Field(max_length=64)
    ] = (TcpAddress("127.0.0.1", 9004),)
    """Every router gets every snapshot."""
    tls: RouterTls | None = None
    """`None`: plain text."""
    insecure: bool = False
    """Whether the token may go to other machines in plain text."""
    token_file: FilePath | None = None
    """A file whose first token is shown to every router; read anew for each connection. `None`: none is shown."""
    engines: Annotated[tuple[EngineConfig, ...], Field(max_length=1024)]
    interval_s: Seconds = Field(1.0, ge=0.02, le=60)
    """How often each engine is looked at and reported. A router's `report_interval_s` should say the same."""
    scrape_timeout_s: Seconds = Field(1.0, ge=0.01, le=60)
    """Longest look at an engine; one whose /health is late ten times in a row is reported as loading."""
    models_interval_s: Seconds = Field(30.0, ge=0.02, le=3600)
    """How often the list of models is read again; after a restart it is read at once."""
    page_bytes_max: int = Field(4 * 1024 * 1024, ge=1024, le=1024**3)
    """Longest page that is read from an engine."""
    reconnect_backoff_s_max: Seconds = Field(5.0, ge=0.1, le=600)
    """Longest pause before a lost router is tried again."""
    goodbye_s: Seconds = Field(1.0, ge=0, le=60)
    """How long the goodbyes may take at the end."""

    @field_validator("routers", "engines")
    @classmethod
    def _one_at_least(cls, listed: tuple[object, ...]) -> tuple[object, ...]:
        # `min_length` would also complain about a list whose entries are all wrong.
        if not listed:
            msg = "at least one"
            raise ValueError(msg)
        return listed

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({engine.node_id for engine in self.engines}) != len(self.engines):
            msg = "engines with a node_id of their own each"
            raise ValueError(msg)
        return self

    @field_validator("token_file")
    @classmethod
    def _token_is_kept_secret(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        told = info.data
        if path is None or "tls" not in told or told["tls"] is not None or told.get("insecure", True):
            return path
        far = [router for router in told.get("routers", ()) if not router.is_local]
        if far:
            msg = f"tls beside a token for {far[0]}, which others could read on its way; or insecure: true"
            raise ValueError(msg)
        return path

    @field_validator("tls")
    @classmethod
    def _sockets_have_no_name(cls, tls: RouterTls | None, info: ValidationInfo) -> RouterTls | None:
        sockets = any(isinstance(router, UnixAddress) for router in info.data.get("routers", ()))
        if tls is not None and tls.server_name is None and sockets:
            msg = "server_name: a unix socket has none to hold against the router's certificate"
            raise ValueError(msg)
        return tls


def parse(mapping: object, folder: Path = Path()) -> AgentConfig | list[Fault]:
    """A configuration, or every fault of the mapping. Relative paths start at `folder`. Never raises."""
    try:
        return AgentConfig.model_validate(mapping, context={"folder": folder})
    except ValidationError as error:
        return faults_of(error)


def read(path: Path) -> AgentConfig | list[Fault]:
    """The configuration in a YAML or JSON file, or its faults."""
    match yamlfile.load(path):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            return parse(content, folder=path.parent)
        case other:
            assert_never(other)
