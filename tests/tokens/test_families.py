"""Real vocabularies: what both libraries make of text, and what was once written down of it."""

import base64
import random
from dataclasses import dataclass
from typing import Final

import pytest
from tokenizers import Tokenizer

from extproc.tokens.encoders import Fast
from extproc.tokens.loading import CountedModel, Tokenizers, load
from extproc.tokens.pieces import cut
from extproc.tokensettings import ModelTokenizer, TokenSettings
from tests.tokens.families import NAMES, family_folder

TEXTS: Final = {
    "hello": "Hello, world!",
    "English": "The quick brown fox can't jump over 12,345.67 lazy dogs; they're ALL asleep, aren't they?",
    "Chinese": "大语言模型的负载均衡器按令牌数分配请求，每个节点都有自己的队列。",
    "Arabic": "مرحبا بالعالم، هذا نصّ عربيّ مُشَكَّل. ١٢٣٤٥",
    "code": "def total(counts: dict[str, int]) -> int:\n    return sum(n for n in counts.values() if n >= 0)  # O(n)\n",
    "emoji": "👍🏽 🧑‍💻👨‍👩‍👧‍👦 🇩🇪🇫🇷 ☕️ 1️⃣ ✨",
    "base64": base64.b64encode(random.Random(0).randbytes(300)).decode(),
    "blanks": "  a   b\t\tc\n\n\n  d \r\n\r\n e\u00a0f\u3000g    ",
    "control tokens": "<|im_start|>user\nhi<|im_end|><|eot_id|><｜User｜><|start|><think>x</think>",
}
MIXED: Final = "令牌 ١٢ 👍🏽 x"


@dataclass(frozen=True)
class Written:
    """What a family's tokens were when they were first counted, by both libraries."""

    hello: list[int]
    mixed: list[int]
    begins: list[int]
    """Tokens in front of a text."""
    counts: list[int]
    """Of `TEXTS`, without them."""
    boundary: str | None = None


WRITTEN: Final = {
    "deepseek": Written(
        hello=[19923, 14, 2058, 3],
        mixed=[94136, 223, 63468, 76647, 102527, 40965, 124, 1527],
        begins=[],
        counts=[4, 26, 17, 27, 34, 36, 279, 20, 30],
    ),
    "qwen3": Written(
        hello=[9707, 11, 1879, 0],
        mixed=[103413, 220, 149, 94, 149, 95, 61804, 235, 145375, 856],
        begins=[],
        counts=[4, 30, 20, 32, 34, 35, 292, 16, 23],
        boundary="<|im_start|>",
    ),
    "llama3_1": Written(
        hello=[9906, 11, 1917, 0],
        mixed=[103507, 104241, 220, 109610, 110546, 62904, 235, 9468, 237, 121, 865],
        begins=[128000],
        counts=[4, 26, 25, 26, 34, 50, 284, 16, 30],
        boundary="<|start_header_id|>",
    ),
    "gptoss": Written(
        hello=[13225, 11, 2375, 0],
        mixed=[47119, 10886, 220, 46600, 53184, 160433, 52622, 121, 1215],
        begins=[],
        counts=[4, 23, 24, 22, 34, 36, 268, 16, 32],
    ),
}


@dataclass(frozen=True)
class Family:
    name: str
    model: CountedModel
    fast: Fast
    reference: Tokenizer
    written: Written

    def wanted(self, texts: list[str], *, special: bool) -> list[list[int]]:
        return [one.ids for one in self.reference.encode_batch_fast(texts, add_special_tokens=special)]


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest) -> Family:
    name: str = request.param
    folder = family_folder(name)
    loaded = load(TokenSettings(models={name: ModelTokenizer(tokenizer=str(folder))}))
    assert isinstance(loaded, Tokenizers), loaded
    model = loaded.of(name)
    assert model is not None
    assert isinstance(model.encoder, Fast), model.encoder.reason
    return Family(name, model, model.encoder, Tokenizer.from_file(str(folder / "tokenizer.json")), WRITTEN[name])


def ids_of(family: Family, texts: list[str], *, special: bool) -> list[list[int]]:
    return [memoryview(one).cast("I").tolist() for one in family.fast.raw_ids(texts, special)]


def test_tokens_are_those_that_were_written_down(family: Family) -> None:
    hello, mixed, begins = family.written.hello, family.written.mixed, family.written.begins
    assert family.wanted(["Hello, world!", MIXED], special=True) == [begins + hello, begins + mixed]
    assert ids_of(family, ["Hello, world!", MIXED], special=True) == [begins + hello, begins + mixed]
    assert ids_of(family, ["Hello, world!", MIXED], special=False) == [hello, mixed]
    assert family.model.special_tokens == len(begins)


def test_counts_are_those_that_were_written_down(family: Family) -> None:
    texts = list(TEXTS.values())
    assert list(map(len, family.wanted(texts, special=False))) == family.written.counts
    assert family.fast.counts(texts, add_special_tokens=False) == family.written.counts
    more = [count + len(family.written.begins) for count in family.written.counts]
    assert family.fast.counts(texts, add_special_tokens=True) == more


def test_both_libraries_give_the_same_tokens_for_ten_thousand_random_texts(family: Family) -> None:
    texts = random_texts(family, 10_000)
    for special in (False, True):
        part = texts if not special else texts[:1000]
        for text, got, wanted in zip(
            part, ids_of(family, part, special=special), family.wanted(part, special=special), strict=True
        ):
            assert got == wanted, text


def test_both_libraries_give_the_same_tokens_for_long_texts_in_a_row(family: Family) -> None:
    chance = random.Random(5)
    words = "".join(random_texts(family, 3000))
    for _ in range(20):
        # Each begins as the one before, and goes on otherwise somewhere behind the first 4 KB.
        text = words[:4000] + "x" * 300 + " " * chance.randrange(500) + words[4000 : chance.randrange(5000, 60_000)]
        assert ids_of(family, [text], special=False) == family.wanted([text], special=False)


def test_counts_of_pieces_add_up(family: Family) -> None:
    boundary = family.model.boundary
    assert boundary == family.written.boundary
    if boundary is None:
        return
    chance = random.Random(9)
    texts = random_texts(family, 3000)
    for start in range(0, len(texts), 10):
        text = "".join(one + boundary * chance.randrange(2) for one in texts[start : start + 10])
        pieces = family.fast.counts(cut(text, boundary), add_special_tokens=False)
        assert pieces is not None
        assert family.fast.counts([text], add_special_tokens=False) == [sum(pieces)]


def random_texts(family: Family, number: int) -> list[str]:
    """Texts of up to 40 characters, or control tokens and parts of them, of several alphabets."""
    chance = random.Random(family.name)
    control = [token.content for token in family.reference.get_added_tokens_decoder().values()]
    alphabets: list[list[str]] = [
        list("etaoin shrdlu ETAOIN '.,;-_()[]{}<>|/\\\"\n\t0123456789"),
        list(" \t\n\r\u00a0\u3000a1."),
        ["'s", "'S", "'ll", "’re", "don", "IT", "ſ", " ", "K", "İ"],
        [*"aeo\u0301\u0308\u0323\u200d\ufe0f\u0338 ", "가", "각", "\u1100", "\u1161"],
        [*"👍🏽🧑💻🇩🇪☕️1\ufe0f\u20e3\u200d "],
        [*"大语言模型。，、の カタ한국어 ", "मस्ते", "สวัส", "مرحبا", "שלום", "١٢"],
        [
            *control[:20],
            *control[-20:],
            *(one[:-1] for one in control[:20]),
            *(one[1:] for one in control[:20]),
            " ",
            "a",
        ],
    ]
    texts = []
    for _ in range(number):
        size = chance.randrange(40)
        if chance.random() < 0.3:
            code_points = (chance.randrange(0x110000 - 0x800) for _ in range(size))
            texts.append("".join(chr(one if one < 0xD800 else one + 0x800) for one in code_points))
        else:
            texts.append("".join(chance.choices(chance.choice(alphabets), k=size)))
    return texts
