"""Who had the processors during a run: proof that it was the engines' model that was slow, and not this machine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from extproc.children import Child

CLIENT: Final = "client"
"""This process: clients, and the table that is shown meanwhile."""
MACHINE: Final = "machine"
"""All that ran on the machine, ours and others'."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_IDLE: Final = (3, 4)
"""Columns of /proc/stat: idle, waiting for a disk."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of processor time so far, by group."""

    at_s: float
    """Wall time, on the clock of `time.monotonic`."""
    seconds: Mapping[str, float]

    def cores_since(self, before: "Spent") -> dict[str, float]:
        """Processors that each group kept busy on average since then; 1 is one whole core."""
        wall_s = self.at_s - before.at_s
        return {name: (seconds - before.seconds[name]) / wall_s for name, seconds in self.seconds.items()}


def spent(groups: Mapping[str, Sequence[Child]], at_s: float) -> Spent:
    """Read the time of the groups' processes, of this one, and of the whole machine, from Linux's /proc."""
    seconds = {name: sum(_process_s(child.pid) for child in children) for name, children in groups.items()}
    ours = os.times()
    return Spent(at_s, seconds | {CLIENT: ours.user + ours.system, MACHINE: _machine_s()})


def _process_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _machine_s() -> float:
    # The guests' time, at the end, is contained in that of users.
    ticks = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return sum(count for column, count in enumerate(ticks) if column not in _IDLE) / _TICKS_PER_S
