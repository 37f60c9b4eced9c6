"""What all tests share."""

import gc
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import forked

# Tests start programs while gRPC's threads run. Its fork handlers, meant for processes that go on using gRPC after a
# fork, crash one child in hundreds before it becomes the program. Read when gRPC is first imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Machines that run this are shared and noisy: how long an example takes proves nothing.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not walk it again and again."""
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(scope="session", autouse=True)
def _started_by_forks() -> Iterator[None]:
    with forked.forking():
        yield


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command that runs in the tests' process configures the logs of all that come after."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def capacities_kept() -> Iterator[None]:
    """See `tests.capacities`."""
    from tests import capacities

    with capacities.kept():
        yield
