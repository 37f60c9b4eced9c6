"""How a NATS server is reached: of routers and agents alike."""

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from extproc.address import PORT_MAX, TcpAddress
from extproc.peers.tlssettings import ClientTls
from extproc.settingtypes import SETTINGS, FilePath

SERVERS_MAX = 16
_BLANK = re.compile(r"\s")
_FLEET = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _server(url: str) -> str:
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("nats", "tls") and parts.hostname is not None and _BLANK.search(url) is None
    except ValueError:
        whole = False
    if not whole or parts.path or parts.query or parts.fragment or parts.username or parts.password:
        msg = "nats://host:port or tls://host:port, with nothing else in it: secrets stand in files"
        raise ValueError(msg)
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    if not is_port:
        msg = f"a port from 1 to {PORT_MAX}, or none for 4222"
        raise ValueError(msg)
    return url


def _fleet(name: str) -> str:
    if not _FLEET.fullmatch(name):
        msg = "1 to 64 letters, digits, _ and -, as it is one part of the subjects' names"
        raise ValueError(msg)
    return name


def _is_local(server: str) -> bool:
    return TcpAddress(urlsplit(server).hostname or "", 0).is_local


def _listed(servers: object) -> object:
    return tuple(servers) if isinstance(servers, list) else (servers,) if isinstance(servers, str) else servers


class NatsSettings(BaseModel):
    """A NATS server, or several of one cluster, and who we are to them: at most one of the four ways to log in."""

    model_config = SETTINGS

    servers: Annotated[
        tuple[Annotated[str, AfterValidator(_server)], ...], BeforeValidator(_listed), Field(max_length=SERVERS_MAX)
    ]
    """`nats://host:port`, or `tls://host:port`, without a port 4222. One is enough: a cluster tells of its others."""
    fleet: Annotated[str, AfterValidator(_fleet)] = "default"
    """Who speaks with whom: all subjects are below `extproc.FLEET`."""
    tls: ClientTls | None = None
    """`None`: plain text, or the system's authorities for `tls://`."""
    user: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    password_file: FilePath | None = None
    """The first line is the password of `user`."""
    token_file: FilePath | None = None
    """The first line is a token."""
    nkey_file: FilePath | None = None
    """The seed of an nkey."""
    credentials_file: FilePath | None = None
    """What `nsc` writes: a JWT and the seed of its nkey."""
    insecure: bool = False
    """Whether passwords and tokens may go to other machines in plain text."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if not self.servers:
            msg = "one server at least"
            raise ValueError(msg)
        if (self.user is None) != (self.password_file is None):
            msg = "user and password_file, or neither"
            raise ValueError(msg)
        ways = [name for name in ("user", "token_file", "nkey_file", "credentials_file") if getattr(self, name)]
        if len(ways) > 1:
            msg = f"one way to log in, not {' and '.join(ways)}"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _secrets_are_kept(self) -> Self:
        far = [server for server in self.servers if not _is_local(server)]
        if self.in_plain_text and far and not self.insecure:
            msg = f"tls beside a secret for {far[0]}, which others could read on its way; or nats.insecure: true"
            raise ValueError(msg)
        return self

    @property
    def is_tls(self) -> bool:
        """Whether all connections are TLS: one `tls://` means that none may be without it."""
        return self.tls is not None or any(server.startswith("tls:") for server in self.servers)

    @property
    def in_plain_text(self) -> bool:
        """Whether a password or token is sent without TLS. Keys only sign what the server asks."""
        return not self.is_tls and (self.password_file is not None or self.token_file is not None)
