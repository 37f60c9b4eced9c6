"""What the command line tells of itself."""

import subprocess
import sys
from importlib.metadata import version

from extproc import cli
from extproc.agent.engines.enginekind import EngineKind
from extproc.ops.logs import LogFormat
from tests.test_cli import run


def choices(command: str, option: str) -> set[str]:
    (parameter,) = (one for one in cli.main.commands[command].params if one.name == option)
    return set(parameter.type.choices)  # type: ignore[attr-defined]


def test_choices_are_those_of_the_code() -> None:
    assert choices("agent", "engine_kind") == {kind.value for kind in EngineKind}
    assert choices("serve", "log_format") == {one.value for one in LogFormat}


def test_every_command_teaches_by_example() -> None:
    assert "extproc demo" in run("--help").stdout
    for name in cli.main.commands:
        help_text = run(name, "--help").stdout
        assert f"  extproc {name}" in help_text or f"$ extproc {name}" in help_text, name


def test_the_version_is_the_packages() -> None:
    assert version("extproc") in run("--version").stdout


def test_help_loads_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from extproc import cli\n"
        "assert CliRunner().invoke(cli.main, ['agent', '--help']).exit_code == 0\n"
        "print(sorted({'grpc', 'aiohttp', 'tokenizers', 'pydantic', 'envoy', 'rich', 'uvloop'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert printed == "[]\n"
