"""What a model's folder says: its template, its control tokens, and what they mean for counts."""

import json
from pathlib import Path
from typing import Final

import pytest
import structlog.testing
from msgspec import Raw
from tokenizers import Tokenizer, processors

from extproc.prompt import Chat
from extproc.tokens.loading import Tokenizers, load
from extproc.tokens.template import Renderer
from extproc.tokensettings import ModelTokenizer, TokenSettings
from tests.tokens.loading.loaded import CHAT, TEMPLATE, loaded, model, text_of

WITH_TOOLS: Final = Chat(CHAT.messages, tools=Raw(b'[{"type": "function", "function": {"name": "f"}}]'))


def test_a_folder_has_its_template_tokens_and_boundary(folder: Path) -> None:
    counted = model(tokenizer=str(folder))
    assert counted.name == str(folder)
    assert counted.encoder.engine == "fastokens"
    assert counted.special_tokens == 1
    assert counted.boundary == "<|u|>"
    assert text_of(counted) == "<|u|>a<|u|>b"


def test_a_tokenizer_json_is_as_its_folder(folder: Path) -> None:
    counted = model(tokenizer=str(folder / "tokenizer.json"))
    assert text_of(counted) == "<|u|>a<|u|>b"


def test_what_stands_beside_a_file_of_another_name_belongs_to_others(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "mine.json")
    assert model(tokenizer=str(folder / "mine.json")).template is None


def test_a_model_without_a_template_has_no_boundary(file: Path) -> None:
    counted = model(tokenizer=str(file))
    assert counted.template is None
    assert counted.boundary is None


def test_an_entrys_own_template_goes_before_the_folders(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_bytes(b"one\r\n{{ bos_token }}{{ messages[0].content }}")
    (folder / "chat_template.jinja").write_text("two")
    assert text_of(model(tokenizer=str(folder), chat_template=tmp_path / "own.jinja")) == "one\n<s>a"


def test_an_entrys_own_template_renders_tools_too(folder: Path) -> None:
    own = folder / "own.jinja"
    own.write_text("own")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": {"default": "1", "tool_use": "2"}}))
    counted = model(tokenizer=str(folder), chat_template=own)
    assert (text_of(counted), text_of(counted, WITH_TOOLS)) == ("own", "own")


def test_a_template_file_goes_before_a_json_and_that_before_the_configurations(folder: Path) -> None:
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "three"}))
    assert text_of(model(tokenizer=str(folder))) == "three"
    (folder / "chat_template.jinja").write_text("two")
    assert text_of(model(tokenizer=str(folder))) == "two"


@pytest.mark.parametrize("listed", [True, False])
def test_of_several_templates_the_default_one_renders_and_another_one_tools(folder: Path, listed: bool) -> None:
    templates: object = {"default": "one", "tool_use": "two", "rag": "{% nonsense"}
    if listed:
        templates = [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    counted = model(tokenizer=str(folder))
    assert (text_of(counted), text_of(counted, WITH_TOOLS)) == ("one", "two")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("three")
    counted = model(tokenizer=str(folder))
    assert (text_of(counted), text_of(counted, WITH_TOOLS)) == ("one", "three")


def test_tokens_of_the_configuration_alone_are_control_tokens(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": ["<|new|>"]}))
    assert model(tokenizer=str(folder)).encoder.counts(["<|new|>"], add_special_tokens=False) == [1]


@pytest.mark.parametrize(
    ("tokens", "renderer"),
    [
        (["<|channel|>", "<|constrain|>"], Renderer.HARMONY),
        (["[INST]", "[AVAILABLE_TOOLS]"], Renderer.MISTRAL),
        (["<|channel|>", "[INST]"], Renderer.TEMPLATE),
    ],
)
def test_families_that_have_their_own_renderer_are_known_by_their_tokens(
    folder: Path, tokens: list[str], renderer: Renderer
) -> None:
    config = {"chat_template": TEMPLATE, "extra_special_tokens": tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = model(tokenizer=str(folder)).template
    assert template is not None
    assert template.renderer is renderer


def test_each_loaded_tokenizer_is_told_with_what_was_found(folder: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        loaded(a=folder, b=folder)
    [told] = logs
    assert told.pop("seconds") >= 0
    assert told.pop("reason").startswith("agrees with tokenizers on ")
    assert told == {
        "event": "tokenizer loaded",
        "log_level": "info",
        "model": "a",
        "tokenizer": str(folder),
        "engine": "fastokens",
        "template": "its own",
        "renderer": "template",
        "boundary": "<|u|>",
        "remark": "its chat template leaves out '<s>', which llama.cpp puts there: chats are never exact",
    }


def test_entries_can_be_made_in_code(folder: Path) -> None:
    settings = TokenSettings(models={"m": ModelTokenizer(tokenizer=str(folder))})
    assert isinstance(load(settings), Tokenizers)


def test_folders_whose_tokenizers_are_one_file_keep_their_own_templates(folder: Path, tmp_path: Path) -> None:
    """As in the caches of hubs, where files that are equal are links to one."""
    folders = {}
    for name in ("one", "two"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "tokenizer.json").symlink_to(folder / "tokenizer.json")
        (folders[name] / "tokenizer_config.json").write_text(json.dumps({"chat_template": name}))
    for paths in (folders, {name: path / "tokenizer.json" for name, path in folders.items()}):
        tokenizers = loaded(**paths)
        for name in ("one", "two"):
            found = tokenizers.of(name)
            assert found is not None
            assert text_of(found) == name


@pytest.mark.parametrize(
    ("template", "remark"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", None),
        (None, "no chat template: chats are counted by their texts, never exactly"),
        ("{{ raise_exception('no') }}", "its chat template fails on a plain chat, so chats are estimated: "),
        ("hello", "its chat template leaves out what is said"),
        (TEMPLATE, "its chat template leaves out '<s>', which llama.cpp puts there: chats are never exact"),
    ],
)
def test_why_chats_are_not_exact_is_remarked(folder: Path, template: str | None, remark: str | None) -> None:
    config = {"bos_token": "<s>"} | ({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = model(tokenizer=str(folder)).remark
    assert found == remark or (found is not None and remark is not None and found.startswith(remark))


@pytest.mark.parametrize(
    ("single", "beginning"), [("<s> $A", "<s>"), ("<s> $A <s>", "<s>"), ("$A", ""), ("$A <s>", "")]
)
def test_a_tokenizers_beginning_is_what_it_puts_in_front(file: Path, single: str, beginning: str) -> None:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0)])
    tokenizer.save(str(file))
    assert model(tokenizer=str(file.parent)).beginning == beginning
