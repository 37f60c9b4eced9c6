"""A worker: a whole `serve` in a process of its own, which ends with its parent."""

import os
import shutil
import signal
import time
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import structlog

from extproc.address import Address
from extproc.config import Config
from extproc.core.settings import Fault
from extproc.ops import logs

AFTER_PARENT_S = 5.0
"""So long beyond `drain_s` a worker whose parent is gone may take to end."""


@dataclass(frozen=True, slots=True)
class Listens:
    """What a worker tells its parent when it serves."""

    extproc: Address


@dataclass(frozen=True, slots=True)
class Refused:
    """What it tells when it cannot start."""

    faults: list[Fault]


Word = Listens | Refused


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is started with."""

    number: int
    config: Config
    folder: Path
    prefix_seed: int
    log_format: logs.LogFormat
    log_level: str


def run(orders: Orders, told: "Connection[Word, None]") -> None:
    """Serve until a signal, or until the parent is gone. `told` hears one word, and closes with the process."""
    os.setsid()  # a terminal's Ctrl-C is for the parent, who says when we end
    ending = (orders.folder, orders.config.drain_s + AFTER_PARENT_S)
    Thread(target=_end_with_parent, args=ending, daemon=True).start()
    # Here, for the parent, which knows this function too, needs none of it.
    from extproc import app, assembling, openfiles  # noqa: PLC0415

    logs.configure(orders.log_format, orders.log_level)
    structlog.contextvars.bind_contextvars(worker=orders.number)
    openfiles.allow_open_files()

    def listening(addresses: dict[str, Address]) -> None:
        told.send(Listens(addresses["extproc"]))

    worker = assembling.Worker(orders.number, orders.folder, orders.prefix_seed, listening)
    try:
        app.run(orders.config, worker)
    except app.StartError as error:
        told.send(Refused(error.faults))
    finally:
        parent = parent_process()
        if parent is not None and not parent.is_alive():  # it was killed, as we may have been opening sockets there
            shutil.rmtree(orders.folder, ignore_errors=True)


def _end_with_parent(folder: Path, within_s: float) -> None:
    """Drain, as by a signal, and end at once where that takes too long."""
    parent = parent_process()
    assert parent is not None, "a worker is started by its parent"
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)  # now nobody comes by it any more; workers have met
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(within_s)
    os._exit(1)
