"""The files of a model that say how its prompts are counted, as model hubs lay them out.

tokenizer.json                                    the vocabulary, and how text is split
tokenizer_config.json                             special tokens, often the chat template
chat_template.jinja, or chat_template.json        the chat template: before the configuration's
additional_chat_templates/tool_use.jinja          the one for chats with tools, where that is another
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from extproc.tokens import declared
from extproc.tokens.declared import Declared, Templates

TOKENIZER: Final = "tokenizer.json"
CONFIG: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"
TEMPLATE_JSON: Final = "chat_template.json"
TOOL_TEMPLATE: Final = "additional_chat_templates/tool_use.jinja"
OPTIONAL: Final = (CONFIG, TEMPLATE, TEMPLATE_JSON, TOOL_TEMPLATE)

TOKENIZER_BYTES_MAX: Final = 256 * 1024 * 1024
CONFIG_BYTES_MAX: Final = 16 * 1024 * 1024
TEMPLATE_BYTES_MAX: Final = 1024 * 1024
_GOT_CHARS_MAX: Final = 300


class UnusableError(Exception):
    """A file is missing, broken or too long. Becomes a `Fault` where the entry of the configuration is known."""

    def __init__(self, wanted: str, path: Path | str, problem: object) -> None:
        self.wanted = wanted
        self.got = f"{path}: {' '.join(str(problem).split())[:_GOT_CHARS_MAX]}"
        super().__init__(f"wanted {wanted}, got {self.got}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the files hold."""

    tokenizer: Path
    """A `tokenizer.json`, which may be missing or broken yet."""
    declared: Declared
    template: str | None
    tool_template: str | None
    """For chats with tools; `None`: they are rendered by `template` too."""


class _TemplateFile(Struct):
    chat_template: Templates


def read(path: Path) -> ModelFiles:
    """The files in a folder, or those around a `tokenizer.json`. Raises `UnusableError`.

    A file of another name is a `tokenizer.json` alone: what stands beside it belongs to others.
    """
    try:
        if path.is_dir():
            return _in_folder(path)
    except OSError as error:
        raise UnusableError("a folder or a tokenizer.json", path, error.strerror) from None
    return _in_folder(path.parent) if path.name == TOKENIZER else ModelFiles(path, Declared(), None, None)


def read_tokenizer(path: Path) -> bytes:
    """A `tokenizer.json`. Raises `UnusableError`."""
    return _read(path, TOKENIZER_BYTES_MAX, "a folder or a tokenizer.json")


def read_template(path: Path) -> str:
    """A Jinja file's text. Raises `UnusableError`."""
    raw = _read(path, TEMPLATE_BYTES_MAX, "a chat template")
    try:
        return io.StringIO(raw.decode(), newline=None).read()
    except UnicodeDecodeError as error:
        raise UnusableError("a chat template in UTF-8", path, error) from None


def _in_folder(folder: Path) -> ModelFiles:
    config = _declared(folder / CONFIG)
    templates = _named(config.chat_template) | _named(_from_json(folder / TEMPLATE_JSON))
    for name, at in (("default", TEMPLATE), ("tool_use", TOOL_TEMPLATE)):
        if (folder / at).exists():
            templates[name] = read_template(folder / at)
    for template in templates.values():
        if len(template.encode()) > TEMPLATE_BYTES_MAX:
            raise UnusableError("chat templates of at most 1 MiB", folder, "more")
    return ModelFiles(folder / TOKENIZER, config, templates.get("default"), templates.get("tool_use"))


def _declared(path: Path) -> Declared:
    if not path.exists():
        return Declared()
    raw = _read(path, CONFIG_BYTES_MAX, "a tokenizer_config.json")
    try:
        return declared.decode(raw)
    except ValueError as error:
        raise UnusableError("a tokenizer_config.json", path, error) from None


def _from_json(path: Path) -> Templates | None:
    if not path.exists():
        return None
    raw = _read(path, CONFIG_BYTES_MAX, "a chat_template.json")
    try:
        return msgspec.json.decode(raw, type=_TemplateFile).chat_template
    except (ValueError, RecursionError) as error:
        raise UnusableError("a chat_template.json", path, error) from None


def _named(templates: Templates | None) -> dict[str, str]:
    """A single template is the default one."""
    match templates:
        case None:
            return {}
        case str():
            return {"default": templates}
        case dict():
            return dict(templates)
        case _:
            return {one.name: one.template for one in templates}


def _read(path: Path, bytes_max: int, wanted: str) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would be read for ever
            raise UnusableError(wanted, path, "not a file")
        with path.open("rb") as file:
            raw = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        raise UnusableError(wanted, path, getattr(error, "strerror", None) or error) from None
    if len(raw) > bytes_max:
        raise UnusableError(f"{wanted} of at most {bytes_max // 1024 // 1024} MiB", path, "more")
    return raw
