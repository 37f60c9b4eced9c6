from collections.abc import AsyncIterator

import aiohttp
import pytest

from extproc.sim.emulator import Emulator, emulated
from tests.sim.emulating import settings


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
async def fast() -> AsyncIterator[Emulator]:
    async with emulated(settings()) as engine:
        yield engine
