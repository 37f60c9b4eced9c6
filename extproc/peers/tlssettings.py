"""How ports can be protected, and how servers are told from others: certificates, and who may connect."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from extproc.settingtypes import SETTINGS, FilePath

_SERVER_NAME = re.compile(r"[A-Za-z0-9_*.:-]{1,253}")
_PEER_NAME = re.compile(r"[\x21-\x7e]{1,512}")


def _peer_name(name: str) -> str:
    if not _PEER_NAME.fullmatch(name) or "*" in name.removeprefix("*.") or name == "*.":
        msg = "a DNS name as envoy.example or *.example, or a URI as spiffe://cluster.local/ns/a/sa/b"
        raise ValueError(msg)
    return name


def _server_name(name: str) -> str:
    if not _SERVER_NAME.fullmatch(name):
        msg = "the name in the servers' certificates, as llm.example"
        raise ValueError(msg)
    return name


PeerName = Annotated[str, AfterValidator(_peer_name)]


class PortTls(BaseModel):
    """TLS of one port, 1.2 or later. Files are PEM, and are read again when they change."""

    model_config = SETTINGS

    certificate: FilePath
    """The server's certificate, and after it those between it and its authority."""
    key: FilePath
    """Its private key, without a password."""
    client_ca: FilePath | None = None
    """Certificates of authorities: clients must show a certificate that one of them signed. `None`: anybody."""
    peer_names: Annotated[tuple[PeerName, ...], Field(max_length=1000)] = ()
    """Who may connect, with `client_ca` only: DNS names, `*.` for one label in front, or URIs, as the client's
    certificate has them as alternative names; its common name counts where it has none. Empty: whoever `client_ca`
    lets in."""

    @model_validator(mode="before")
    @classmethod
    def _list_is_tuple(cls, settings: object) -> object:
        if isinstance(settings, dict) and isinstance(names := settings.get("peer_names"), list):
            return settings | {"peer_names": tuple(names)}
        return settings

    @model_validator(mode="after")
    def _names_of_certificates(self) -> Self:
        if self.peer_names and self.client_ca is None:
            msg = "client_ca beside peer_names: names of certificates that nobody checks say nothing"
            raise ValueError(msg)
        return self


class ClientTls(BaseModel):
    """TLS towards servers. Files are PEM, and are read anew for each connection."""

    model_config = SETTINGS

    ca: FilePath
    """Certificates of authorities, of which one signed the servers'."""
    certificate: FilePath | None = None
    """What is shown to servers that ask for a certificate, and after it those between it and its authority."""
    key: FilePath | None = None
    """The private key of `certificate`, without a password."""
    server_name: Annotated[str, AfterValidator(_server_name)] | None = None
    """The name that the servers' certificates must have. `None`: the host that is connected to, or the `dns:` name that
    led there."""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            msg = "certificate and key, or neither"
            raise ValueError(msg)
        return self


class PortsTls(BaseModel):
    """TLS of each gRPC port. `None`: plain text."""

    model_config = SETTINGS

    extproc: PortTls | None = None
    agents: PortTls | None = None
    scaler: PortTls | None = None
