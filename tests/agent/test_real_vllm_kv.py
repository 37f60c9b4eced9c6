"""KV events of a real vLLM, heard again: what they say is cached, and what vLLM found. `make real-vllm` made them."""

import json
from typing import Any

import msgspec
import pytest

from bench.realvllm.kvcache import found_tokens
from extproc.agent.kv.watch import KvWatch
from tests.agent.pages import SAMPLES

BLOCK_TOKENS = 32
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def lines() -> Lines:
    return [json.loads(line) for line in (SAMPLES / "vllm_0.32.0_kv_events.jsonl").read_text().splitlines()]


def expected_and_found(lines: Lines, *, lost: int | None = None) -> list[tuple[int | None, int]]:
    """Of each prompt that was asked again; the batch of one number may be lost."""
    watch, pairs = KvWatch(1, 10_000), []
    for line in lines:
        if "batch" in line and line["number"] != lost:
            watch.heard(0, line["number"], msgspec.msgpack.encode(line["batch"]), line["t_s"])
        elif "prompt" in line:
            known = found_tokens(line["prompt"], watch.blocks.held, BLOCK_TOKENS) if watch.known else None
            pairs.append((known, line["cached"]))
    return pairs


def test_what_the_events_say_is_cached_is_what_vllm_finds_of_a_prompt(lines: Lines) -> None:
    pairs = expected_and_found(lines)
    assert [expected for expected, _ in pairs] == [found for _, found in pairs]
    assert {0, 288, 448, 480, 512} <= {
        found for _, found in pairs
    }  # thrown out or never there, cut short, whole, shared


def test_vllms_own_counter_rises_by_what_its_answers_say(lines: Lines) -> None:
    first = next(number for number, line in enumerate(lines) if "prompt" in line)
    before = next(line for line in reversed(lines[:first]) if "hits" in line)
    last = next(line for line in reversed(lines) if "hits" in line)
    asked = [line for line in lines if "prompt" in line]
    assert last["hits"] - before["hits"] == sum(line["cached"] for line in asked)
    assert last["queries"] - before["queries"] == sum(len(line["prompt"]) for line in asked)


def test_the_events_have_blocks_stored_and_thrown_out(lines: Lines) -> None:
    kinds = {event["type"] for line in lines if "batch" in line for event in line["batch"][1]}
    assert kinds >= {"BlockStored", "BlockRemoved"}


def test_after_a_lost_batch_nothing_is_said_to_be_cached(lines: Lines) -> None:
    numbers = [line["number"] for line in lines if "batch" in line]
    lost = numbers[len(numbers) // 4]
    assert {expected for expected, _ in expected_and_found(lines, lost=lost)} == {None}
