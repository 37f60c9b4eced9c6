"""What became of a configuration, in a word."""

from pathlib import Path

from extproc.config import Config
from extproc.core.settings import Fault


def whole(outcome: Config | list[Fault]) -> Config:
    assert isinstance(outcome, Config), [str(fault) for fault in outcome]
    return outcome


def faults(outcome: Config | list[Fault]) -> list[str]:
    assert isinstance(outcome, list)
    return [str(fault) for fault in outcome]


def written(folder: Path, text: str | bytes, name: str = "extproc.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
