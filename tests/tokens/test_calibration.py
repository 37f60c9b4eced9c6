import asyncio.base_events
import base64
import inspect
import json
import pydoc_data.topics
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from extproc.tokens.calibration import Calibration
from tests.tokens.bpe import train
from tests.tokens.families import family_folder

PROSE = "The node that serves a request soonest is chosen, and what it is sent is counted until its next report. " * 3
BLANKS = " " * 2000
# Article 1 of the Universal Declaration of Human Rights.
ARTICLES = [
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا وعليهم أن يعامل بعضهم بعضًا بروح الإخاء.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos, dotados como están de razón y conciencia.",
]


def calibration(*, bytes_per_token: float = 4.0, models_max: int = 3) -> Calibration:
    return Calibration(bytes_per_token, models_max)


def traffic(count: int) -> list[list[str]]:
    """Prompts as they come: prose, code, JSON, base64 and other scripts, mixed, of 50 to 20,000 characters."""
    chance = random.Random(3)
    prose = "".join(pydoc_data.topics.topics.values())
    rows = [{"id": one * 7919, "name": prose[one * 50 : one * 50 + 30], "ok": one % 3 == 0} for one in range(2000)]
    kinds = [
        prose,
        inspect.getsource(asyncio.base_events),
        json.dumps(rows),
        base64.b64encode(chance.randbytes(50_000)).decode(),
        *(article * 200 for article in ARTICLES),
    ]

    def cut(text: str, chars: int) -> str:
        start = chance.randrange(max(1, len(text) - chars))
        return text[start : start + chars]

    return [
        [
            cut(chance.choices(kinds, [6, 4, 2, 1, 1, 1, 1, 1, 1])[0], int(50 * 400 ** chance.random()))
            for _ in range(chance.randrange(1, 4))
        ]
        for _ in range(count)
    ]


def errors_over(stream: list[list[str]], tokenizer: Tokenizer, of: Calibration, model: str = "m") -> list[float]:
    return [
        of.learn(model, texts, sum(map(len, tokenizer.encode_batch_fast(texts, add_special_tokens=False))))
        for texts in stream
    ]


def error_of_constant(texts: list[str], tokenizer: Tokenizer) -> float:
    tokens = sum(map(len, tokenizer.encode_batch_fast(texts, add_special_tokens=False)))
    return abs(sum(len(text.encode()) for text in texts) / 4 - tokens) / tokens


def test_english_prose_is_estimated_by_bytes_per_token_until_a_model_teaches() -> None:
    for bytes_per_token in (2.0, 4.0, 8.0):
        estimate = calibration(bytes_per_token=bytes_per_token).estimate("m", [PROSE])
        assert estimate == pytest.approx(len(PROSE) / bytes_per_token, rel=0.1)


@given(st.lists(st.text(max_size=50), max_size=20), st.lists(st.text(max_size=50), max_size=20))
def test_more_text_is_never_estimated_shorter_and_none_is_nothing(texts: list[str], more: list[str]) -> None:
    calibrated = calibration()
    calibrated.learn("m", [PROSE, *ARTICLES], 100)
    estimate = calibrated.estimate("m", texts)
    assert (estimate == 0) == (not any(texts))
    assert calibrated.estimate("m", texts + more) >= estimate


@given(st.lists(st.text(max_size=50), max_size=20))
def test_where_texts_are_cut_makes_no_difference(texts: list[str]) -> None:
    assert calibration().estimate("m", texts) == calibration().estimate("m", ["".join(texts)])


@pytest.mark.parametrize("text", [PROSE, "HTTP/1.1 200 OK, 3 < 4" * 30, *(article * 5 for article in ARTICLES)])
@given(tokens_per_byte=st.floats(0.06, 1.2))
def test_a_constant_rate_is_learned(text: str, tokens_per_byte: float) -> None:
    calibrated = calibration()
    tokens = round(len(text.encode()) * tokens_per_byte)
    before = calibrated.learn("m", [text], tokens)
    after = [calibrated.learn("m", [text], tokens) for _ in range(150)][-1]
    assert after <= max(0.02, 2 / tokens)
    assert after <= before or before < 0.02


def test_learning_tells_how_wrong_the_estimate_was() -> None:
    calibrated = calibration()
    for tokens in (100, 10, 1000, 0):
        estimate = calibrated.estimate("m", [PROSE])
        assert calibrated.learn("m", [PROSE], tokens) == abs(estimate - tokens) / max(1, tokens)
    assert calibrated.learn("m", [], 5) == 1
    assert calibrated.learn("m", [""], 0) == 0


def test_each_kind_of_text_learns_for_itself() -> None:
    calibrated = calibration()
    chinese, _, _, russian, _ = (article * 5 for article in ARTICLES)
    prose_tokens, russian_tokens = calibrated.estimate("m", [PROSE]), calibrated.estimate("m", [russian])
    for _ in range(50):
        calibrated.learn("m", [chinese], 2 * len(chinese))
    assert calibrated.estimate("m", [chinese]) == pytest.approx(2 * len(chinese), rel=0.02)
    assert calibrated.estimate("m", [PROSE]) == pytest.approx(prose_tokens, rel=0.05)
    assert calibrated.estimate("m", [russian]) == pytest.approx(russian_tokens, rel=0.05)


def taught(calibrated: Calibration, model: str, tokens: int) -> None:
    for _ in range(40):
        calibrated.learn(model, [PROSE], tokens)


def test_models_learn_apart_and_a_new_one_starts_from_what_all_taught() -> None:
    calibrated = calibration()
    untaught = calibrated.estimate("new", [PROSE])
    for _ in range(60):
        calibrated.learn("dense", [PROSE], 200)
        calibrated.learn("sparse", [PROSE], 150)
    assert calibrated.estimate("dense", [PROSE]) == pytest.approx(200, abs=3)
    assert calibrated.estimate("sparse", [PROSE]) == pytest.approx(150, abs=3)
    assert untaught < 100
    assert 150 < calibrated.estimate("new", [PROSE]) < 200


def test_the_model_that_was_not_taught_for_longest_is_forgotten() -> None:
    calibrated = calibration(models_max=2)
    taught(calibrated, "a", 200)
    taught(calibrated, "b", 100)
    calibrated.learn("a", [PROSE], 200)
    taught(calibrated, "c", 50)
    assert calibrated.estimate("a", [PROSE]) == pytest.approx(200, abs=3)
    assert calibrated.estimate("b", [PROSE]) == calibrated.estimate("never seen", [PROSE])
    assert calibrated.estimate("c", [PROSE]) == pytest.approx(50, abs=3)


def test_asking_for_models_leaves_no_trace() -> None:
    calibrated = calibration(models_max=1)
    taught(calibrated, "a", 200)
    calibrated.learn("b", [PROSE], 100)
    calibrated.learn("a", [PROSE], 200)
    before = calibrated.estimate("a", [PROSE])
    for one in range(100):
        calibrated.estimate(f"client's {one}", [PROSE])
    assert calibrated.estimate("a", [PROSE]) == before


def test_short_prompts_teach_little() -> None:
    calibrated = calibration()
    before = calibrated.estimate("m", [PROSE])
    for _ in range(20):
        calibrated.learn("m", ["hi"], 1)
    assert calibrated.estimate("m", [PROSE]) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize(("noise", "tokens"), [(BLANKS, 1), ("a" * 2000, 10_000_000), ("a b" * 700, 10**400)])
def test_noise_moves_estimates_by_bounds_and_they_heal(noise: str, tokens: int) -> None:
    calibrated = calibration()
    for _ in range(1000):
        calibrated.learn("m", [noise], tokens)
    worst = calibrated.estimate("m", [PROSE])
    assert 0.05 * len(PROSE) <= worst <= 2 * len(PROSE)
    for _ in range(40):
        calibrated.learn("m", [PROSE], 80)
    assert calibrated.estimate("m", [PROSE]) == pytest.approx(80, rel=0.05)


@pytest.mark.parametrize(("noise", "tokens"), [(BLANKS, 1), ("a" * 2000, 10_000_000)])
def test_a_third_of_noise_does_little_harm(noise: str, tokens: int) -> None:
    calibrated = calibration()
    for _ in range(200):
        calibrated.learn("m", [noise], tokens)
        calibrated.learn("m", [PROSE], 80)
        calibrated.learn("m", [PROSE], 80)
    assert calibrated.estimate("m", [PROSE]) == pytest.approx(80, rel=0.25)


@pytest.mark.parametrize("text", [PROSE, *ARTICLES])
def test_a_long_text_is_estimated_as_so_many_short_ones(text: str) -> None:
    calibrated = calibration()
    once = calibrated.estimate("m", [text * 10]) / 10
    assert calibrated.estimate("m", [text * 5000]) == pytest.approx(5000 * once, rel=0.05)
    assert calibrated.estimate("m", [text] * 5000) == pytest.approx(5000 * once, rel=0.05)


def test_of_a_long_prompt_every_part_is_looked_at() -> None:
    calibrated = calibration()
    parts = [PROSE * 100, ARTICLES[0] * 500, ARTICLES[3] * 200, base64.b64encode(bytes(range(256)) * 50).decode()]
    whole = sum(calibrated.estimate("m", [part]) for part in parts)
    assert calibrated.estimate("m", parts) == pytest.approx(whole, rel=0.15)
    assert calibrated.estimate("m", ["".join(parts)]) == pytest.approx(whole, rel=0.15)


@pytest.mark.parametrize(
    ("texts", "characters"),
    [
        (["\ud800"] * 5, 5),
        (["\ud800" * 100_000], 100_000),
        ([""] * 200_000, 0),
        ([*[""] * 200_000, "a"], 1),
        (["", "a"] * 100_000, 100_000),
        ([*["a"] * 5000, "b" * 1_000_000], 1_005_000),
    ],
)
def test_anything_can_be_estimated_and_learned(texts: list[str], characters: int) -> None:
    calibrated = calibration()
    assert 0.2 * characters <= calibrated.estimate("m", texts) <= characters + 1
    calibrated.learn("m", texts, characters)


def test_errors_fall_over_mixed_traffic(tmp_path: Path) -> None:
    tokenizer = train(tmp_path / "tokenizer.json")
    errors = errors_over(traffic(60), tokenizer, calibration())
    assert statistics.median(errors[:5]) > 0.4
    assert statistics.median(errors[-30:]) < 0.15


@pytest.mark.parametrize("family", ["qwen3", "llama3_1", "gptoss", "deepseek"])
def test_models_in_use_are_estimated_better_than_by_a_constant(family: str) -> None:
    tokenizer = Tokenizer.from_file(str(family_folder(family) / "tokenizer.json"))
    stream = traffic(100)
    errors = errors_over(stream, tokenizer, calibration())
    by_constant = [error_of_constant(texts, tokenizer) for texts in stream]
    assert statistics.median(errors) < 0.95 * statistics.median(by_constant)
    assert statistics.quantiles(errors, n=10)[-1] < 0.95 * statistics.quantiles(by_constant, n=10)[-1]
