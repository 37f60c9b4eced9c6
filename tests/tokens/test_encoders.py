import functools
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fastokens
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from extproc.tokens.encoders import REASON_CHARS_MAX, Encoder, Fast, Reference, choose
from extproc.tokens.probe import long_texts, short_texts
from tests.tokens.bpe import train

FOX = "the quick brown fox jumps over the lazy dog"
TEXTS = [FOX, "", "a\0b", "naïve 漢字 🙂", " \n\t ", FOX * 50, "<s>in<s> text"]
ENGINES = ["fastokens", "tokenizers"]


@functools.cache
def trained() -> str:
    """The tiny tokenizer as JSON."""
    return train(Path("/dev/null")).to_str()


def tiny() -> Tokenizer:
    return Tokenizer.from_str(trained())


@functools.cache
def encoder(engine: str) -> Encoder:
    return choose(tiny()) if engine == "fastokens" else Reference(tiny(), "told to")


def lengths(texts: list[str], *, special: bool) -> list[int]:
    return [len(tiny().encode(text, add_special_tokens=special).ids) for text in texts]


def test_the_fast_library_is_taken_where_it_agrees() -> None:
    chosen = choose(tiny())
    assert chosen.engine == "fastokens"
    assert chosen.reason == f"agrees with tokenizers on {len(short_texts(['<s>'])) + len(long_texts())} texts"


def test_the_reference_is_taken_where_the_fast_library_cannot_load_the_vocabulary() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    chosen = choose(tokenizer)
    assert chosen.engine == "tokenizers"
    assert chosen.reason.startswith("fastokens cannot load it: ")
    assert chosen.counts(["a b c"], add_special_tokens=False) == [3]


def test_the_reference_is_taken_where_the_fast_library_gives_other_tokens() -> None:
    # tokenizers looks for tokens that are not normalised first, fastokens for all at once.
    tokenizer = tiny()
    tokenizer.add_tokens([AddedToken("<m>", normalized=False), AddedToken("<m><n>", normalized=True)])
    chosen = choose(tokenizer)
    assert chosen.engine == "tokenizers"
    assert chosen.reason.startswith("fastokens differs from tokenizers on '<m><n>a")


class Wrong:
    """The fast library, but for some calls."""

    def __init__(self, wrong: Callable[[list[str], bool], bool]) -> None:
        self.library = fastokens.Tokenizer.from_json_str(trained())
        self.wrong = wrong

    def encode_batch_flat(self, texts: list[str], add_special_tokens: bool) -> tuple[bytes, bytes]:
        given = ["" if self.wrong(texts, add_special_tokens) else text for text in texts]
        flat: tuple[bytes, bytes] = self.library.encode_batch_flat(given, add_special_tokens=add_special_tokens)
        return flat


@pytest.mark.parametrize(
    "wrong",
    [
        lambda texts, special: len(texts) > 1 and not special,
        lambda texts, special: len(texts) == 1 and not special,
        lambda texts, special: len(texts) > 1 and special,
        lambda texts, special: len(texts) == 1 and special,
    ],
)
def test_the_fast_library_has_to_agree_in_whatever_way_it_is_called(
    wrong: Callable[[list[str], bool], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Wrong(wrong)

    class Library:
        @staticmethod
        def from_json_str(_: str) -> Wrong:
            return made

    monkeypatch.setattr(fastokens, "Tokenizer", Library)
    assert choose(tiny()).reason == "fastokens differs from tokenizers on 'a'"


def test_the_reference_is_taken_where_a_text_cannot_be_encoded() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, [], unk_token="gone"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    chosen = choose(tokenizer)
    assert chosen.engine == "tokenizers"
    assert chosen.reason.startswith("fastokens")
    assert chosen.counts(["a"], add_special_tokens=False) == [1]
    assert chosen.counts(["b"], add_special_tokens=False) is None


def test_a_reason_is_one_short_line() -> None:
    tokenizer = tiny()
    tokenizer.add_tokens([AddedToken("<\n" * 400, normalized=False), AddedToken("<\n" * 800, normalized=True)])
    reason = choose(tokenizer).reason
    assert len(reason) <= REASON_CHARS_MAX
    assert "\n" not in reason


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("special", [False, True])
def test_counts_are_those_of_the_reference_text_by_text(engine: str, special: bool) -> None:
    assert encoder(engine).engine == engine
    assert encoder(engine).counts(TEXTS, add_special_tokens=special) == lengths(TEXTS, special=special)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_texts_have_no_counts(engine: str) -> None:
    assert encoder(engine).counts([], add_special_tokens=True) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_thousands_of_texts_keep_their_order(engine: str) -> None:
    texts = ["a" * (number % 7) for number in range(2500)]
    assert encoder(engine).counts(texts, add_special_tokens=True) == lengths(texts[:7], special=True) * 357 + [1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogates_cannot_be_counted(engine: str, text: str) -> None:
    assert encoder(engine).counts([FOX, text], add_special_tokens=True) is None
    assert encoder(engine).counts([FOX], add_special_tokens=True) is not None


def test_cutting_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    train(path, truncated=True)
    texts = ["a", FOX * 20]
    for file in (choose(Tokenizer.from_file(str(path))), Reference(tiny(), "")):
        assert file.counts(texts, add_special_tokens=True) == lengths(texts, special=True)
    broken = Tokenizer.from_file(str(path))
    broken.add_tokens([AddedToken("<m>", normalized=False), AddedToken("<m><n>", normalized=True)])
    reference = choose(broken)
    assert reference.engine == "tokenizers"
    assert reference.counts(texts, add_special_tokens=True) == lengths(texts, special=True)


class PanicException(BaseException):
    """What a panic in a library's Rust code becomes: not an `Exception`."""


class Raising:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode_batch_fast(self, _: list[str], **__: bool) -> None:
        raise self.error

    encode_batch_flat = encode_batch_fast


def raising(error: BaseException) -> list[Encoder]:
    library: Any = Raising(error)
    return [Fast(library), Reference(library, "told to")]


@pytest.mark.parametrize("error", [PanicException(), ValueError(), MemoryError()])
def test_a_failure_of_a_library_is_no_count(error: BaseException) -> None:
    assert [one.counts(["a"], add_special_tokens=True) for one in raising(error)] == [None, None]


def test_the_end_of_the_process_is_no_failure_of_a_library() -> None:
    for one in raising(KeyboardInterrupt()):
        with pytest.raises(KeyboardInterrupt):
            one.counts(["a"], add_special_tokens=True)


@given(texts=st.lists(st.text(st.characters(codec=None), max_size=40), max_size=5), special=st.booleans())
def test_both_libraries_count_any_text_alike(texts: list[str], special: bool) -> None:
    fast, reference = (encoder(engine).counts(texts, add_special_tokens=special) for engine in ENGINES)
    assert fast == reference
    assert (fast is None) == any("\ud800" <= one <= "\udfff" for text in texts for one in text)


@pytest.mark.parametrize(("engine", "megabytes"), [("fastokens", 8), ("tokenizers", 1)])
def test_other_threads_run_while_one_counts(engine: str, megabytes: int) -> None:
    text = random.Random(7).randbytes(megabytes * 500_000).hex()
    counting, worked = threading.Event(), threading.Event()
    others_ran = []

    def count() -> None:
        counting.set()
        encoder(engine).counts([text], add_special_tokens=False)
        others_ran.append(worked.is_set())

    thread = threading.Thread(target=count)
    thread.start()
    assert counting.wait(20)
    # More than a thread does before it has to let another one run, and far less than the counting takes.
    sum(range(200_000))
    worked.set()
    thread.join()
    assert others_ran == [True]


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_count_side_by_side(engine: str) -> None:
    texts = [FOX[number % 40 :] * (number % 9) for number in range(400)]
    with ThreadPoolExecutor(4) as threads:
        counts = threads.map(lambda text: encoder(engine).counts([text], add_special_tokens=True), texts)
        assert list(counts) == [[one] for one in lengths(texts, special=True)]


@pytest.mark.parametrize("given", [None, "true"])
def test_the_libraries_start_no_threads_of_their_own_unless_told_so(given: str | None) -> None:
    names = ("TOKENIZERS_PARALLELISM", "FASTOKENS_BPE_THREADS")
    code = f"import os, extproc.tokens.encoders; print(*(os.environ[name] for name in {names}))"
    environment = {} if given is None else dict.fromkeys(names, given)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["false", "1"] if given is None else [given, given])


def test_the_probe_has_about_a_hundred_texts_that_any_library_can_take() -> None:
    texts = [*short_texts(["<s>"]), *long_texts()]
    assert 80 <= len(texts) <= 120
    assert len(set(texts)) == len(texts)
    "".join(texts).encode()
    assert max(map(len, short_texts(["<s>"]))) <= 2048
    assert max(map(len, long_texts())) > 64 * 1024
