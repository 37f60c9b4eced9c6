"""What arrives at a simulated fleet, and how recorded traces become that.

Two formats are known, told apart by their first character: the CSV of the Azure LLM inference traces (`TIMESTAMP`,
`ContextTokens`, `GeneratedTokens`; github.com/Azure/AzurePublicDataset), in which the first may as well be in seconds,
and the JSON lines of the Mooncake traces (`timestamp` in ms, `input_length`, `output_length`, `hash_ids`;
github.com/kvcache-ai/Mooncake). Whoever measures may have cut or made the file: everything in it is checked and
bounded.
"""

import csv
import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from extproc.core.settings import GOT_CHARS_MAX, Fault
from extproc.regularfile import open_regular
from extproc.sizes import MIB

BLOCK_TOKENS: Final = 64
"""Tokens that one number of `Arrival.prompt_blocks` stands for; the router's blocks of text are about as long."""
HASH_TOKENS: Final = 512
"""Tokens that one of Mooncake's hash ids stands for."""
FILE_BYTES_MAX: Final = 64 * MIB
"""Twenty times the published hour of Mooncake's conversations."""
LINE_BYTES_MAX: Final = MIB
"""More than the hash ids of the longest prompt take."""
ROWS_MAX: Final = 200_000
BLOCKS_MAX: Final = 10_000_000
"""Blocks of all prompts of a file together; each takes up to 40 bytes of memory."""
TOKENS_MAX: Final = 10_000_000
"""Of one prompt, and of one answer: no model's context is longer."""
TIMESTAMP_MS_MAX: Final = 10**15
MOONCAKE_CLOCK_S: Final = 3.0
"""Mooncake's published timestamps are rounded to about so much."""

_AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")
_PER_HASH: Final = HASH_TOKENS // BLOCK_TOKENS
_TOKENS_WANTED: Final = f"as a whole number from 0 to {TOKENS_MAX}"


class Arrival(Struct, frozen=True):
    """One request of a simulation: when it comes and what it costs."""

    at_s: float
    """Since the first arrival, or since the simulation's start."""
    prompt_tokens: int
    """At least 1."""
    output_tokens: int
    """At least 1: how long the answer will be. The router is not told."""
    prompt_blocks: tuple[int, ...] = ()
    """A number for each *full* block of `BLOCK_TOKENS` of the prompt, standing for all of the prompt up to the block's
    end: equal numbers, equal beginnings. What no other prompt shares has numbers of its own, since it takes room in
    the router's index as it does in an engine's cache."""
    answer_blocks: tuple[int, ...] = ()
    """The blocks that the answer fills, following `prompt_blocks`; only where a later prompt may begin with the answer.
    The engine caches them; the router does not know them before that prompt comes."""
    session: str = ""
    """The conversation or task that it is a turn of; empty if none."""
    kind: str = ""
    """What it is, as `chat` or `document`; for tables."""


class _Row(Struct):
    """One line of a trace, checked."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: list[int]


class _UnsoundError(Exception):
    """A line that cannot be taken; becomes the reading's one fault."""

    def __init__(self, line: int, wanted: str, got: object) -> None:
        super().__init__()
        self.line = line
        self.wanted = wanted
        self.got = got


def read(path: Path) -> list[Arrival] | Fault:
    """The arrivals of a trace in order of time, the first at 0 s; or the first fault, with its line.

    A row of 0 tokens counts as 1: an engine computes no less. Rows may be out of order.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        return Fault(str(path), "a readable file", error.strerror or str(error))
    if len(raw) > FILE_BYTES_MAX:
        return Fault(str(path), f"at most {FILE_BYTES_MAX} bytes", "more")
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    mooncake = raw.lstrip()[:1] == b"{"
    try:
        rows = _bounded(_mooncake_rows(raw) if mooncake else _azure_rows(raw))
    except _UnsoundError as unsound:
        return Fault(f"{path}:{unsound.line}", unsound.wanted, _shown(unsound.got))
    if not rows:
        return Fault(str(path), "at least one request", "none")
    rows.sort(key=lambda row: row.at_s)
    if mooncake:
        _spread(rows)
    return _arrivals(rows, "mooncake" if mooncake else "azure")


def _shown(got: object) -> str:
    text = got if isinstance(got, str) else repr(got)
    return (text if text.isprintable() else repr(text))[:GOT_CHARS_MAX]


def _bounded(rows: Iterator[tuple[int, _Row]]) -> list[_Row]:
    taken: list[_Row] = []
    blocks = 0
    for line, row in rows:
        if len(taken) == ROWS_MAX:
            raise _UnsoundError(line, f"at most {ROWS_MAX} requests", "more")
        blocks += row.prompt_tokens // BLOCK_TOKENS
        if blocks > BLOCKS_MAX:
            raise _UnsoundError(line, f"prompts of at most {BLOCKS_MAX * BLOCK_TOKENS} tokens together", "more")
        taken.append(row)
    return taken


def _lines(raw: bytes) -> Iterator[tuple[int, bytes]]:
    for line, content in enumerate(io.BytesIO(raw), 1):
        if len(content) > LINE_BYTES_MAX:
            raise _UnsoundError(line, f"at most {LINE_BYTES_MAX} bytes in a line", "more")
        yield line, content


def _texts(raw: bytes) -> Iterator[str]:
    for line, content in _lines(raw):
        try:
            yield content.decode()
        except UnicodeDecodeError as error:
            raise _UnsoundError(line, "CSV or JSON lines in UTF-8", error.reason) from None


def _azure_rows(raw: bytes) -> Iterator[tuple[int, _Row]]:
    lines = csv.reader(_texts(raw), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        absent = [name for name in _AZURE_COLUMNS if header.count(name) != 1]
        if absent:
            wanted = f"a header with {', '.join(_AZURE_COLUMNS)}, or Mooncake's JSON lines"
            raise _UnsoundError(1, wanted, ",".join(header) or "nothing")
        at, prompt, output = (header.index(name) for name in _AZURE_COLUMNS)
        first: timedelta | None = None
        plain = False
        for values in lines:
            line = lines.line_num
            if not values:
                continue
            if len(values) != len(header):
                raise _UnsoundError(line, f"{len(header)} values", len(values))
            if first is None:
                plain = _SECONDS.fullmatch(values[at].strip()) is not None
            when = _moment(line, values[at].strip(), plain=plain)
            if first is None:
                first = when
            prompt_tokens = _digits(line, header[prompt], values[prompt])
            output_tokens = _digits(line, header[output], values[output])
            yield line, _Row((when - first).total_seconds(), prompt_tokens, output_tokens, [])
    except csv.Error as error:
        raise _UnsoundError(lines.line_num, "CSV", str(error)) from None


def _moment(line: int, text: str, *, plain: bool) -> timedelta:
    """Since any moment, the same for a whole file; plain ones are seconds."""
    if plain:
        if _SECONDS.fullmatch(text) is None:
            raise _UnsoundError(line, "TIMESTAMP in seconds, as in the first row", text)
        return timedelta(seconds=float(text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise _UnsoundError(line, "TIMESTAMP as 2023-11-16 18:15:46.6805900, or in seconds", text) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH


def _digits(line: int, name: str, text: str) -> int:
    text = text.strip()
    # Also what `int` takes and no trace means: signs, underscores and digits of other scripts.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise _UnsoundError(line, f"{name} {_TOKENS_WANTED}", text)
    return _tokens(line, name, int(text))


def _tokens(line: int, name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= TOKENS_MAX:
        raise _UnsoundError(line, f"{name} {_TOKENS_WANTED}", value)
    return max(value, 1)


def _mooncake_rows(raw: bytes) -> Iterator[tuple[int, _Row]]:
    for line, content in _lines(raw):
        if not content.strip():
            continue
        try:
            fields = msgspec.json.decode(content)
        except (ValueError, RecursionError) as error:
            raise _UnsoundError(line, "a JSON object", str(error)) from None
        if not isinstance(fields, dict):
            raise _UnsoundError(line, "a JSON object", fields)
        timestamp = fields.get("timestamp")
        if type(timestamp) is bool or not isinstance(timestamp, int | float) or not 0 <= timestamp <= TIMESTAMP_MS_MAX:
            raise _UnsoundError(line, f"timestamp as milliseconds from 0 to {TIMESTAMP_MS_MAX}", timestamp)
        prompt_tokens = _tokens(line, "input_length", fields.get("input_length"))
        output_tokens = _tokens(line, "output_length", fields.get("output_length"))
        hash_ids = fields.get("hash_ids", [])
        if not (isinstance(hash_ids, list) and all(type(one) is int for one in hash_ids)):
            raise _UnsoundError(line, "hash_ids as a list of whole numbers", hash_ids)
        hashes_max = -(-prompt_tokens // HASH_TOKENS)
        if len(hash_ids) > hashes_max:
            wanted = f"at most {hashes_max} hash_ids, of {HASH_TOKENS} tokens each, for {prompt_tokens} tokens"
            raise _UnsoundError(line, wanted, len(hash_ids))
        yield line, _Row(timestamp / 1000, prompt_tokens, output_tokens, hash_ids)


def _spread(rows: list[_Row]) -> None:
    """Requests of one rounded timestamp came one after another, before the next timestamp."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.at_s)]
    starts = [group[0].at_s for group in groups]
    gaps = chain((after - before for before, after in pairwise(starts)), [MOONCAKE_CLOCK_S])
    for group, gap_s in zip(groups, gaps, strict=True):
        for index, row in enumerate(group):
            row.at_s += min(gap_s, MOONCAKE_CLOCK_S) * index / len(group)


def _arrivals(rows: list[_Row], kind: str) -> list[Arrival]:
    begin_s = rows[0].at_s
    free = 1
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    arrivals = []
    for row in rows:
        blocks: list[int] = []
        parent = 0
        for hash_id in row.hash_ids:
            # By what comes before it too, lest a file whose ids are not chained makes unequal beginnings equal.
            eight = known.get((parent, hash_id))
            if eight is None:
                eight = known[parent, hash_id] = tuple(range(free, free + _PER_HASH))
                free += _PER_HASH
            blocks += eight
            parent = eight[-1]
        full = row.prompt_tokens // BLOCK_TOKENS
        rest = range(free, free + max(0, full - len(blocks)))
        free += len(rest)
        blocks += rest
        at_s = row.at_s - begin_s
        arrivals.append(Arrival(at_s, row.prompt_tokens, row.output_tokens, tuple(blocks[:full]), kind=kind))
    return arrivals
