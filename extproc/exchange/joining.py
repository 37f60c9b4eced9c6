"""Which bus a router joins, by its configuration; and what keys the hashes that it tells there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from xxhash import xxh3_64_intdigest

from extproc.bus import natslogin
from extproc.bus.bus import Bus
from extproc.bus.localbus import LocalBus
from extproc.bus.natsbus import NatsBus
from extproc.bus.settings import NatsSettings
from extproc.config import Config
from extproc.core.settings import Fault
from extproc.exchange.exchange import Exchange
from extproc.peers.reloaded import content_of
from extproc.sizes import KIB

log = structlog.get_logger()

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 64 * KIB
"""Of the file of `prefix_secret`: a shorter one could be found by trying."""
_SECRET_WANTED = f"a file of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
_MARKED = b"extproc prefix key:"


def faults(config: Config) -> list[Fault]:
    """Why no bus could be joined with this configuration as its files are now; empty: for no such reason."""
    found = [] if config.nats is None else natslogin.faults(config.nats)
    seed = prefix_seed(config)
    return [*found, seed] if isinstance(seed, Fault) else found


def bus_of(
    nats: NatsSettings | None,
    workers: tuple[Path, int] | None,
    clock: Callable[[], float],
    log: structlog.typing.FilteringBoundLogger,
) -> Bus | None:
    """The bus to join, not yet open; `None`: there is none. `workers`: their folder, and which of them this is.

    The settings have no `faults`.
    """
    if nats is not None:
        return NatsBus(nats, clock, log)
    if workers is not None:
        folder, number = workers
        return LocalBus(folder, str(number), clock, log)
    return None


def prefix_seed(config: Config) -> int | Fault | None:
    """What keys the hashes of prompts, at all routers of the fleet; `None`: chance may, for nobody is told."""
    seed = None if config.nats is None else xxh3_64_intdigest(config.nats.fleet.encode())
    if config.prefix_secret is not None:
        secret = content_of(config.prefix_secret, "prefix_secret", _SECRET_WANTED)
        if isinstance(secret, Fault):
            return secret
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            return Fault("prefix_secret", _SECRET_WANTED, f"{config.prefix_secret}: {len(secret)} bytes")
        seed = None if config.nats is None else xxh3_64_intdigest(secret)
    return seed


def key_of(seed: int | None) -> str:
    """What marks a seed for others, who cannot tell the seed by it; empty: there is none."""
    if seed is None:
        return ""
    return f"{xxh3_64_intdigest(_MARKED + seed.to_bytes(8, 'little')):016x}"[:8]


@asynccontextmanager
async def joined(bus: Bus | None, exchange: Exchange | None) -> AsyncIterator[None]:
    """Tell others and hear them meanwhile, where there is a bus."""
    if bus is None or exchange is None:
        yield
        return
    running = asyncio.create_task(exchange.run())
    try:
        try:
            await bus.open(exchange.connected)
        except OSError as error:  # of the workers' folder: each goes on by what it knows itself
            log.error("bus not opened", reason=str(error))
        yield
    finally:
        exchange.leave()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await bus.close()
