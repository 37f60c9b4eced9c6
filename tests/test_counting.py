import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer

from extproc import cli, counting
from extproc.counting import Counting
from tests.tokens.chatml import END, START, write

FOX = "the quick brown fox"
MESSAGES = [{"role": "user", "content": FOX}]
RENDERED = f"<s>{START}user\n{FOX}{END}\n{START}assistant\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("counting") / "model")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def run(folder: Path, *arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["count", "--tokenizer", str(folder), *arguments], input=stdin)


def test_a_text_is_counted_as_a_completions_prompt(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(FOX)
    (tmp_path / "b.txt").write_text("")
    result = run(folder, "--json", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["tokenizer"]["tokenizer"] == str(folder)
    assert found["tokenizer"]["engine"].startswith("fastokens: agrees with tokenizers")
    assert found["tokenizer"]["boundary"] == START
    first, second = found["files"]
    assert first.pop("seconds") > 0
    assert first == {
        "file": str(tmp_path / "a.txt"),
        "bytes": len(FOX),
        "tokens": len(tokenizer.encode(FOX).ids),
        "exact": True,
        "how": "fastokens",
        "fault": None,
    }
    assert second["tokens"] == 1, "the tokenizer begins every text with a token of its own"


@pytest.mark.parametrize("body", [MESSAGES, {"messages": MESSAGES}, {"model": "other", "messages": MESSAGES, "n": 3}])
def test_a_chat_goes_through_the_template(folder: Path, tokenizer: Tokenizer, body: object) -> None:
    result = run(folder, "--chat", "--json", stdin=json.dumps(body))
    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)["files"]
    assert (found["file"], found["exact"]) == ("standard input", True)
    assert found["tokens"] == len(tokenizer.encode(RENDERED, add_special_tokens=False).ids)


def test_another_template_can_be_tried(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}")
    result = run(folder, "--chat", "--json", "--chat-template", str(tmp_path / "t.jinja"), stdin=json.dumps(MESSAGES))
    (found,) = json.loads(result.stdout)["files"]
    assert found["tokens"] == len(tokenizer.encode(FOX, add_special_tokens=False).ids)


def test_people_see_a_table(folder: Path) -> None:
    result = run(folder, "--chat", stdin=json.dumps(MESSAGES))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["tokenizer", str(folder)]
    assert lines[4].split() == ["tokens", "exact", "how", "bytes", "ms", "file"]
    assert lines[5].split()[1:4] == ["yes", "template,", "fastokens"]


@pytest.mark.parametrize(
    ("content", "options", "fault"),
    [
        (b"\xff", (), "standard input: wanted text in UTF-8, got invalid start byte at byte 0"),
        (b"hello", ("--chat",), "standard input: The request body is not valid JSON"),
        (b"7", ("--chat",), "standard input: body: wanted object, got int"),
        (b"{}", ("--chat",), "standard input: messages: wanted an array, got nothing"),
        (b'[{"role": 1}]', ("--chat",), "standard input: messages[0].role: wanted str or null, got int"),
    ],
)
def test_what_cannot_be_counted_is_told_and_ends_with_status_1(
    folder: Path, content: bytes, options: tuple[str, ...], fault: str
) -> None:
    result = run(folder, *options, stdin=content)
    assert result.exit_code == 1
    assert result.stderr.startswith(fault)


def test_a_file_that_cannot_be_counted_leaves_the_others(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\xff")
    (tmp_path / "good").write_text(FOX)
    result = run(folder, str(tmp_path / "bad"), str(tmp_path / "good"))
    assert result.exit_code == 1
    assert str(tmp_path / "bad") in result.stderr
    assert result.stdout.splitlines()[-1].endswith("good")


def test_a_chat_that_serve_would_estimate_says_why(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ raise_exception('no') }}")
    result = run(folder, "--chat", "--chat-template", str(tmp_path / "t.jinja"), stdin=json.dumps(MESSAGES))
    assert result.exit_code == 1
    assert "standard input: serve would estimate it: its template fails on it" in result.stderr
    assert "remark     its chat template fails on a plain chat" in result.stdout


def test_what_serve_takes_is_taken(folder: Path) -> None:
    """Lone surrogates and NaN are no JSON, but Python's reader takes them, and so do engines."""
    for body in (
        b'[{"role": "user", "content": "x\\ud800"}]',
        b'{"messages": [{"role": "user", "content": "a"}], "x": NaN}',
    ):
        assert run(folder, "--chat", stdin=body).exit_code == 0
    deep = b'{"messages": [], "tools": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert run(folder, "--chat", stdin=deep).exit_code == 1


def test_a_file_beyond_the_bound_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "FILE_BYTES_MAX", 10)
    assert run(folder, stdin="a" * 10).exit_code == 0
    assert "wanted at most" in run(folder, stdin="a" * 11).stderr


def test_a_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    result = run(tmp_path, stdin="x")
    assert result.exit_code == 1
    assert result.stderr.startswith("tokenizer: wanted a tokenizer.json, got ")
    assert result.stderr.count("\n") == 1
    with pytest.raises(ValueError, match="wanted a folder or a tokenizer"):
        Counting(tmp_path / "no-such", None)
