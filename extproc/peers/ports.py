"""What protects each gRPC port of `serve`: its TLS, whose files can change while it runs, and its gate."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import structlog
from msgspec import Struct

from extproc.config import Listen
from extproc.core.settings import Fault
from extproc.ops.metrics import Metrics
from extproc.peers.gate import PeerGate
from extproc.peers.pemfiles import Identity, certificates_of, identity_of
from extproc.peers.reloaded import FilesError, Reloaded
from extproc.peers.tlssettings import PortTls
from extproc.peers.tokens import TokenSet, tokens_of

Content = TypeVar("Content")

PORTS = ("extproc", "agents", "scaler")
"""The gRPC ports, as the configuration names them."""


@dataclass(frozen=True, slots=True)
class PortSecurity:
    """How one port is protected."""

    credentials: grpc.ServerCredentials | None
    """For gRPC; `None`: plain text."""
    gates: tuple[PeerGate, ...]
    """Interceptors of its server."""


class _Pem(Struct, frozen=True):
    """What TLS of one port needs."""

    identity: Identity
    client_ca: bytes | None

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """Made anew each time: gRPC takes it away from us."""
        pair = (self.identity.key, self.identity.certificate)
        return grpc.ssl_server_certificate_configuration([pair], self.client_ca)


def secured(
    listen: Listen, metrics: Metrics, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger
) -> dict[str, PortSecurity] | list[Fault]:
    """The protection of each port in `PORTS`; or every fault of the files that the configuration names."""
    found: dict[str, PortSecurity] = {}
    faults: list[Fault] = []
    for port in PORTS:
        try:
            found[port] = _port(port, listen, metrics, clock, log.bind(port=port))
        except FilesError as error:
            faults += error.faults
    return faults or found


def faults_of(listen: Listen) -> list[Fault]:
    """Every fault of the files that the configuration names, as `secured` would find them."""
    found = secured(listen, Metrics(), time.monotonic, structlog.get_logger())
    return found if isinstance(found, list) else []


def _port(
    port: str,
    listen: Listen,
    metrics: Metrics,
    clock: Callable[[], float],
    log: structlog.typing.FilteringBoundLogger,
) -> PortSecurity:
    tls: PortTls | None = getattr(listen.tls, port)
    names = () if tls is None else tls.peer_names
    tokens = _tokens(listen.agent_tokens, metrics, clock, log) if port == "agents" and listen.agent_tokens else None
    gate = PeerGate(names, tokens, clock, log, partial(metrics.peer_refused, port))
    credentials = None if tls is None else _credentials(tls, f"listen.tls.{port}", metrics, clock, log)
    return PortSecurity(credentials, (gate,) if names or tokens is not None else ())


def _tokens(
    path: Path, metrics: Metrics, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger
) -> Callable[[], TokenSet]:
    def read() -> TokenSet | list[Fault]:
        tokens = tokens_of(path, "listen.agent_tokens")
        return tokens if isinstance(tokens, list) else TokenSet(tokens)

    return _reloaded([path], read, "agent_tokens", metrics, clock, log).latest


def _credentials(
    tls: PortTls,
    setting: str,
    metrics: Metrics,
    clock: Callable[[], float],
    log: structlog.typing.FilteringBoundLogger,
) -> grpc.ServerCredentials:
    def read() -> _Pem | list[Fault]:
        identity = identity_of(tls.certificate, tls.key, setting)
        client_ca = None if tls.client_ca is None else certificates_of(tls.client_ca, f"{setting}.client_ca")
        faults = identity if isinstance(identity, list) else []
        if isinstance(client_ca, Fault):
            faults = [*faults, client_ca]
        if faults or not isinstance(identity, Identity) or isinstance(client_ca, Fault):
            return faults
        return _Pem(identity, client_ca)

    paths = [path for path in (tls.certificate, tls.key, tls.client_ca) if path is not None]
    files = _reloaded(paths, read, "tls", metrics, clock, log)
    in_use = files.latest()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        # gRPC asks before each handshake, on threads of its own; `None` is: as before.
        nonlocal in_use
        latest = files.latest()
        if latest is in_use:
            return None
        in_use = latest
        return latest.for_grpc()

    return grpc.dynamic_ssl_server_credentials(
        in_use.for_grpc(),
        changed,  # type: ignore[arg-type]
        require_client_authentication=tls.client_ca is not None,
    )


def _reloaded(
    paths: list[Path],
    read: Callable[[], Content | list[Fault]],
    what: str,
    metrics: Metrics,
    clock: Callable[[], float],
    log: structlog.typing.FilteringBoundLogger,
) -> Reloaded[Content]:
    def broken(faults: list[Fault]) -> None:
        metrics.our_error(what)
        log.error("changed files cannot be used; what they held before goes on serving", faults=list(map(str, faults)))

    return Reloaded(paths, read, clock, renewed=lambda: log.info("changed files are in use", files=what), broken=broken)
