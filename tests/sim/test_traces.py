import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.settings import GOT_CHARS_MAX, Fault
from extproc.sim import traces
from extproc.sim.traces import LINE_BYTES_MAX, TIMESTAMP_MS_MAX, TOKENS_MAX, Arrival, read
from tests.sim.chains import is_sound

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
NOON = "2023-11-16 12:00:00.0000000"


def written(folder: Path, content: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(**fields: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [1]} | fields


def arrivals(path: Path) -> list[Arrival]:
    outcome = read(path)
    assert isinstance(outcome, list), str(outcome)
    return outcome


def fault(path: Path) -> str:
    outcome = read(path)
    assert isinstance(outcome, Fault)
    return str(outcome).replace(str(path), "trace")


def test_an_azure_trace_is_read(tmp_path: Path) -> None:
    text = HEADER + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,130,109"
    assert arrivals(written(tmp_path, text)) == [
        Arrival(0.0, 374, 44, (1, 2, 3, 4, 5), kind="azure"),
        Arrival(4.314579, 130, 109, (6, 7), kind="azure"),
    ]


def test_a_mooncake_trace_is_read(tmp_path: Path) -> None:
    text = lines(row(timestamp=27482, hash_ids=[46]), row(timestamp=28482, input_length=700, hash_ids=[46, 47]))
    assert arrivals(written(tmp_path, text)) == [
        Arrival(0.0, 512, 5, tuple(range(1, 9)), kind="mooncake"),
        Arrival(1.0, 700, 5, tuple(range(1, 11)), kind="mooncake"),
    ]


@pytest.mark.parametrize("before", ["", "\n \n", "\ufeff"])
def test_a_format_is_told_by_its_content(tmp_path: Path, before: str) -> None:
    mooncake, azure = lines(row()), HEADER + f"{NOON},1,1\n"
    assert arrivals(written(tmp_path, before + mooncake, "x.csv"))[0].kind == "mooncake"
    assert arrivals(written(tmp_path, before.strip("\n ") + azure, "x.jsonl"))[0].kind == "azure"


def test_columns_may_stand_in_another_order_among_others(tmp_path: Path) -> None:
    text = f'user,GeneratedTokens,TIMESTAMP, ContextTokens\n"a,b",7,{NOON}, 9\n'
    [arrival] = arrivals(written(tmp_path, text))
    assert (arrival.prompt_tokens, arrival.output_tokens) == (9, 7)


@pytest.fixture
def _far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_far_east")
def test_timestamps_with_a_zone_and_without_are_in_one_order(tmp_path: Path) -> None:
    text = HEADER + "2024-05-10 02:00:00+02:00,1,1\n2024-05-10 00:00:01,2,1\n2024-05-09T23:59:59Z,3,1\n"
    taken = arrivals(written(tmp_path, text))
    assert [(arrival.at_s, arrival.prompt_tokens) for arrival in taken] == [(0.0, 3), (1.0, 1), (2.0, 2)]


def test_rows_out_of_order_are_sorted_and_the_first_is_at_zero(tmp_path: Path) -> None:
    text = lines(row(timestamp=9000, output_length=3), row(timestamp=5000, output_length=2))
    taken = arrivals(written(tmp_path, text))
    assert [(arrival.at_s, arrival.output_tokens) for arrival in taken] == [(0.0, 2), (4.0, 3)]


def test_zero_tokens_count_as_one(tmp_path: Path) -> None:
    for text in (HEADER + f"{NOON},0,0\n", lines(row(input_length=0, output_length=0, hash_ids=[]))):
        [arrival] = arrivals(written(tmp_path, text))
        assert (arrival.prompt_tokens, arrival.output_tokens) == (1, 1)


def test_requests_of_one_rounded_timestamp_are_spread_up_to_the_next_but_no_further_than_the_clock(
    tmp_path: Path,
) -> None:
    stamps = [0, 0, 1000, 1000, 1000, 1000, 61_000, 61_000]
    taken = arrivals(written(tmp_path, lines(*(row(timestamp=stamp) for stamp in stamps))))
    assert [arrival.at_s for arrival in taken] == [0.0, 0.5, 1.0, 1.75, 2.5, 3.25, 61.0, 62.5]


def test_full_blocks_alone_have_numbers(tmp_path: Path) -> None:
    lengths = (1, 63, 64, 127, 511, 512, 575, 576)
    rows = (row(input_length=length, hash_ids=[1, 2][: -(-length // 512)]) for length in lengths)
    taken = arrivals(written(tmp_path, lines(*rows)))
    assert [len(arrival.prompt_blocks) for arrival in taken] == [0, 0, 1, 1, 7, 8, 8, 9]
    assert is_sound(taken)


def test_a_prompt_without_hash_ids_shares_with_nobody(tmp_path: Path) -> None:
    bare = {key: value for key, value in row().items() if key != "hash_ids"}
    taken = arrivals(written(tmp_path, lines(bare, bare, row(), row(input_length=1024), row(input_length=1024))))
    assert [arrival.prompt_blocks[0] for arrival in taken] == [1, 9, 17, 17, 17]
    assert taken[3].prompt_blocks[8] != taken[4].prompt_blocks[8]
    assert is_sound(taken)


def test_one_hash_id_after_unequal_beginnings_is_not_one_block(tmp_path: Path) -> None:
    ids = ([1, 3], [2, 3], [1, 3], [3])
    rows = (row(input_length=512 * len(one), hash_ids=one) for one in ids)
    taken = arrivals(written(tmp_path, lines(*rows)))
    assert taken[0].prompt_blocks == taken[2].prompt_blocks
    assert len({arrival.prompt_blocks[-1] for arrival in taken}) == 3
    assert is_sound(taken)


chains = st.lists(st.lists(st.integers(-2, 3), max_size=4), min_size=1, max_size=20)


@given(chains, st.lists(st.integers(0, 600), min_size=20, max_size=20))
def test_whatever_the_hash_ids_are_chains_are_sound(
    tmp_path_factory: pytest.TempPathFactory, ids: list[list[int]], more: list[int]
) -> None:
    rows = (
        row(input_length=max(512 * len(one) - 511, 0) + extra, hash_ids=one)
        for one, extra in zip(ids, more, strict=False)
    )
    taken = arrivals(written(tmp_path_factory.mktemp("traces"), lines(*rows)))
    assert len(taken) == len(ids)
    assert is_sound(taken)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "trace:1: wanted a header with TIMESTAMP, ContextTokens, GeneratedTokens, or Mooncake's JSON lines"),
        (HEADER.encode(), "trace: wanted at least one request, got none"),
        (b"\x1f\x8b\x08\x00\xff\xfe", "trace:1: wanted CSV or JSON lines in UTF-8, got invalid start byte"),
        (b"\x00\x01\x02", r"trace:1: wanted a header with TIMESTAMP"),
        ((HEADER + f"{NOON},1,1\n").encode("utf-16"), "trace:1: wanted CSV or JSON lines in UTF-8"),
        (HEADER.encode() + b"\n\xff", "trace:3: wanted CSV or JSON lines in UTF-8, got invalid start byte"),
        ("TIMESTAMP,ContextTokens\n", "JSON lines, got TIMESTAMP,ContextTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n", "trace:1: wanted a header"),
        (HEADER + f"{NOON},1\n", "trace:2: wanted 3 values, got 2"),
        (HEADER + f"{NOON},1,1\n\n{NOON},1,1,1\n", "trace:4: wanted 3 values, got 4"),
        (HEADER + f"{NOON},-1,1\n", "trace:2: wanted ContextTokens as a whole number from 0 to 10000000, got -1"),
        (HEADER + f"{NOON},1,+1\n", "trace:2: wanted GeneratedTokens as a whole number from 0 to 10000000, got +1"),
        (HEADER + f"{NOON},1.5,1\n", "got 1.5"),
        (HEADER + f"{NOON},1e3,1\n", "got 1e3"),
        (HEADER + f"{NOON},1_000,1\n", "got 1_000"),
        (HEADER + f"{NOON},nan,1\n", "got nan"),
        (HEADER + f"{NOON},inf,1\n", "got inf"),
        (HEADER + f"{NOON},,1\n", "trace:2: wanted ContextTokens as a whole number from 0 to 10000000, got "),
        (HEADER + f"{NOON},٣,1\n", "got ٣"),
        (HEADER + f"{NOON},{'9' * 5000},1\n", f"got {'9' * GOT_CHARS_MAX}"),
        (HEADER + "yesterday,1,1\n", "trace:2: wanted TIMESTAMP as 2023-11-16 18:15:46.6805900, or in seconds, got y"),
        (HEADER + "2023-13-16 12:00:00,1,1\n", "trace:2: wanted TIMESTAMP"),
        (HEADER + "17e8,1,1\n", "trace:2: wanted TIMESTAMP"),
        (HEADER + f'{NOON},1,"1\n', "trace:2: wanted CSV, got unexpected end of data"),
        (HEADER + f'{NOON},1,"{"1" * 200_000}"\n', "trace:2: wanted CSV, got field larger than field limit"),
        (HEADER + f"{NOON},\x1b[2J,1\n", r"got '\x1b[2J'"),
        ("{}", "trace:1: wanted timestamp as milliseconds from 0 to 1000000000000000, got None"),
        ("{", "trace:1: wanted a JSON object, got Input data was truncated"),
        (lines(row()) + "[]", "trace:2: wanted a JSON object, got []"),
        (lines(row()) + "\n7", "trace:3: wanted a JSON object, got 7"),
        (lines(row()) + "[" * 100_000, "trace:2: wanted a JSON object, got maximum recursion depth"),
        (lines(row()).encode() + b'{"a": "\xff"}', "trace:2: wanted a JSON object, got Invalid UTF-8"),
        ('{"timestamp": NaN}', "trace:1: wanted a JSON object"),
        ('{"timestamp": 1e999}', "trace:1: wanted a JSON object"),
        (lines(row(timestamp="0")), "wanted timestamp as milliseconds"),
        (lines(row(timestamp=True)), "got True"),
        (lines(row(timestamp=-1)), "got -1"),
        (lines(row(timestamp=-0.5)), "got -0.5"),
        (lines(row(input_length=-1)), "trace:1: wanted input_length as a whole number from 0 to 10000000, got -1"),
        (lines(row(input_length=1.0)), "got 1.0"),
        (lines(row(input_length=None)), "got None"),
        (lines(row(output_length=True)), "trace:1: wanted output_length as a whole number from 0 to 10000000, got Tr"),
        ('{"timestamp": 0, "input_length": ' + "9" * 4200 + "}", "trace:1: wanted input_length as a whole number"),
        (lines(row(output_length=[1])), "got [1]"),
        (lines(row(hash_ids=None)), "trace:1: wanted hash_ids as a list of whole numbers, got None"),
        (lines(row(hash_ids="1")), "got 1"),
        (lines(row(hash_ids=[True])), "got [True]"),
        (lines(row(hash_ids=[0.0])), "got [0.0]"),
        (lines(row(hash_ids=[1, 2])), "trace:1: wanted at most 1 hash_ids, of 512 tokens each, for 512 tokens, got 2"),
    ],
)
def test_a_fault_names_its_line_what_was_wanted_and_what_it_got(
    tmp_path: Path, content: str | bytes, told: str
) -> None:
    line = fault(written(tmp_path, content))
    assert told in line
    assert line.isprintable()
    assert len(line) < 250


def test_what_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    assert fault(tmp_path / "gone") == "trace: wanted a readable file, got No such file or directory"
    assert "Is a directory" in fault(tmp_path)
    assert "null byte" in fault(Path("a\0b"))


def test_tokens_and_timestamps_hold_at_their_edges(tmp_path: Path) -> None:
    for key, most in (("output_length", TOKENS_MAX), ("timestamp", TIMESTAMP_MS_MAX)):
        arrivals(written(tmp_path, lines(row(**{key: most}))))
        assert key in fault(written(tmp_path, lines(row(**{key: most + 1}))))
    arrivals(written(tmp_path, HEADER + f"{NOON},1,{TOKENS_MAX}\n"))
    assert "GeneratedTokens" in fault(written(tmp_path, HEADER + f"{NOON},1,{TOKENS_MAX + 1}\n"))


def test_a_file_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, HEADER + f"{NOON},1,1\n")
    monkeypatch.setattr(traces, "FILE_BYTES_MAX", path.stat().st_size)
    arrivals(path)
    path.write_bytes(path.read_bytes() + b"\n")
    assert fault(path) == f"trace: wanted at most {path.stat().st_size - 1} bytes, got more"


@pytest.mark.parametrize("mooncake", [True, False])
def test_lines_rows_and_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mooncake: bool) -> None:
    one, header = (lines(row(hash_ids=[])), "") if mooncake else (f"{NOON},512,1\n", HEADER)
    path = written(tmp_path, header + one * 4)
    last = 4 if mooncake else 5
    with monkeypatch.context() as patch:
        patch.setattr(traces, "ROWS_MAX", 4)
        assert len(arrivals(path)) == 4
        patch.setattr(traces, "ROWS_MAX", 3)
        assert fault(path) == f"trace:{last}: wanted at most 3 requests, got more"
    with monkeypatch.context() as patch:
        patch.setattr(traces, "BLOCKS_MAX", 32)
        assert len(arrivals(path)) == 4
        patch.setattr(traces, "BLOCKS_MAX", 31)
        assert fault(path) == f"trace:{last}: wanted prompts of at most 1984 tokens together, got more"
    with monkeypatch.context() as patch:
        patch.setattr(traces, "LINE_BYTES_MAX", 200)
        assert len(arrivals(written(tmp_path, header + one.rstrip("\n").ljust(199) + "\n"))) == 1
        too_long = written(tmp_path, header + one.rstrip("\n").ljust(200) + "\n")
        assert fault(too_long) == f"trace:{last - 3}: wanted at most 200 bytes in a line, got more"


def test_a_line_has_room_for_the_longest_prompts_hash_ids(tmp_path: Path) -> None:
    ids = list(range(10**9, 10**9 + -(-TOKENS_MAX // 512)))
    text = lines(row(input_length=TOKENS_MAX, hash_ids=ids))
    assert len(text) < LINE_BYTES_MAX
    assert is_sound(arrivals(written(tmp_path, text)))


pieces = st.sampled_from(
    [
        HEADER,
        NOON,
        ",",
        "\n",
        "1",
        "-",
        '"',
        "{",
        "}",
        '"timestamp":',
        '"hash_ids":',
        "[",
        "]",
        " ",
        "é",
        "\0",
        "9" * 30,
    ]
)


@given(st.lists(pieces, max_size=30).map(lambda some: "".join(some).encode()) | st.binary(max_size=60))
def test_no_content_makes_reading_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    for before in (b"", HEADER.encode(), b'{"timestamp": '):
        outcome = read(written(tmp_path_factory.mktemp("traces"), before + content))
        assert isinstance(outcome, Fault) or outcome
