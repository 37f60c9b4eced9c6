"""The text that the comparison of strategies writes, and where it goes."""

import pytest

from bench.strategies import document
from bench.strategies.cases import SETTINGS, Scope, at_hand
from bench.strategies.document import BEGIN, END, placed

SMALL = Scope(tuple(SETTINGS[name] for name in ("conv", "heavy")), seeds=2, requests=50)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{BEGIN}\nnew\n{END}\n"),
        (f"a\n{BEGIN}\nold\n{END}\nb\n", f"a\n{BEGIN}\nnew\n{END}\nb\n"),
        (f"a{BEGIN}{END}", f"a{BEGIN}\nnew\n{END}"),
        ("no marks", None),
        (f"{BEGIN} alone", None),
        (f"{END} first {BEGIN}", None),
        (f"{BEGIN}{BEGIN}{END}", None),
        (f"{BEGIN}{END}{END}", None),
    ],
)
def test_the_text_goes_between_the_marks_and_nowhere_else(before: str, after: str | None) -> None:
    assert placed(before, "new") == after


def test_a_document_says_what_was_run_and_what_was_not() -> None:
    text = document.written(["failing"], Scope(at_hand(None), seeds=3), {})
    assert "3 seeds" in text
    assert "Without azure; mooncake; mooncake, unequal" in text
    assert "8000 (conv; code; mix; agents; chats); 6000 (heavy; heavy, unequal)" in text


def test_folded_tables_have_their_title_once_and_whole() -> None:
    text = document.written(["workloads"], SMALL, {})
    assert text.count("<details><summary>") == text.count("</details>") == 4
    assert "<details><summary>slowdown at 60 % load</summary>\n\n|  | conv | heavy | mean |\n" in text
    assert text.count("slowdown at 60 % load") == 1
    assert "**ngood at 75 % load**\n\n|  | conv | heavy | mean |\n" in text
