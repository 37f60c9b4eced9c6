"""What Envoy's configuration is rendered from: a small description, and how a mapping or a file becomes one."""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, assert_never

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)

from extproc import yamlfile
from extproc.address import PORT_MAX, Address, TcpAddress, UnixAddress, of_worker
from extproc.config import WORKERS_MAX
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.settings import Fault, faults_of
from extproc.nearkeys import with_near_keys
from extproc.settingtypes import SETTINGS, AnyAddress
from extproc.sizes import GIB, KIB, MIB, Size

Destination = Literal["original-dst", "original-dst-metadata", "override-host"]
"""How Envoy is told the node: a header, dynamic metadata, or a list of hosts that its own cluster knows."""

BodyMode = Literal["buffered", "full-duplex", "streamed", "buffered-partial", "none"]
"""What extproc is shown of a request's body."""


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _policy(value: object) -> object:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    if not isinstance(value, Mapping):
        msg = "a policy's name, or a policy as a mapping"
        raise ValueError(msg)
    match policy_from_mapping(value):
        case RoutingPolicy():
            return value
        case faults:
            raise ValueError("; ".join(f"{fault.path}: {fault.wanted}" for fault in faults))


_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
HeaderText = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=128)]
PathPrefix = Annotated[str, Field(pattern=r"^/[A-Za-z0-9/._~-]*$", max_length=256)]
Namespace = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=128)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=128)]
TlsPath = Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$", max_length=1024)]
"""A file as Envoy opens it: it need not be there where the configuration is rendered."""
Policy = Annotated[str | dict[str, Any], PlainValidator(_policy)]
"""The name of one of extproc's policies, or a policy written in place."""


class Tls(BaseModel):
    """TLS of Envoy as the client."""

    model_config = SETTINGS

    ca: TlsPath
    """File with the certificates, PEM, that the other side's has to come from."""
    certificate: TlsPath | None = None
    """Envoy's own, for mutual TLS, with `key`. Both are read when Envoy starts."""
    key: TlsPath | None = None
    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.:*-]+$")] | None = None
    """SNI, and what the other side's certificate has to name. `None`: any certificate of `ca` is taken."""

    @model_validator(mode="after")
    def _pair(self) -> "Tls":
        if (self.certificate is None) != (self.key is None):
            msg = "certificate and key, or neither"
            raise ValueError(msg)
        return self


class Route(BaseModel):
    """Paths that clients may use."""

    model_config = SETTINGS

    prefix: PathPrefix
    rewrite: PathPrefix | None = None
    """What the node sees instead of the prefix."""
    name: Name | None = None
    """In Envoy's statistics and logs: `NAME-chosen` and `NAME-known`. `None`: `chosen` and `known`."""
    policy: Policy | None = None
    """Of this route; `None`: the description's."""
    first_tokens: bool = False
    """extproc is shown the head and the first piece of each answer. About 0.2 ms of both processes' time a request."""


class Description(BaseModel):
    """All that rendering is told. The default is Envoy beside one extproc on this machine, as in `envoy/demo.yaml`."""

    model_config = SETTINGS

    about: Annotated[str, Field(max_length=4000, pattern=r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]*$")] = ""
    """Words at the top of what is written, as comments."""
    listen: AnyAddress = TcpAddress("127.0.0.1", 8080)
    admin: AnyAddress = TcpAddress("127.0.0.1", 9901)
    """Envoy's own pages; whoever reaches them may change settings."""
    destination: Destination = "original-dst"
    destinations_max: int = Field(3, ge=1, le=16)
    """Hosts of an override-host list, as in extproc's policy: one retry for each after the first."""
    body_mode: BodyMode = "buffered"
    processor: Annotated[tuple[AnyAddress, ...], BeforeValidator(_tuple)] = Field(
        (TcpAddress("127.0.0.1", 9002),), max_length=100
    )
    """Where `extproc serve` listens, each of them. Names are asked for again and again."""
    workers: int = Field(1, ge=1, le=WORKERS_MAX)
    """Of each `serve`, as its own `workers`: each has the next address (`address.of_worker`)."""
    several_processors: bool = False
    """Whether a name of `processor` stands for several; more than one address says so by itself."""
    processor_tls: Tls | None = None
    """Towards extproc. `None`: plain text."""
    nodes: Annotated[tuple[AnyAddress, ...], BeforeValidator(_tuple)] = Field((), max_length=10_000)
    """Nodes that Envoy knows itself: with fail_open they serve while extproc is down; override-host chooses of them."""
    node_tls: Tls | None = None
    """Towards the nodes, chosen and known."""
    node_http2: bool = False
    """Nodes speak HTTP/2, as gRPC does, instead of HTTP/1.1."""
    health_path: PathPrefix | None = "/health"
    """What known nodes are asked for every 2 s. `None`: nothing."""
    fail_open: bool = True
    """Requests go to `nodes` while extproc is down, hangs or knows no node; `false`: they are refused."""
    failover: bool = False
    """A chosen node that cannot be reached, or breaks off before its answer, is replaced by one of `nodes`. Needs Envoy
    1.37, fail_open and a health_path. Not for override-host: its retries go to the other hosts of extproc's list."""
    routes: Annotated[tuple[Route, ...], BeforeValidator(_tuple)] = Field((Route(prefix="/v1/"),), max_length=100)
    """What clients may ask, the first that matches counts; everything else is 404."""
    policy: Policy = "default"
    """Of routes that say nothing."""
    route_metadata: bool = False
    """extproc is shown the routes' own metadata, where a policy may stand in the namespace `extproc.policy`."""
    headers_shown: Annotated[tuple[HeaderText, ...], BeforeValidator(_tuple)] = Field((), max_length=100)
    """Request headers that extproc is shown besides what it always needs: the tenant_header and priority_header."""
    metadata_shown: Annotated[tuple[Namespace, ...], BeforeValidator(_tuple)] = Field((), max_length=100)
    """Namespaces of dynamic metadata that extproc is shown besides its own: that of a policy's tenant_metadata."""
    model_header: HeaderText = "x-model"
    """Header that names the model where Envoy shows no whole body; as in extproc's policies."""
    body_bytes_max: Size = Field(32 * MIB, ge=KIB, le=GIB)
    """Longest request body; extproc's limits.body_bytes_max has to be the same."""
    heap_bytes_max: Size = Field(2 * GIB, ge=64 * MIB, le=1024 * GIB)
    """Memory that Envoy may take."""
    connections_max: int = Field(50_000, ge=1, le=10_000_000)
    """Clients' connections at a time."""
    message_timeout_s: float = Field(10.0, gt=0, le=3600)
    """How long one answer of extproc may take."""
    queue_timeout_s: float = Field(75.0, gt=0, le=86_400)
    """How long requests may wait in extproc's queue: over the longest queue_ms_max of its classes."""
    upload_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """How long a request may take to arrive."""
    idle_timeout_s: float = Field(3600.0, gt=0, le=86_400)
    """How long a stream may be without a byte in either direction."""
    websockets: bool = True
    """Connections may be upgraded to websockets, as for /v1/realtime."""
    usage: bool = False
    """Tokens that engines counted are told to extproc: 0.1 ms of Envoy's time a request and 3 µs a streamed piece."""
    decision_headers: bool = False
    """Answers tell the client what was decided: for demonstrations."""

    @property
    def endpoints(self) -> tuple[Address, ...]:
        """Where Envoy finds every worker of every `serve`."""
        return tuple(of_worker(one, number) for one in self.processor for number in range(self.workers))

    @field_validator("processor", "routes")
    @classmethod
    def _some(cls, listed: tuple[Any, ...]) -> tuple[Any, ...]:
        # Not min_length: pydantic counts what is left where an item has a fault of its own.
        if not listed:
            msg = "at least one"
            raise ValueError(msg)
        return listed

    @field_validator("processor", "nodes")
    @classmethod
    def _one_kind(cls, addresses: tuple[Address, ...]) -> tuple[Address, ...]:
        if any(isinstance(one, UnixAddress) for one in addresses) and any(is_name(one) for one in addresses):
            msg = "unix sockets or names, not both: Envoy resolves names in a cluster of their own"
            raise ValueError(msg)
        if any(isinstance(one, TcpAddress) and one.port == 0 for one in addresses):
            msg = "ports from 1 on"
            raise ValueError(msg)
        return addresses

    @model_validator(mode="after")
    def _each_has_a_place(self) -> "Description":
        for one in self.endpoints:
            if isinstance(one, TcpAddress) and one.port > PORT_MAX:
                msg = f"ports up to {PORT_MAX} for all workers ({one})"
                raise ValueError(msg)
        if len(set(self.endpoints)) < len(self.endpoints):
            msg = f"with workers ({self.workers}) addresses of `processor` that are no worker's of another"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _replaceable(self) -> "Description":
        if self.failover and self.destination == "override-host":
            msg = "no failover with override-host: its retries go to the other hosts of the list"
            raise ValueError(msg)
        if self.failover and not self.fail_open:
            # An attempt without a destination fails, and the next one goes to a known node.
            msg = "fail_open with failover: known nodes serve in both"
            raise ValueError(msg)
        if self.failover and self.health_path is None:
            msg = "health_path with failover: else a dead node is tried twice"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _ordered(self) -> "Description":
        if self.message_timeout_s > self.queue_timeout_s:
            msg = f"message_timeout_s ({self.message_timeout_s:g}) <= queue_timeout_s ({self.queue_timeout_s:g})"
            raise ValueError(msg)
        return self


def is_name(address: Address) -> bool:
    """Whether Envoy has to ask DNS for the address."""
    match address:
        case UnixAddress():
            return False
        case TcpAddress(host, _):
            try:
                ip_address(host)
            except ValueError:
                return True
            return False
        case other:
            assert_never(other)


def parse(mapping: object) -> Description | list[Fault]:
    """A description, or every fault of the mapping. Never raises."""
    try:
        return Description.model_validate(mapping, strict=True)
    except ValidationError as error:
        return with_near_keys(faults_of(error), Description)


def read(path: Path) -> Description | list[Fault]:
    """The description in a YAML or JSON file, or its faults."""
    match yamlfile.load(path):
        case Fault() as fault:
            return [fault]
        case yamlfile.Document(content):
            return parse({} if content is None else content)
        case other:
            assert_never(other)
