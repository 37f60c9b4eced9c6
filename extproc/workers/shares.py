"""What one of several workers is told: the configuration, with its share of what holds for all of them together.

Envoy spreads requests evenly over the workers, so what is counted where a request comes is divided by their number,
and rounded up. What each learns of the whole fleet, as of nodes and prompts, each has whole.
"""

from pathlib import Path

from extproc.address import Address, UnixAddress
from extproc.config import Config, JournalSettings, Listen, ServeLimits
from extproc.core.admissionsettings import PriorityClass, Quota
from extproc.peers.tlssettings import PortsTls

JOURNAL_SUFFIX = ".w"
"""And the worker's number, behind the journal's path."""


def agents_socket(folder: Path, number: int) -> UnixAddress:
    """Where a worker hears the agents that its parent passes on."""
    return UnixAddress(str(folder / f"agents.{number}"))


def admin_socket(folder: Path, number: int) -> UnixAddress:
    """Where a worker has its pages for its parent."""
    return UnixAddress(str(folder / f"admin.{number}"))


def config_of(config: Config, number: int, extproc: Address, folder: Path) -> Config:
    """That of a worker, which listens for Envoy at `extproc`, and for its parent in a private folder."""
    listen = config.listen
    own = Listen(
        insecure=listen.insecure,
        tls=PortsTls(extproc=listen.tls.extproc),
        extproc=extproc,
        agents=agents_socket(folder, number),
        admin=admin_socket(folder, number),
    )
    workers = config.workers
    return config.model_copy(
        update={
            "listen": own,
            "workers": 1,
            "limits": _limits(config.limits, workers),
            "quotas": tuple(_quota(one, workers) for one in config.quotas),
            "classes": {name: _class(one, workers) for name, one in config.classes.items()},
            "journal": _journal(config.journal, number),
        }
    )


def _share(whole: int, workers: int) -> int:
    return -(-whole // workers)


def _limits(limits: ServeLimits, workers: int) -> ServeLimits:
    held = max(limits.body_bytes_max, _share(limits.body_bytes_total_max, workers))
    return limits.model_copy(
        update={"body_bytes_total_max": held, "streams_max": _share(limits.streams_max, workers)},
    )


def _quota(quota: Quota, workers: int) -> Quota:
    shares = {
        name: _share(limit, workers)
        for name in ("tokens_per_minute", "concurrent_tokens")
        if (limit := getattr(quota, name)) is not None
    }
    return quota.model_copy(update=shares)


def _class(one: PriorityClass, workers: int) -> PriorityClass:
    queued = {name: _share(getattr(one, name), workers) for name in ("queue_requests_max", "queue_bytes_max")}
    return one.model_copy(update=queued)


def _journal(journal: JournalSettings, number: int) -> JournalSettings:
    path = journal.path
    if path is None:
        return journal
    return journal.model_copy(update={"path": path.with_name(f"{path.name}{JOURNAL_SUFFIX}{number}")})
