"""The certificates of docs/config.md, made as it says: serve, agent and Envoy find each other by them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from extproc.children import Child, ourselves
from extproc.fleet import ANY_PORT, Fleet
from extproc.traffic import Ask, ask, completion
from tests.rendered import rendered

SECTION = (Path(__file__).parent.parent.parent / "docs" / "config.md").read_text().partition("## Who may connect")[2]
ASK = Ask("completion", "/v1/completions", completion("demo", "Once upon a time", output_tokens=5, stream=False))
QUICK = {"nodes": {"report_interval_s": 0.1, "settle_s": 0}}


def fenced(text: str) -> Any:
    """The first block of YAML."""
    return yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])


def recipe() -> str:
    lines = SECTION.partition("by OpenSSL")[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()
    assert all(line.startswith("    ") for line in lines), lines
    return "\n".join(line.removeprefix("    ") for line in lines)


def run(*command: str, **options: Any) -> tuple[int, str]:
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    return ran.returncode, ran.stdout


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    """The page's configuration, in a folder where the page's lines have been run."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    config: dict[str, Any] = fenced(SECTION)
    (tmp_path / "extproc.yaml").write_text(yaml.safe_dump(config))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    status, output = run("sh", "-eu", "-c", recipe(), cwd=tmp_path, env=os.environ | {"PATH": path})
    assert (status, output.splitlines()[-1]) == (0, "OK"), output
    return config


async def test_they_let_the_agent_and_envoy_in(made: dict[str, Any], tmp_path: Path) -> None:
    listen = made["listen"] | dict.fromkeys(("extproc", "agents"), str(ANY_PORT))
    tls = tmp_path / "tls"
    shown = {"ca": "ca.crt", "certificate": "envoy.crt", "key": "envoy.key"}
    processor_tls = {setting: f"{tls}/{file}" for setting, file in shown.items()} | {"name": "serve.example"}
    async with Fleet(tmp_path) as fleet, aiohttp.ClientSession() as client:
        engine = await fleet.engine("gpu-1", "demo")
        serve = await fleet.serve(QUICK | {"listen": listen})
        agent = await Child.start(
            "agent",
            ourselves(
                *("agent", "--router", str(serve.agents), "--node-id", "gpu-1", "--interval", "100ms"),
                *("--engine", f"http://{engine.address}", "--token-file", f"{tmp_path}/agent-tokens"),
                *(
                    "--tls-ca",
                    f"{tls}/ca.crt",
                    "--tls-certificate",
                    f"{tls}/agent.crt",
                    "--tls-key",
                    f"{tls}/agent.key",
                ),
                *("--tls-server-name", "serve.example"),
            ),
            tmp_path,
        )
        try:
            path = tmp_path / "rendered.yaml"
            path.write_text(rendered(processor_tls=processor_tls, nodes=["127.0.0.1:1"], health_path=None))
            envoy = await fleet.envoy(serve, [], bootstrap=path)

            async def chosen() -> bool:
                answer = await ask(client, envoy.url, ASK)
                return (answer.status, answer.engine, answer.chosen) == (200, "gpu-1", "gpu-1")

            await fleet.until("a choice", chosen)
        finally:
            await agent.stop()


def test_envoys_part_names_the_files_that_were_made(made: dict[str, Any], tmp_path: Path) -> None:
    common = fenced(SECTION.partition("by OpenSSL")[2])["transport_socket"]["typed_config"]["common_tls_context"]
    (pair,) = common["tls_certificates"]
    context = common["validation_context"]
    for one in (pair["certificate_chain"], pair["private_key"], context["trusted_ca"]):
        assert (tmp_path / one["filename"]).is_file()
    (name,) = context["match_typed_subject_alt_names"]
    status, shown = run("openssl", "x509", "-in", "tls/serve.crt", "-noout", "-ext", "subjectAltName", cwd=tmp_path)
    assert f"{name['san_type']}:{name['matcher']['exact']}" in shown
    assert status == 0
    assert made["listen"]["tls"]["extproc"]["peer_names"][0] in recipe()
