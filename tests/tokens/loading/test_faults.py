"""What keeps a tokenizer from being loaded, and how that is told."""

import json
import os
import socket
from pathlib import Path
from typing import NoReturn

import huggingface_hub
import pytest

from extproc.tokens import folder as folders
from tests.tokens.loading.loaded import faults, loaded, model, outcome, text_of


def test_every_fault_is_told_with_its_entry_and_path(tmp_path: Path, file: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": "1.0"')
    missing = tmp_path / "missing.json"
    told = outcome(**{"a": file, "b*": broken, "c": missing, "d": missing})
    assert isinstance(told, list)
    assert [fault.path for fault in told] == [f"tokens.models.{name}.tokenizer" for name in ("b*", "c", "d")]
    assert str(broken) in str(told[0])
    assert told[1].wanted == "a folder or a tokenizer.json"
    assert told[1].got == told[2].got == f"{missing}: No such file or directory"


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("tokenizer.json", b"{}", "a tokenizer.json"),
        ("tokenizer.json", b"\xff", "a tokenizer.json"),
        ("tokenizer.json", None, "a folder or a tokenizer.json"),
        ("tokenizer_config.json", b"{", "a tokenizer_config.json"),
        ("tokenizer_config.json", b'{"bos_token": 5}', "a tokenizer_config.json"),
        ("tokenizer_config.json", b'{"chat_template": "{% if %}"}', "a chat template that compiles"),
        ("chat_template.json", b"{}", "a chat_template.json"),
        ("chat_template.jinja", b"{{ a", "a chat template that compiles"),
        ("chat_template.jinja", b"\xff", "a chat template in UTF-8"),
        ("chat_template.jinja", None, "a chat template"),
    ],
)
def test_a_broken_file_is_a_fault(folder: Path, name: str, content: bytes | None, wanted: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(folder / name)  # which nothing ever writes
    else:
        (folder / name).write_bytes(content)
    [told] = faults(m=folder)
    assert told.startswith(f"tokens.models.m.tokenizer: wanted {wanted}, got {folder}")


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (None, "a chat template"),
        (b"{{ a", "a chat template that compiles"),
        (b"\xff", "a chat template in UTF-8"),
    ],
)
def test_a_broken_template_of_an_entrys_own_is_a_fault_of_that_key(
    folder: Path, content: bytes | None, wanted: str
) -> None:
    own = folder / "own.jinja"
    if content is not None:
        own.write_bytes(content)
    [told] = faults(m={"tokenizer": str(folder), "chat_template": own})
    assert told.startswith(f"tokens.models.m.chat_template: wanted {wanted}, got {own}")


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("tokenizer.json", "TOKENIZER_BYTES_MAX"),
        ("tokenizer_config.json", "CONFIG_BYTES_MAX"),
        ("chat_template.json", "CONFIG_BYTES_MAX"),
        ("chat_template.jinja", "TEMPLATE_BYTES_MAX"),
    ],
)
def test_a_file_over_its_bound_is_a_fault(folder: Path, name: str, bound: str) -> None:
    bytes_max = getattr(folders, bound)
    with (folder / name).open("wb") as sparse:
        sparse.truncate(bytes_max + 1)
    [told] = faults(m=folder)
    assert told.endswith(f"of at most {bytes_max >> 20} MiB, got {folder / name}: more")


def test_a_file_of_just_its_bound_is_taken(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("x" * folders.TEMPLATE_BYTES_MAX)
    assert text_of(model(tokenizer=str(folder))) == "x" * folders.TEMPLATE_BYTES_MAX


def test_a_template_in_a_configuration_has_the_bound_of_one_in_a_file(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "x" * folders.TEMPLATE_BYTES_MAX}))
    assert text_of(model(tokenizer=str(folder))) == "x" * folders.TEMPLATE_BYTES_MAX
    config.write_text(json.dumps({"chat_template": "x" * (folders.TEMPLATE_BYTES_MAX + 1)}))
    assert faults(m=folder) == [
        f"tokens.models.m.tokenizer: wanted chat templates of at most 1 MiB, got {folder}: more"
    ]


def test_a_vocabulary_that_makes_the_library_panic_is_a_fault(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_bytes())
    raw["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    [told] = faults(m=folder)
    assert "a tokenizer.json, got " in told
    assert "Cannot parse precompiled_charsmap" in told


def test_without_hub_nothing_is_ever_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the network is used")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    assert loaded(m=folder).of("m") is not None
    [told] = faults(m={"tokenizer": "meta-llama/Llama-3.1-8B-Instruct"})
    assert told.endswith("No such file or directory")
