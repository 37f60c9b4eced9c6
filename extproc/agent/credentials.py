"""How the agent shows routers who it is, and knows that they are routers: TLS and a token, from files read anew."""

import grpc
from msgspec import Struct

from extproc.address import Address
from extproc.agent.settings import AgentConfig
from extproc.bus import natslogin
from extproc.core.settings import Fault
from extproc.peers.pemfiles import Identity, certificates_of, identity_of
from extproc.peers.tokens import tokens_of


class Credentials(Struct, frozen=True):
    """What one connection is made with."""

    channel: grpc.ChannelCredentials | None
    """`None`: plain text."""
    server_name: str | None
    """The name that the router's certificate must have, if not its host."""
    metadata: tuple[tuple[str, str], ...]
    """Of the RPC: the token."""
    hint: str = ""
    """What may be missing here where a router closes the connection without a word."""

    def open(self, router: Address, options: list[tuple[str, int]]) -> grpc.aio.Channel:
        """A channel to the router."""
        if self.channel is None:
            return grpc.aio.insecure_channel(str(router), options=options)
        named = [] if self.server_name is None else [("grpc.ssl_target_name_override", self.server_name)]
        return grpc.aio.secure_channel(str(router), self.channel, options=[*options, *named])


PLAIN = Credentials(None, None, (), "the router may want TLS (tls.ca)")
"""Neither TLS nor a token."""


def faults(config: AgentConfig) -> list[Fault]:
    """Everything wrong with the files of a configuration, those for the bus included. Blocks."""
    found = read(config)
    return (found if isinstance(found, list) else []) + ([] if config.nats is None else natslogin.faults(config.nats))


def read(config: AgentConfig) -> Credentials | list[Fault]:
    """What the files hold now; or every fault in them. Blocks."""
    faults: list[Fault] = []
    metadata: tuple[tuple[str, str], ...] = ()
    if config.token_file is not None:
        tokens = tokens_of(config.token_file, "token_file")
        if isinstance(tokens, list):
            faults += tokens
        else:
            metadata = (("authorization", f"Bearer {tokens[0]}"),)
    if config.tls is None:
        return faults or Credentials(None, None, metadata, PLAIN.hint)
    ca = certificates_of(config.tls.ca, "tls.ca")
    own: Identity | list[Fault] | None = None
    if config.tls.certificate is not None and config.tls.key is not None:
        own = identity_of(config.tls.certificate, config.tls.key, "tls")
    if isinstance(own, list):
        faults += own
    if isinstance(ca, Fault):
        faults.append(ca)
    if faults or isinstance(ca, Fault) or isinstance(own, list):
        return faults
    chain = (None, None) if own is None else (own.key, own.certificate)
    hint = "the router may want a client certificate (tls.certificate)" if own is None else ""
    return Credentials(grpc.ssl_channel_credentials(ca, *chain), config.tls.server_name, metadata, hint)
