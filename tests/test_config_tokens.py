"""What a configuration says of counting: settings, models, and bases of models."""

from pathlib import Path
from typing import Any

import pytest

from extproc.config import parse, read
from extproc.sizes import GIB, KIB
from tests.parsing import faults, whole, written


@pytest.mark.parametrize(
    ("name", "least", "most", "step"),
    [
        ("bytes_per_token", 0.1, 1000.0, 0.01),
        ("message_tokens", 0, 1000, 1),
        ("inline_bytes_max", 0, 64 * KIB, 1),
        ("waiting_bytes_max", 64 * KIB, GIB, 1),
        ("threads", 1, 64, 1),
        ("token_budget_ms", 0, 10_000.0, 0.01),
        ("image_tokens", 0, 1_000_000, 1),
        ("audio_tokens", 0, 1_000_000, 1),
        ("file_tokens", 0, 1_000_000, 1),
        ("cache_bytes_max", 0, GIB, 1),
        ("chat_messages_max", 1, 100_000, 1),
        ("template_fuel", 1000, 10_000_000, 1),
    ],
)
def test_token_settings_hold_at_their_edges(name: str, least: float, most: float, step: float) -> None:
    whole(parse({"tokens": {name: least}}))
    whole(parse({"tokens": {name: most}}))
    assert faults(parse({"tokens": {name: least - step}}))
    assert faults(parse({"tokens": {name: most + step}}))


def test_a_tokenizers_path_starts_at_the_folder_of_the_file(tmp_path: Path) -> None:
    entries = "near: {tokenizer: t/a.json, chat_template: t/c.jinja}, far: {tokenizer: /etc/b.json}"
    models = whole(read(written(tmp_path, "tokens: {models: {" + entries + "}}"))).tokens.models
    assert models["near"].tokenizer == str(tmp_path / "t/a.json")
    assert models["near"].chat_template == tmp_path / "t/c.jinja"
    assert models["far"].tokenizer == "/etc/b.json"


@pytest.mark.parametrize("order", [1, -1])
def test_a_repository_of_a_hub_is_no_path(order: int) -> None:
    entry = dict([("tokenizer", "org/model"), ("hub", True), ("revision", "v2")][::order])
    model = whole(parse({"tokens": {"models": {"m": entry}}}, Path("/etc"))).tokens.models["m"]
    assert (model.tokenizer, model.hub, model.revision) == ("org/model", True, "v2")


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ({}, "either a tokenizer or a base"),
        ({"tokenizer": None}, "either a tokenizer or a base"),
        ({"tokenizer": "t", "base": "b"}, "either a tokenizer or a base"),
        ({"base": "b", "chat_template": "c"}, "no chat_template, hub or revision beside a base, which has its own"),
        ({"base": "b", "hub": True}, "no chat_template, hub or revision beside a base, which has its own"),
        ({"base": "b", "revision": "v2"}, "no chat_template, hub or revision beside a base, which has its own"),
        ({"tokenizer": "t", "revision": "v2"}, "a revision only with hub"),
    ],
)
def test_a_model_is_counted_in_one_way(entry: dict[str, Any], wanted: str) -> None:
    told = faults(parse({"tokens": {"models": {"m": entry, "b": {"tokenizer": "t"}}}}))
    assert told == [f"tokens.models.m: wanted {wanted}, got {entry}"]


@pytest.mark.parametrize("key", ["tokenizer", "chat_template"])
@pytest.mark.parametrize("path", ["", "a\0b", 5, ["a"]])
def test_paths_of_a_model_are_paths(key: str, path: object) -> None:
    [told] = faults(parse({"tokens": {"models": {"m": {"tokenizer": "t"} | {key: path}}}}))
    assert told == f"tokens.models.m.{key}: wanted a path, got {path!r}"


@pytest.mark.parametrize("base", ["llama-3", "llama-*", "llama-4"])
def test_a_base_names_an_entry_or_matches_its_pattern(base: str) -> None:
    models = {"lora": {"base": base}, "llama-*": {"tokenizer": "t"}, "llama-3": {"tokenizer": "t"}}
    assert whole(parse({"tokens": {"models": models}})).tokens.models["lora"].base == base


@pytest.mark.parametrize(
    ("base", "others"),
    [
        ("gone", {}),
        ("lora", {}),
        ("other", {"other": {"base": "llama-3"}}),
        ("llama-lora-3", {"llama-lora-*": {"base": "llama-3"}}),
        ("LLAMA-3", {}),
    ],
)
def test_a_base_that_has_no_tokenizer_itself_is_a_fault(base: str, others: dict[str, Any]) -> None:
    models = {"lora": {"base": base}, "llama-*": {"tokenizer": "t"}} | others
    [told] = faults(parse({"tokens": {"models": models}}))
    wanted = f"for 'lora' a base that an entry with a tokenizer matches, not {base!r}"
    assert told.startswith(f"tokens.models: wanted {wanted}, got ")
