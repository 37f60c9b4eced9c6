"""A rendered bootstrap with TLS towards extproc, in a real Envoy before a serve that wants to see a certificate."""

from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from extproc import cli
from extproc.fleet import Envoy, Fleet
from extproc.traffic import Ask, ask, completion
from tests.certificates import Authority
from tests.e2e.edited import engine
from tests.e2e.reporter import Reporter
from tests.e2e.scripted import CONFIG

EXTPROC, ENVOY = "extproc.internal", "envoy.internal"
ASK = Ask("completion", "/v1/completions", completion("demo", "Once upon a time", output_tokens=5, stream=False))


def bootstrap(path: Path, authority: Authority, *, own: bool) -> Path:
    """What the command writes for serve's authority, with a certificate of Envoy's own or without."""
    pair = authority.issue(ENVOY).written(path.parent, "envoy")
    options = ["--node", "127.0.0.1:1", "--tls-ca", authority.written(path.parent), "--tls-name", EXTPROC]
    if own:
        options += ["--tls-certificate", pair["certificate"], "--tls-key", pair["key"]]
    made = CliRunner().invoke(cli.main, ["render", "bootstrap", *options])
    assert made.exit_code == 0, made.stderr
    path.write_text(made.stdout)
    return path


def secured(folder: Path, authority: Authority) -> dict[str, object]:
    """The configuration of a serve that takes one peer only."""
    pair = authority.issue(EXTPROC).written(folder, "serve")
    tls = {**pair, "client_ca": authority.written(folder, "clients"), "peer_names": [ENVOY]}
    return CONFIG | {"listen": {"tls": {"extproc": tls}}}


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.mark.parametrize("own", [True, False])
async def test_requests_and_health_checks_go_by_mutual_tls_or_not_at_all(
    tmp_path: Path, authority: Authority, *, own: bool
) -> None:
    async with Fleet(tmp_path) as fleet, aiohttp.ClientSession() as client, engine("known") as (known, _):
        serve = await fleet.serve(secured(tmp_path, authority))
        envoy = await fleet.envoy(serve, [known], bootstrap=bootstrap(tmp_path / "rendered.yaml", authority, own=own))
        async with Reporter(serve.agents) as reporter, engine("chosen") as (chosen, _):
            await reporter.report("chosen", chosen)
            checked = "success" if own else "failure"

            async def told() -> bool:
                return await stat(client, envoy, f"health_check.{checked}") > 0

            await fleet.until(f"a health check's {checked}", told)
            answer = await ask(client, envoy.url, ASK)
            assert (answer.status, answer.engine) == (200, "chosen" if own else "known"), answer
            assert await stat(client, envoy, "membership_healthy") == own
            assert await stat(client, envoy, "health_check.success" if not own else "health_check.failure") == 0


async def stat(client: aiohttp.ClientSession, envoy: Envoy, name: str) -> int:
    """One of Envoy's counts of its cluster for extproc."""
    async with client.get(f"{envoy.admin_url}/stats?filter=^cluster.extproc.{name}$") as page:
        return int((await page.text() or ": 0").split(": ")[1])
