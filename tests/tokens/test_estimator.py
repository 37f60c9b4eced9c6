from extproc.prompt import Media, Prompt
from extproc.tokens.estimator import LEARNED_ALL, LEARNED_EVERY, Estimator
from extproc.tokensettings import TokenSettings
from tests.tokens.chatml import said

SETTINGS = TokenSettings(message_tokens=7, image_tokens=100, audio_tokens=10, file_tokens=1)
TEXT = "seventeen words would do"


def test_what_stands_in_no_text_costs_what_the_configuration_says() -> None:
    estimator = Estimator(SETTINGS)
    text = estimator.estimate("m", Prompt((TEXT,)))
    assert estimator.estimate("m", Prompt(chat=said(TEXT))) == text + 7
    assert estimator.estimate("m", Prompt((TEXT,), token_ids=5, media=Media(1, 2, 3))) == text + 5 + 100 + 20 + 3


def test_what_a_template_puts_around_messages_is_not_learned_as_text() -> None:
    by_text, by_chat = Estimator(SETTINGS), Estimator(SETTINGS)
    for _ in range(20):
        assert by_text.learn("m", Prompt((TEXT,)), 50) == by_chat.learn("m", Prompt(chat=said(TEXT)), 57)
    assert by_text.estimate("m", Prompt((TEXT,))) == by_chat.estimate("m", Prompt((TEXT,)))


def test_a_models_later_counts_teach_by_every_eighth() -> None:
    estimator = Estimator(SETTINGS)
    looked_at = [estimator.learn("m", Prompt((TEXT,)), 5) is not None for _ in range(LEARNED_ALL + 2 * LEARNED_EVERY)]
    assert looked_at == [True] * LEARNED_ALL + ([False] * (LEARNED_EVERY - 1) + [True]) * 2
    assert estimator.learn("new", Prompt((TEXT,)), 5) is not None
