from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.ops.pages import Admin, Client


@pytest.fixture
def of() -> Admin:
    return Admin()


@pytest.fixture
async def client(of: Admin) -> AsyncIterator[Client]:
    async with TestClient(TestServer(of.app)) as client:
        yield client
