"""The shapes in which bodies of OpenAI's API carry prompts, and the `Prompt` that each of them is."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Raw

from extproc.prompt import NO_MEDIA, Chat, Media, Message, Part, Prompt, json_text

Prompts = str | list[str | int | list[str | int] | Part] | None
"""One prompt or several, as text or token ids. llama.cpp mixes them, and takes objects too."""

_IMAGES: Final = (b'"image_url"', b'"image"', b'"input_image"')
_AUDIOS: Final = (b'"input_audio"', b'"audio_url"', b'"audio"')


def given(prompts: Prompts, *, add_special_tokens: bool = True) -> Prompt:
    """Prompts that stand in the body themselves; a list of token ids is one prompt."""
    if prompts is None:
        return Prompt(as_usual=False)
    if isinstance(prompts, str):
        return Prompt((prompts,), add_special_tokens)
    if set(map(type, prompts)) == {int}:
        ids: tuple[int, ...] = tuple(prompts)  # type: ignore[arg-type]
        return Prompt(token_ids=len(ids), ids=ids)
    texts: list[str] = []
    token_ids = 0
    kinds = {type(item) for item in prompts}
    as_usual = len(kinds) == 1 and Part not in kinds
    parts: list[Part] = []
    for item in prompts:
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, list):
            inner = [one for one in item if isinstance(one, str)]
            texts += inner
            token_ids += len(item) - len(inner)
            as_usual = as_usual and not inner
        elif isinstance(item, Part):
            texts += item.texts
            parts.append(item)
        else:
            token_ids += 1
    return Prompt(
        tuple(texts),
        add_special_tokens,
        token_ids,
        media=_media_of(parts),
        prompts=len(prompts) or 1,
        as_usual=as_usual,
    )


def conversation(chat: Chat) -> Prompt:
    """A chat, with the media in it."""
    media = NO_MEDIA
    for message in chat.messages:
        content = message.content
        if isinstance(content, list):
            found = _media_of([part for part in content if isinstance(part, Part)])
            if found:
                media = Media(media.images + found.images, media.audios + found.audios, media.files + found.files)
    return Prompt(chat=chat, media=media)


def items_as_messages(instructions: str | None, items: str | Sequence[str | Message] | None) -> tuple[Message, ...]:
    """A response's instructions and input. Engines turn them into a chat, each in its own way: this is close to it."""
    messages = []
    if instructions:
        messages.append(Message(role="system", content=instructions))
    for item in [items] if isinstance(items, str) else items or ():
        if isinstance(item, str):
            messages.append(Message(role="user", content=item))
        elif item.role is None:
            # Calls of functions and what they gave. Reasoning items have neither.
            role, raw = ("tool", item.output) if bytes(item.output) else ("assistant", item.arguments)
            messages.append(Message(role=role, content=next(json_text(raw), item.content)))
        else:
            messages.append(item)
    return tuple(messages)


def flag(raw: Raw, default: bool) -> bool:
    """A raw `true` or `false`; the default for anything else."""
    match bytes(raw):
        case b"true":
            return True
        case b"false":
            return False
        case _:
            return default


def _media_of(parts: Iterable[Part]) -> Media:
    images = audios = files = 0
    for part in parts:
        if part.text is not None or part.refusal is not None:
            continue
        kind = bytes(part.type)
        if kind in _IMAGES:
            images += 1
        elif kind in _AUDIOS:
            audios += 1
        else:
            files += 1
    return Media(images, audios, files) if images or audios or files else NO_MEDIA
