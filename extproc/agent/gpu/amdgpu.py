"""AMD's GPUs, by the files in which the kernel's driver tells about them.

The same figures as AMD's library `amdsmi` gives, which has to be of the very version of the installed ROCm; the files
are there wherever the driver is. See https://docs.kernel.org/gpu/amdgpu/driver-misc.html.
"""

from collections.abc import Sequence
from pathlib import Path

from extproc.agent.gpu.usage import GpuName, GpuUsage, Memory, OneGpu, share_of_percent, together, unknown

CARDS = Path("/sys/class/drm")
_DIGITS_MAX = 20
_BUSY = "gpu_busy_percent"


class AmdGpus:
    """The cards of AMD's driver, in the order of their PCI addresses. Its methods block, for some microseconds."""

    def __init__(self, cards: Sequence[Path]) -> None:
        self._cards = cards

    def usage(self, names: Sequence[GpuName]) -> GpuUsage:
        """How busy these GPUs are. Without a name: the only one of the machine."""
        if not names and len(self._cards) != 1:
            return unknown(f"the machine has {len(self._cards)} GPUs and none is named")
        return together([self._one(name) for name in names or (GpuName(0),)])

    def _one(self, name: GpuName) -> OneGpu:
        if name.index is None or name.instance is not None or name.index >= len(self._cards):
            fault = f"amdgpu: there is no GPU {name} among {len(self._cards)}"
            return OneGpu(fault, fault)
        card = self._cards[name.index]
        busy, used, total = (_number(card / file) for file in (_BUSY, "mem_info_vram_used", "mem_info_vram_total"))
        return OneGpu(
            f"amdgpu: {_BUSY} cannot be read" if busy is None else share_of_percent(busy, "amdgpu"),
            "amdgpu: mem_info_vram_* cannot be read" if used is None or total is None else Memory(used, total),
        )


def open_amdgpu(cards: Path = CARDS) -> AmdGpus | None:
    """The machine's cards, if there are any. Blocks; call it once."""
    try:
        devices = {
            (card / "device").resolve() for card in cards.glob("card[0-9]*") if (card / "device" / _BUSY).is_file()
        }
    except OSError:
        return None
    return AmdGpus(sorted(devices)) if devices else None


def _number(file: Path) -> int | None:
    try:
        with file.open() as opened:
            text = opened.read(_DIGITS_MAX + 1).strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None
