"""The documentation's table of what is read from which engine, proved on a full page of each."""

import re
from pathlib import Path

import pytest

from extproc.agent.engines.adapter import Pages
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.kinds import ADAPTERS
from extproc.agent.engines.reading import FIRST_LOOK, MEASURED, NOT_TOLD
from tests.agent import sglangpages, test_lmdeploy, test_tgi
from tests.agent.pages import sample, vllm_adapters, vllm_lines, vllm_totals
from tests.agent.trtllmpages import triton_lines, trtllm_lines

DOCS = Path(__file__).parents[2] / "docs" / "agent.md"

COLUMNS = {
    "vLLM": EngineKind.VLLM,
    "SGLang": EngineKind.SGLANG,
    "TensorRT-LLM": EngineKind.TRTLLM,
    "Triton": EngineKind.TRITON,
    "TGI": EngineKind.TGI,
    "llama.cpp": EngineKind.LLAMACPP,
    "LMDeploy": EngineKind.LMDEPLOY,
    "generic": EngineKind.GENERIC,
}
"""By the first word of their headings."""

FULL: dict[EngineKind, Pages] = {
    EngineKind.VLLM: {"/metrics": vllm_lines(running=1) + vllm_totals(prompt=5, computed=5) + vllm_adapters(4, "a")},
    EngineKind.SGLANG: {"/metrics": sglangpages.FULL},
    EngineKind.TRTLLM: {"/prometheus/metrics": trtllm_lines(running=3, decodes=2, batch={0: 3}, prefill=(1.0, 3))},
    EngineKind.TRITON: {"/metrics": triton_lines(active=4, scheduled=3, generation=2)},
    EngineKind.TGI: {"/metrics": test_tgi.page(queue=3, batch=7)},
    EngineKind.LLAMACPP: {"/metrics": sample("llamacpp_b10434_load_2.prom"), "/slots": sample("llamacpp_slots.json")},
    EngineKind.LMDEPLOY: {"/metrics": test_lmdeploy.page(running=1, prompt=5)},
}


def table() -> dict[str, dict[EngineKind, str]]:
    """The cells by field and by engine."""
    section = DOCS.read_text().partition("## What is read from which engine")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section.splitlines()
        if line[:1] == "|"
    ]
    kinds = [COLUMNS[heading.split()[0]] for heading in rows[0][1:]]
    assert kinds == list(COLUMNS.values())
    cells = {row[0].strip("`"): dict(zip(kinds, row[1:], strict=True)) for row in rows[2:]}
    assert cells.keys() >= set(MEASURED)
    return cells


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_field_is_absent_in_the_table_if_and_only_if_the_engine_does_not_tell_it(kind: EngineKind) -> None:
    reading, _ = ADAPTERS[kind].read(FULL[kind], None)
    untold = {name for name, reason in reading.absent.items() if reason == NOT_TOLD}
    assert {name for name in MEASURED if table()[name][kind].startswith("absent")} == untold
    assert set(reading.absent.values()) <= {NOT_TOLD, FIRST_LOOK}, "the page is no full one"


def test_every_cell_of_the_table_is_filled_in() -> None:
    assert all(cell not in ("", "?") for row in table().values() for cell in row.values())
