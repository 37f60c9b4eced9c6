"""`extproc check --workers` takes as many as `serve --workers` would."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc import cli
from tests.rendered import rendered


@pytest.mark.parametrize(("in_file", "option", "rendered_for"), [(1, 2, 2), (1, 3, 3), (3, 1, 1)])
def test_the_option_holds_over_the_file(in_file: int, option: int, rendered_for: int, tmp_path: Path) -> None:
    serve, envoy = tmp_path / "extproc.yaml", tmp_path / "envoy.yaml"
    serve.write_text(f"workers: {in_file}\n")
    envoy.write_text(rendered(processor=["127.0.0.1:9002"], workers=rendered_for))

    def said(*options: str) -> str:
        return CliRunner().invoke(cli.main, ["check", str(serve), "--envoy", str(envoy), *options]).output

    assert f"(workers is {in_file}" in said()
    assert "(workers is" not in said("--workers", str(option))


def test_addresses_of_so_many_are_checked(tmp_path: Path) -> None:
    serve = tmp_path / "extproc.yaml"
    serve.write_text("listen: {admin: '127.0.0.1:9012'}\n")
    result = CliRunner().invoke(cli.main, ["check", str(serve), "--workers", "2"])
    assert (result.exit_code, "listen.admin: wanted an address of its own" in result.output) == (1, True)
    assert CliRunner().invoke(cli.main, ["check", str(serve)]).exit_code == 0
