"""How long a model's answers are taken to be."""

import pytest

from extproc.core.answerlengths import ANSWER_TOKENS_MAX, ANSWERS_MAX, MODELS_MAX, AnswerLengths


@pytest.fixture
def lengths() -> AnswerLengths:
    return AnswerLengths(100)


def test_answers_are_expected_to_be_as_long_as_those_of_their_model(lengths: AnswerLengths) -> None:
    assert lengths.expected("m") == 100
    for _ in range(8):
        lengths.add("m", 300)
    assert lengths.expected("m") == 200, "the assumed length weighs as much as eight answers"
    for _ in range(2 * ANSWERS_MAX):
        lengths.add("m", 300)
    for _ in range(2 * ANSWERS_MAX):
        lengths.add("m", 30)
    assert 30 < lengths.expected("m") < 100, "what was long ago counts less and less"
    assert lengths.expected("other") == 100


def test_the_models_whose_answers_are_remembered_are_bounded(lengths: AnswerLengths) -> None:
    lengths.add("kept", 900)
    for number in range(2 * MODELS_MAX):
        lengths.add(f"m{number}", 900)
        if number % 100 == 0:
            lengths.add("kept", 900)
    assert lengths.expected("m0") == 100
    assert lengths.expected("kept") > 100
    assert len(lengths._sums) == MODELS_MAX


@pytest.mark.parametrize("tokens", [ANSWER_TOKENS_MAX, ANSWER_TOKENS_MAX + 1, 10**18])
def test_no_answer_counts_for_more_than_a_bound(lengths: AnswerLengths, tokens: int) -> None:
    lengths.add("m", tokens)
    assert lengths.expected("m") == (8 * 100 + ANSWER_TOKENS_MAX) / 9
