"""`extproc check` of an agent's file, and what it says of KV blocks that nodes tell."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc import cli

GOOD = "engines: [{node_id: gpu-1, engine: 'http://127.0.0.1:8000'}]\n"


def check(path: Path, text: str, *options: str) -> Result:
    path.write_text(text)
    return CliRunner().invoke(cli.main, ["check", str(path), *options])


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        (GOOD, 0, "OK"),
        (GOOD + "interval_s: 1h\n", 1, "interval_s: wanted"),
        ("routers: ['127.0.0.1:9004']\n", 1, "engines: wanted a value"),
        (GOOD + "token_file: nowhere\n", 1, "token_file: "),
        (GOOD + "ejection: {}\n", 1, "ejection: wanted a known key"),
    ],
)
def test_an_agents_file_is_known_by_its_keys(tmp_path: Path, text: str, status: int, told: str) -> None:
    result = check(tmp_path / "agent.yaml", text)
    assert result.exit_code == status, result.output
    assert told in result.output
    assert check(tmp_path / "agent.yaml", text, "--json").exit_code == status


@pytest.mark.parametrize("option", ["--envoy", "--policy", "--workers"])
def test_an_agents_file_is_no_configuration_for_routes(tmp_path: Path, option: str) -> None:
    (tmp_path / "envoy.yaml").write_text("{}\n")
    said = "2" if option == "--workers" else str(tmp_path / "envoy.yaml")
    result = check(tmp_path / "agent.yaml", GOOD, option, said)
    assert (result.exit_code, "is an agent's" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tokens: {kv_blocks: true}\n", {"tokens.kv_blocks"}),
        (
            "tokens: {kv_blocks: true}\nprefix: {kv_index_bytes_max: 0}\n",
            {"tokens.kv_blocks", "prefix.kv_index_bytes_max"},
        ),
        ("tokens: {kv_blocks: true, models: {m: {tokenizer: nowhere, required: false}}}\n", {"tokens.models.m"}),
        ("prefix: {kv_index_bytes_max: 0}\n", set()),
    ],
)
def test_what_makes_nothing_of_kv_blocks_is_told(tmp_path: Path, text: str, told: set[str]) -> None:
    result = check(tmp_path / "extproc.yaml", text)
    assert result.exit_code == 0, result.output
    assert {line.partition(":")[0] for line in result.stdout.splitlines()} - {"OK"} == told
