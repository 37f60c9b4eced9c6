"""What `extproc agent` can be told, and how a mapping or a file becomes that."""

import re
from pathlib import Path
from typing import Annotated, Any, Self, assert_never

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from extproc import address, yamlfile
from extproc.address import Address, TcpAddress, UnixAddress
from extproc.agent import routername
from extproc.agent.enginesettings import SETTINGS, EngineConfig, with_port
from extproc.agent.routername import Router, RouterName
from extproc.bus.settings import NatsSettings
from extproc.core.settings import Fault, faults_of
from extproc.nearkeys import with_near_keys
from extproc.peers.tlssettings import ClientTls
from extproc.settingtypes import FilePath

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}


def _seconds(value: object) -> object:
    if isinstance(value, bool):
        msg = "seconds as a number, or with ms, s or m as in 500ms"
        raise ValueError(msg)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)) is not None:
        return float(match[1]) * _UNITS_S[match[2]]
    return value


def _router(value: object) -> Router:
    router = value if isinstance(value, TcpAddress | UnixAddress | RouterName) else routername.parse(str(value))
    if not isinstance(router, UnixAddress):
        with_port(TcpAddress(router.host, router.port))
    return router


def _routers(told: dict[str, Any]) -> tuple[Router, ...]:
    return () if told.get("nats") else (TcpAddress("127.0.0.1", 9004),)


def _admin(value: object) -> Address:
    return value if isinstance(value, TcpAddress | UnixAddress) else address.parse(str(value))


Seconds = Annotated[float, BeforeValidator(_seconds)]
ROUTERS_MAX = 64
"""Routers that are told, of the list and by names together."""
IDLE_INTERVAL_S_MAX = 3.0
"""Snapshots are fresh for 5 s by default at routers, and servers close connections that were idle for so long."""


class AgentConfig(BaseModel):
    """All that `extproc agent` can be told. Times are seconds, or texts as `500ms`, `1s` and `2m`."""

    model_config = SETTINGS

    nats: NatsSettings | None = None
    """A bus where every snapshot is published once, for all routers that listen there. `None`: there is none."""
    routers: Annotated[
        tuple[Annotated[TcpAddress | UnixAddress | RouterName, PlainValidator(_router)], ...],
        Field(max_length=ROUTERS_MAX, default_factory=_routers),
    ]
    """Every router gets every snapshot, unless it has it from the bus. `dns:name:port` is every address of the name.
    Left out: the one on this machine; none where there is a bus."""
    resolve_interval_s: Seconds = Field(5.0, ge=0.1, le=3600)
    """How often such names are looked up; and at once, at most once a second, when a router is lost."""
    tls: ClientTls | None = None
    """`None`: plain text."""
    insecure: bool = False
    """Whether the token may go to other machines in plain text."""
    token_file: FilePath | None = None
    """A file whose first token is shown to every router; read anew for each connection. `None`: none is shown."""
    engines: Annotated[tuple[EngineConfig, ...], Field(max_length=1024)]
    interval_s: Seconds = Field(1.0, ge=0.02, le=60)
    """How often each engine is looked at and reported while it has work. A router's `report_interval_s` should say the
    same."""
    idle_interval_s: Seconds = Field(2.0, ge=0.02, le=IDLE_INTERVAL_S_MAX)
    """The same of an engine without requests; `interval_s` where that is longer."""
    scrape_timeout_s: Seconds = Field(1.0, ge=0.01, le=60)
    """Longest look at an engine; one whose /health is late ten times in a row is reported as loading."""
    models_interval_s: Seconds = Field(30.0, ge=0.02, le=3600)
    """How often the list of models is read again; after a restart it is read at once."""
    probe_timeout_s: Seconds = Field(30.0, ge=0.1, le=600)
    """Longest wait for the token of an engine's `probe`."""
    hung_s: Seconds | None = Field(120.0, ge=1, le=3600)
    """An engine with work whose page stands still for so long is reported as loading, and so is one whose /metrics does
    not answer. Longer than any step may take: one of a long prompt in pieces is of seconds, of 128 Ki tokens at once on
    a slow engine a minute. `None`: never."""
    drain_s: Seconds = Field(20.0, ge=0, le=3600)
    """How long, after SIGTERM, nodes are reported as draining while their engines have requests. 0: goodbye at once."""
    admin: Annotated[TcpAddress | UnixAddress, PlainValidator(_admin)] | None = None
    """Where the agent itself answers: whether it lives, what it saw, and calls to drain nodes. `None`: nowhere."""
    admin_remote: bool = False
    """Whether those calls are taken from other machines too."""
    page_bytes_max: int = Field(4 * 1024 * 1024, ge=1024, le=1024**3)
    """Longest page that is read from an engine. A vLLM's has 53 KB, that of 64 data-parallel engines 2.2 MB; what the
    event loop spends on one is bounded by `exposition.SAMPLES_MAX`."""
    reconnect_backoff_s_max: Seconds = Field(3.0, ge=0.1, le=600)
    """Longest pause before a lost router is tried again."""
    goodbye_s: Seconds = Field(1.0, ge=0, le=60)
    """How long the goodbyes may take at the end."""

    @field_validator("routers", "engines")
    @classmethod
    def _one_at_least(cls, listed: tuple[object, ...], info: ValidationInfo) -> tuple[object, ...]:
        # `min_length` would also complain about a list whose entries are all wrong.
        if not listed and not (info.field_name == "routers" and info.data.get("nats", True)):
            msg = "at least one"
            raise ValueError(msg)
        return listed

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({engine.node_id for engine in self.engines}) != len(self.engines):
            msg = "engines with a node_id of their own each"
            raise ValueError(msg)
        at: dict[TcpAddress, str] = {}
        for engine in self.engines:
            if (other := at.setdefault(engine.host, engine.node_id)) != engine.node_id:
                msg = f"engines with a host of their own each ({other} and {engine.node_id} have {engine.host})"
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
    def _sockets_have_no_name(cls, tls: ClientTls | None, info: ValidationInfo) -> ClientTls | None:
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
        return with_near_keys(faults_of(error), AgentConfig)


def read(path: Path) -> AgentConfig | list[Fault]:
    """The configuration in a YAML or JSON file, or its faults."""
    match yamlfile.load(path):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            return parse(content, folder=path.parent)
        case other:
            assert_never(other)
