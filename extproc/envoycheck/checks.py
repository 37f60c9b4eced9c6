"""All that `extproc check --envoy` looks for in a configuration of Envoy, its bootstrap or a dump of what it runs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from extproc.config import Config
from extproc.core.settings import Fault
from extproc.envoycheck import (
    answers,
    bodies,
    destinations,
    displaced,
    failing,
    heard,
    needs,
    picking,
    processors,
    starting,
    timeouts,
    trust,
    twice,
    workers,
)
from extproc.envoycheck.processors import Processors


def faults_in_file(path: Path, settings: Config) -> list[Fault]:
    """What a file in YAML or JSON lacks for a configuration, `Warned` included, or what keeps it from being read."""
    return processors.faults_in_file(path, settings.listen.extproc, partial(faults_in, settings=settings))


def faults_in(found: Processors, settings: Config) -> list[Fault]:
    """The same of what was found in one. Each fault once. Never raises."""
    return list(dict.fromkeys(_each(found, settings)))


def _each(found: Processors, settings: Config) -> Iterator[Fault]:
    watching = [one for one in found.filters if one.of("observability_mode").value is True]
    yield from failing.watching_faults(found.asked_by(*watching))
    found = found.asked_by(*(one for one in found.filters if one not in watching))
    yield from starting.faults_in(found)
    yield from timeouts.faults_in(found, timeouts.longest_hold(settings.classes, settings.tokens.token_budget_ms))
    for check in (needs, displaced, bodies, destinations, answers, picking, failing, workers):
        yield from check.faults_in(found, settings)
    yield from heard.faults_in(found)
    yield from trust.faults_in(found)
    yield from twice.faults_in(found)
