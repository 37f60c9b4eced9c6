"""What is wrong with a bus's settings is said by `check`, and by `serve` at its start."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from extproc.children import Child
from extproc.cli import main
from tests.serve.served import refusal

NATS = {"servers": "nats://127.0.0.1:4222"}


@pytest.mark.parametrize("content", [None, b"", b"s" * 15, b"s" * 65537])
async def test_a_secret_that_is_none_stops_the_start(
    start: Callable[..., Awaitable[Child]], tmp_path: Path, content: bytes | None
) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    config = {"nats": NATS | {"token_file": str(tmp_path / "absent")}, "prefix_secret": str(secret)}
    said = await refusal(await start(config))
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "serve.yaml")])
    assert checked.exit_code == 1
    for text in (said, checked.output):
        assert "prefix_secret: wanted a file of 16 to 65536 bytes, got" in text
        assert "nats.token_file: wanted a file whose first line is" in text


def test_a_configuration_with_nats_that_is_not_there_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    (tmp_path / "secret").write_bytes(b"s" * 16)
    path.write_text(yaml.safe_dump({"nats": NATS, "prefix_secret": "secret"}))
    checked = CliRunner().invoke(main, ["check", str(path)])
    assert (checked.exit_code, checked.output) == (0, "OK\n")
