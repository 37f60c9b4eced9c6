from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Raw, json
from msgspec.structs import replace

from extproc.core.request import PROMPT_BLOCK_BYTES
from extproc.prompt import Chat, Media, Message, Part, Prompt
from extproc.tokens.blocks import PROMPT_BLOCKS_MAX, blocks_of

SEED = 7
NOTHING = Raw()
BLOCK_OF_TEXT = "0123456789abcdef" * (PROMPT_BLOCK_BYTES // 16)


def of(prompt: Prompt, *, model: str = "m", seed: int = SEED) -> tuple[int, ...]:
    return blocks_of(model, prompt, seed)


def of_text(text: str) -> tuple[int, ...]:
    return of(Prompt(texts=(text,)))


def of_ids(*ids: int) -> tuple[int, ...]:
    return of(Prompt(ids=ids, token_ids=len(ids)))


def of_chat(*messages: Message, tools: Raw = NOTHING, padded: bool = False) -> tuple[int, ...]:
    """`padded`: a last message, so that all of the others is in whole blocks."""
    last = (Message("user", BLOCK_OF_TEXT * 2),) if padded else ()
    return of(Prompt(chat=Chat(messages + last, tools)))


def begin_alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many blocks; behind the first that differs all must differ."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    assert same == sorted(same, reverse=True)
    return sum(same)


texts = st.text(max_size=40).map(lambda one: one * 12)
raws = st.builds(lambda value: Raw(json.encode(value)), st.dictionaries(st.text(max_size=9), texts, min_size=1))
fields = st.sampled_from([Raw(), Raw(), Raw(b"null")]) | raws
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.none() | texts | st.lists(texts | st.builds(Part, text=texts), max_size=3),
    name=fields,
    tool_calls=fields,
    tool_call_id=fields,
    reasoning=fields,
)
chats = st.builds(Chat, st.lists(messages, min_size=1, max_size=6).map(tuple), tools=fields)


@given(chats, messages)
def test_a_chat_longer_by_a_turn_begins_with_the_chain_of_the_shorter(chat: Chat, turn: Message) -> None:
    longer = replace(chat, messages=(*chat.messages, turn))
    shorter = of(Prompt(chat=chat))
    assert of(Prompt(chat=longer))[: len(shorter)] == shorter


@given(st.text(), st.text())
def test_a_longer_text_begins_with_the_chain_of_the_shorter(text: str, more: str) -> None:
    text *= 20
    shorter = of_text(text)
    assert len(shorter) == len(text.encode(errors="surrogatepass")) // PROMPT_BLOCK_BYTES
    assert of_text(text + more)[: len(shorter)] == shorter


@given(st.integers(0, 9 * PROMPT_BLOCK_BYTES - 1))
def test_a_changed_character_changes_every_block_from_its_own_on(at: int) -> None:
    text = BLOCK_OF_TEXT * 9
    changed = text[:at] + "#" + text[at + 1 :]
    assert begin_alike(of_text(text), of_text(changed)) == at // PROMPT_BLOCK_BYTES


CHAT = (
    Message("system", "Be brief. " * 30),
    Message("user", "What is the weather in Rome? " * 10, name=Raw(b'"ann"')),
    Message("assistant", None, tool_calls=Raw(b'[{"id":"1"}]'), reasoning=Raw(b'"I ask."')),
    Message("tool", "sunny " * 50, tool_call_id=Raw(b'"1"')),
    Message(None, "{}"),
    Message(None, "sunny"),
)


@pytest.mark.parametrize(
    ("at", "changed"),
    [
        (0, {"role": "developer"}),
        (0, {"content": "Be brief, please. " * 30}),
        (0, {"content": ["Be brief. " * 29, "Be brief. "]}),
        (1, {"name": Raw(b'"bob"')}),
        (1, {"name": Raw()}),
        (2, {"content": ""}),
        (2, {"tool_calls": Raw(b'[{"id":"2"}]')}),
        (2, {"reasoning": Raw(b'"I guess."')}),
        (2, {"reasoning_content": Raw(b'"I guess."')}),
        (3, {"tool_call_id": Raw(b'"2"')}),
        (4, {"content": "{ }"}),
        (5, {"content": "rainy"}),
        (5, {"content": None, "tool_calls": Raw(b'"sunny"')}),
    ],
)
def test_whatever_engines_read_of_a_message_makes_a_difference(at: int, changed: dict[str, object]) -> None:
    other = (*CHAT[:at], replace(CHAT[at], **changed), *CHAT[at + 1 :])
    before = len(of_chat(*CHAT[:at]))
    alike = begin_alike(of_chat(*CHAT, padded=True), of_chat(*other, padded=True))
    assert before <= alike < len(of_chat(*CHAT, padded=True))


def test_tools_and_documents_stand_before_everything() -> None:
    tools = [Raw(b'[{"name":"f"}]'), Raw(b'[{"name":"g"}]')]
    chains = [of_chat(*CHAT, tools=one) for one in (NOTHING, *tools)]
    chains += [of(Prompt(chat=Chat(CHAT, documents=one))) for one in tools]
    assert len({chain[0] for chain in chains}) == len(chains)


def test_what_is_null_is_absent() -> None:
    null = Raw(b"null")
    absent = Message("user", BLOCK_OF_TEXT * 2)
    assert of_chat(replace(absent, name=null, tool_calls=null, reasoning=null), tools=null) == of_chat(absent)


@given(st.lists(st.text(max_size=200), min_size=2, max_size=5), st.data())
def test_a_boundary_between_messages_that_moves_makes_a_difference(said: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(said) - 2))
    whole = said[at] + said[at + 1]
    cut = data.draw(st.integers(0, len(whole)))
    assume(cut != len(said[at]))
    moved = [*said[:at], whole[:cut], whole[cut:], *said[at + 2 :]]
    for build in (_as_messages, _as_parts):
        assert of_chat(*build(said), padded=True) != of_chat(*build(moved), padded=True)


def _as_messages(said: list[str]) -> tuple[Message, ...]:
    return tuple(Message("user", one) for one in said)


def _as_parts(said: list[str]) -> tuple[Message, ...]:
    return (Message("user", [Part(text=one) for one in said]),)


@given(chats, chats)
def test_different_chats_have_different_chains(one: Chat, other: Chat) -> None:
    assume(_said(one) != _said(other))
    assert of_chat(*one.messages, tools=one.tools, padded=True) != of_chat(
        *other.messages, tools=other.tools, padded=True
    )


def _said(chat: Chat) -> object:
    """All that tells chats apart, once more and slowly: null and absent, and one text as string or part, are alike."""

    def value(raw: Raw) -> bytes:
        return bytes(raw) or b"null"

    return value(chat.tools), [
        (
            message.role,
            [
                one.text if isinstance(one, Part) else one
                for one in ([message.content] if isinstance(message.content, str) else message.content or [])
            ],
            *map(value, (message.name, message.tool_call_id, message.reasoning, message.tool_calls)),
        )
        for message in chat.messages
    ]


def test_a_role_cannot_pass_for_the_end_of_a_text() -> None:
    assert of_chat(Message("user", "a"), Message("user", "b"), padded=True) != of_chat(
        Message("user", ["auser", "b"]), padded=True
    )
    assert of_chat(Message("user", None, reasoning_content=Raw(b"1")), padded=True) != of_chat(
        Message("user", None), padded=True
    )


def test_json_that_is_no_utf_8_cannot_pass_for_something_else() -> None:
    honest = Message("user", "a", tool_calls=Raw(b"[]"))
    forged = Message("user", None, tool_calls=Raw(b"[]"), name=Raw(b'"x"'))
    for hidden in (b"\xfftext:a", b"\xffmessage:user\xfftext:a"):
        for raw in (hidden, b'"' + hidden + b'"', b"[]" + hidden):
            assert of_chat(replace(forged, name=Raw(raw)), padded=True) != of_chat(honest, padded=True)
            assert of_chat(replace(honest, tool_calls=Raw(raw)), padded=True) != of_chat(
                replace(honest, tool_calls=Raw(b"[]")), Message("user", "a"), padded=True
            )


MEDIA = ["image_url", "input_audio", "audio_url", "video_url", "file", "file_id", "file_url", "file_data"]


@pytest.mark.parametrize("field", MEDIA)
def test_media_are_told_apart_by_what_they_are(field: str) -> None:
    def chain(value: bytes) -> tuple[int, ...]:
        medium = Part()
        setattr(medium, field, Raw(value))
        content: list[str | Part] = [BLOCK_OF_TEXT * 2, medium, BLOCK_OF_TEXT]
        return of_chat(Message("user", content))

    one, same, other = chain(b'{"url": "a"}'), chain(b'{"url": "a"}'), chain(b'{"url": "b"}')
    assert one == same
    assert len(one) == 2 + 4 + 1, "an image is many tokens"
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])


def test_kinds_of_media_are_no_text() -> None:
    raw = Raw(b'"x"')
    chains = [
        of_chat(Message("user", [Part(image_url=raw), BLOCK_OF_TEXT])),
        of_chat(Message("user", ["x", BLOCK_OF_TEXT])),
    ]
    assert not set(chains[0]) & set(chains[1])


@pytest.mark.parametrize("media", [Part(type=Raw(b'"image_url"')), Part()])
def test_a_chat_is_followed_up_to_its_first_part_of_unknown_kind(media: Part) -> None:
    before = Message("user", [BLOCK_OF_TEXT * 2, media, BLOCK_OF_TEXT])
    chain = of_chat(Message("system", "x"), before, padded=True)
    assert len(chain) == 2
    assert chain == of_chat(Message("system", "x"), Message("user", [BLOCK_OF_TEXT * 2, BLOCK_OF_TEXT]))[:2]
    assert chain == of_chat(Message("system", "x"), replace(before, content=[BLOCK_OF_TEXT * 2, media]))


def test_a_refusal_is_a_text() -> None:
    said = Message("assistant", [Part(refusal=BLOCK_OF_TEXT * 2)])
    assert of_chat(said) == of_chat(replace(said, content=BLOCK_OF_TEXT * 2))


OTHERWISE: list[Callable[[], tuple[int, ...]]] = [
    lambda: of_text(BLOCK_OF_TEXT),
    lambda: of(Prompt(texts=(BLOCK_OF_TEXT,)), model="n"),
    lambda: of(Prompt(texts=(BLOCK_OF_TEXT,)), seed=SEED + 1),
    lambda: of(Prompt(texts=(BLOCK_OF_TEXT,), add_special_tokens=False)),
    lambda: of_ids(*memoryview(BLOCK_OF_TEXT.encode()).cast("I")),
    lambda: of_chat(Message("user", BLOCK_OF_TEXT)),
    lambda: of(Prompt(chat=Chat((Message("user", BLOCK_OF_TEXT),), add_special_tokens=True))),
]


def test_models_seeds_and_kinds_of_prompts_have_nothing_in_common() -> None:
    chains = [one() for one in OTHERWISE]
    assert len({chain[0] for chain in chains}) == len(OTHERWISE)
    assert chains == [one() for one in OTHERWISE], "and each is the same a second time"


def test_a_models_name_cannot_reach_into_the_prompt() -> None:
    assert of(Prompt(texts=(BLOCK_OF_TEXT,)), model="m\xfftext") != of_text(BLOCK_OF_TEXT)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=200, max_size=300), st.integers(0, 199))
def test_token_ids_are_told_apart_64_at_a_time(ids: list[int], at: int) -> None:
    other = [*ids[:at], ids[at] ^ 1, *ids[at + 1 :]]
    assert len(of_ids(*ids)) == len(ids) * 4 // PROMPT_BLOCK_BYTES
    assert begin_alike(of_ids(*ids), of_ids(*other)) == at * 4 // PROMPT_BLOCK_BYTES


def test_ids_that_no_model_has_are_taken_without_complaint() -> None:
    assert of_ids(*[2**32 + 7, -1, 10**19] * 64) == of_ids(*[7, 2**32 - 1, 10**19 % 2**32] * 64)


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(),
        Prompt(texts=("",)),
        Prompt(texts=(BLOCK_OF_TEXT, BLOCK_OF_TEXT), prompts=2),
        Prompt(texts=(BLOCK_OF_TEXT,), prompts=2),
        Prompt(texts=(BLOCK_OF_TEXT,), token_ids=64, ids=tuple(range(64))),
        Prompt(texts=(BLOCK_OF_TEXT,), chat=Chat((Message("user", BLOCK_OF_TEXT),))),
        Prompt(texts=(BLOCK_OF_TEXT,), media=Media(images=1)),
        Prompt(token_ids=500),
        Prompt(chat=Chat(())),
        Prompt(texts=(BLOCK_OF_TEXT[1:],)),
    ],
)
def test_several_prompts_and_short_ones_have_no_chain(prompt: Prompt) -> None:
    assert of(prompt) == ()


@pytest.mark.parametrize("character", ["a", "é", "語", "\ud800"])
def test_a_chain_has_an_end_and_any_character_is_taken(character: str) -> None:
    long = character * (PROMPT_BLOCKS_MAX * PROMPT_BLOCK_BYTES + 100)
    chain = of_text(long)
    assert len(chain) == PROMPT_BLOCKS_MAX
    assert chain == of_text(long + "b")
    assert len(of_chat(Message("user", long), Message("user", long))) == PROMPT_BLOCKS_MAX
    assert len(of_chat(Message("user", ""), tools=Raw(b'"' + b"a" * len(long) + b'"'))) == PROMPT_BLOCKS_MAX
    assert len(of_ids(*range(PROMPT_BLOCKS_MAX * PROMPT_BLOCK_BYTES // 4 + 100))) == PROMPT_BLOCKS_MAX


def test_of_very_many_messages_the_first_ones_count() -> None:
    many = [Message("user", "")] * 5000
    assert of_chat(*many) == of_chat(*many, *many)
