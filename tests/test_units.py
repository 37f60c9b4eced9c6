"""systemd's units: what they start is our program, with options that it has, and time to end."""

import configparser
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from extproc import cli
from extproc.agent.settings import AgentConfig
from extproc.config import Config
from extproc.settingtypes import seconds
from tests.rendered import SHIPPED

UNITS = ("extproc-serve.service", "extproc-agent.service")
EACH = pytest.mark.parametrize("name", UNITS)


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((SHIPPED / name).read_text())
    return parser


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> click.Context:
    program, name, *arguments = command.split()
    assert program == "/opt/extproc/bin/extproc"
    command_ = cli.main.commands[name]
    for parameter in command_.params:  # the files are on another machine
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)
    return command_.make_context(name, arguments)


@EACH
def test_what_is_started_has_these_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = unit(name)["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        if key in service:
            context = parsed(service[key], monkeypatch)
            assert str(context.params["file"]).startswith("/etc/extproc/")
    assert service["ExecStart"].split()[1] == name.partition("-")[2].removesuffix(".service")
    page = (SHIPPED / name).read_text()
    for line in page.splitlines():
        if line.startswith("#   ExecStop="):
            parsed(line.partition("=")[2].removeprefix("-"), monkeypatch)


@EACH
def test_it_has_the_time_that_its_drain_takes(name: str) -> None:
    service = unit(name)["Service"]
    drain_s = Config().drain_s if "serve" in name else AgentConfig.model_fields["drain_s"].default
    assert seconds(service["TimeoutStopSec"]) > drain_s + 1
    assert service["KillMode"] == "mixed", "SIGTERM for the process alone, as it expects it"


@EACH
def test_it_may_do_little(name: str) -> None:
    service = unit(name)["Service"]
    for key in ("DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert set(service["RestrictAddressFamilies"].split()) == {"AF_INET", "AF_INET6", "AF_UNIX"}
    assert service["PrivateDevices"] == ("yes" if "serve" in name else "no"), "GPUs' drivers are devices"
    assert unit(name)["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@EACH
def test_systemd_finds_no_fault(name: str, tmp_path: Path) -> None:
    """Where the program is not, a shell stands for it."""
    path = tmp_path / name
    path.write_text((SHIPPED / name).read_text().replace("/opt/extproc/bin/extproc", "/bin/sh"))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], check=False, capture_output=True, text=True, timeout=60
    )
    about = [line for line in (told.stdout + told.stderr).splitlines() if name in line]
    assert about == []
