"""What an adapter is: which pages of an engine it wants, and two pure functions that make values of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from extproc.agent.engines.reading import EngineReading
from extproc.core.snapshot import ServedModel


@dataclass(frozen=True, slots=True)
class Missing:
    """A page that the engine did not give, and why."""

    reason: str


Pages = Mapping[str, str | Missing]
"""What came from each path that the adapter asks for."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One kind of engine."""

    read: Callable[[Pages, Any], tuple[EngineReading, Any]]
    """One look at `metrics` and `others`; with what it handed on the last time, `None` at the first, it hands
    something on to the next. Raises `exposition.TooManySamples` only."""
    models_of: Callable[[Pages], tuple[ServedModel, ...] | str]
    """The models on the pages of `lists`, or what is wrong with them. Raises `exposition.TooManySamples` only."""
    metrics: str = "/metrics"
    """Where its metrics are, if the configuration does not say."""
    others: tuple[str, ...] = ()
    """Further pages that belong to each look."""
    lists: tuple[str, ...] = ("/v1/models",)
    """Pages that tell the models; read now and then."""
    health: str = "/health"
    """Answers 200 where the engine can serve."""


def page_of(pages: Pages, path: str) -> str | None:
    """The page, or `None` if it did not come."""
    page = pages.get(path)
    return page if isinstance(page, str) else None


def missing_of(pages: Pages, path: str) -> str:
    """Why a page did not come."""
    page = pages.get(path)
    return page.reason if isinstance(page, Missing) else f"{path} is missing"
