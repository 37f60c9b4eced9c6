import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent
PROTOS = ("nodes", "externalscaler", "exchange")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of `make proto`, into an empty folder."""
    folder = tmp_path_factory.mktemp("proto")
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "mypy")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=proto", f"--plugin=protoc-gen-mypy={plugin}"]
    subprocess.run(
        [*command, *outputs, *(f"proto/extproc/pb/{name}.proto" for name in PROTOS)], check=True, cwd=PROJECT
    )
    return folder


@pytest.mark.parametrize("name", [f"{name}_{end}" for name in PROTOS for end in ("pb2.py", "pb2.pyi", "pb2_grpc.py")])
def test_the_generated_code_is_fresh(generated: Path, name: str) -> None:
    fresh = (generated / "extproc/pb" / name).read_text()
    assert (PROJECT / "extproc/pb" / name).read_text() == fresh, "run `make proto`"
