"""What all nodes of a planned fleet are like: by a fleet file, by options, by a model and its KV cache's memory."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter, ValidationError

from extproc import yamlfile
from extproc.core.capacity import tokens_held
from extproc.core.modelshapes import ModelShape, shape_of
from extproc.core.settings import GOT_CHARS_MAX, Fault, faults_of
from extproc.sim import fleetplan
from extproc.sim.fleetplan import KV_BLOCKS_TOTAL_MAX, PlannedNode
from extproc.sim.kv import BLOCK_SIZE_TOKENS
from extproc.sizes import Size

FP8_BYTES: Final = 1.0
_ALWAYS_THERE: Final = ("joins_at_s", "leaves_at_s", "ready_after_s", "faults")
"""What a fleet file may say of a node, and all nodes alike can have no use for."""
_SIZE: Final[TypeAdapter[int]] = TypeAdapter(Size)


@dataclass(frozen=True, slots=True)
class KvMemory:
    """A KV cache by its memory."""

    memory_bytes: int
    shape: ModelShape
    """Of the model that it is for."""

    def blocks(self, sequence_tokens: int) -> int:
        """Blocks that it holds, of sequences of this length, at least 1: with windowed layers longer ones take less."""
        return tokens_held(self.memory_bytes, self.shape, sequence_tokens) // BLOCK_SIZE_TOKENS


def memory(kv_memory: str | None, model: str | None, *, fp8: bool, blocks: int | None) -> KvMemory | list[Fault] | None:
    """What `--kv-memory` and `--model` mean beside `--kv-blocks`; `None`: neither is given."""
    if kv_memory is None and model is None:
        return [Fault("--kv-fp8", "--kv-memory beside it", "none")] if fp8 else None
    if kv_memory is None or model is None:
        there, absent = ("--model", "--kv-memory") if kv_memory is None else ("--kv-memory", "--model")
        return [Fault(there, f"{absent} beside it", "none")]
    if blocks is not None:
        return [Fault("--kv-blocks", "either it or --kv-memory", "both")]
    faults = []
    size = 0
    try:
        size = _SIZE.validate_python(kv_memory)
    except ValidationError as error:
        faults = [replace(one, path="--kv-memory") for one in faults_of(error)]
    shape = shape_of(model)
    if shape is None:
        wanted = "a model whose shape is known, as Llama-3.3-70B; for others there is --kv-blocks"
        faults.append(Fault("--model", wanted, repr(model)[:GOT_CHARS_MAX]))
    if faults:
        return faults
    assert shape is not None
    return KvMemory(size, msgspec.structs.replace(shape, number_bytes=FP8_BYTES) if fp8 else shape)


def node(
    file: Path | None, shape: dict[str, Any], kv: KvMemory | None, sequence_tokens: int, nodes_max: int
) -> PlannedNode | list[Fault]:
    """The node, or every fault. `shape` is what options say of it, by the keys of a fleet file; `None`: nothing."""
    entry = {} if file is None else _entry(file)
    if isinstance(entry, list):
        return entry
    given = {name: value for name, value in shape.items() if value is not None}
    if kv is not None:
        given["kv_blocks"] = kv.blocks(sequence_tokens)
    planned = fleetplan.parse({"nodes": [{**entry, "name": None, "count": 1, **given}]})
    if isinstance(planned, list):
        return [replace(one, path=_option(one.path, kv)) for one in planned]
    (found,) = planned.nodes
    if nodes_max * found.engine.kv_blocks > KV_BLOCKS_TOTAL_MAX:
        wanted = f"at most {KV_BLOCKS_TOTAL_MAX} KV blocks of all nodes together"
        return [Fault("--nodes-max", wanted, f"{nodes_max} nodes of {found.engine.kv_blocks}")]
    return found


def _entry(file: Path) -> dict[str, Any] | list[Fault]:
    """The first one of a fleet file."""
    content = yamlfile.load(file)
    if isinstance(content, Fault):
        return [content]
    found = fleetplan.parse(content.content)
    if isinstance(found, list):
        return yamlfile.faults_in(file, found)
    assert isinstance(content.content, dict)
    entry: dict[str, Any] = content.content["nodes"][0]
    if of_time := [name for name in _ALWAYS_THERE if entry.get(name)]:
        wanted = f"a node that is there all the time, without {', '.join(_ALWAYS_THERE)}"
        return [Fault(f"{file}: nodes.0", wanted, ", ".join(of_time))]
    return entry


def _option(path: str, kv: KvMemory | None) -> str:
    name = path.removeprefix("nodes.0.")
    if name == "kv_blocks" and kv is not None:
        return f"--kv-memory, in blocks of {BLOCK_SIZE_TOKENS} tokens"
    return f"--{name.replace('_', '-')}"
