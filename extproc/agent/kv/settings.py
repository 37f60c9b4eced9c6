"""How an agent hears what an engine says of its prefix cache."""

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from extproc.address import TcpAddress

RANKS_MAX: Final = 64
PORT_MAX: Final = 65_535

_TCP: Final = re.compile(r"tcp://(\*|[A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):([0-9]{1,5})")
_IPC: Final = re.compile(r"ipc://[!-~]{1,100}")


def _endpoint(value: str) -> str:
    tcp = _TCP.fullmatch(value)
    if (tcp is None or not 1 <= int(tcp[2]) <= PORT_MAX) and not _IPC.fullmatch(value):
        msg = "tcp://host:port or ipc://path"
        raise ValueError(msg)
    return value


Endpoint = Annotated[str, AfterValidator(_endpoint)]


def _is_local(endpoint: str) -> bool:
    tcp = _TCP.fullmatch(endpoint)
    return tcp is None or TcpAddress(tcp[1].strip("[]"), int(tcp[2])).is_local


def at_rank(endpoint: str, rank: int) -> str:
    """Where the data-parallel engine of this rank publishes: at the port behind that of the one before."""
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + rank}" if rank else endpoint


class KvEventsConfig(BaseModel):
    """Where an engine publishes its KV events (ZeroMQ), and how much of them is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: Endpoint
    """`tcp://host:port` or `ipc://path`."""
    bind: bool = False
    """Whether the agent listens there and the engine connects, as vLLM does to an endpoint without `*`."""
    replay: Endpoint | None = None
    """Where the engine sends again what was missed: its `replay_endpoint`."""
    topic: Annotated[str, Field(max_length=256)] = ""
    """Events of topics that begin so are heard."""
    ranks: int = Field(1, ge=1, le=RANKS_MAX)
    """Data-parallel engines behind this node, each at the port after the one before."""
    blocks_max: int = Field(1_000_000, ge=1, le=100_000_000)
    """Blocks of the engine, or of 16 tokens if there are more of those, that are kept; see `EngineBlocks`."""
    message_bytes_max: int = Field(8 * 1024 * 1024, ge=1024, le=1024**3)
    """Longest message that is read."""

    insecure: bool = False
    """Whether the endpoints may be ones that other machines reach, or are at. ZeroMQ keeps a message until it is whole,
    however long it gets: whoever can publish, or take the publisher's place, can take all of the agent's memory."""

    @model_validator(mode="after")
    def _ranks_have_ports(self) -> Self:
        for endpoint in (self.endpoint, self.replay):
            if endpoint is None or self.ranks == 1:
                continue
            if not endpoint.startswith("tcp:") or int(endpoint.rpartition(":")[2]) + self.ranks - 1 > PORT_MAX:
                msg = "tcp endpoints with a port for each rank"
                raise ValueError(msg)
        for endpoint, listens in ((self.endpoint, self.bind), (self.replay, False)):
            if endpoint is not None and endpoint.startswith("tcp://*") and not listens:
                msg = "a host that can be connected to, or bind: true, instead of *"
                raise ValueError(msg)
            if endpoint is not None and not _is_local(endpoint) and not self.insecure:
                msg = f"a loopback address or ipc://path instead of {endpoint}, where a publisher can take all memory; "
                msg += "or insecure: true"
                raise ValueError(msg)
        return self
