"""An installation whose NATS client does not load."""

import subprocess
import sys
from pathlib import Path

import pytest

from extproc.bus.natslogin import EXTRA

_OPENED = """
import asyncio, sys, time
import structlog
from extproc.bus.natsbus import NatsBus
from extproc.bus.natslogin import faults
from extproc.bus.settings import NatsSettings

async def run():
    settings = NatsSettings(servers=("nats://127.0.0.1:1",))
    print(*faults(settings))
    bus = NatsBus(settings, time.monotonic, structlog.get_logger())
    await bus.open(lambda: None)
    async with asyncio.timeout(20):
        while bus.reason is None:
            await asyncio.sleep(0.01)
    print("reason", bus.reason)
    await bus.close()

asyncio.run(run())
"""


@pytest.mark.parametrize("package", ["nats", "nkeys"])
@pytest.mark.parametrize("broken", ["raise ImportError('no such symbol')", "import no_such_module", "1 +", "1 / 0"])
def test_a_client_that_does_not_load_is_a_fault_and_logged(tmp_path: Path, package: str, broken: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(broken)
    python = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_OPENED}"
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=False)
    fault, *logged = done.stdout.splitlines()
    assert fault.startswith(f"nats: wanted {EXTRA.wanted}, got one that does not load: ")
    assert sum("bus not reached" in line for line in logged) == 1
    assert f"reason {fault}" in logged
    assert not done.stderr
