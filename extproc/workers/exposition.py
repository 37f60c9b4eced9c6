"""Pages of several processes for Prometheus (text format 0.0.4) as one, each sample with who tells it.

A family's HELP and TYPE may stand on a page but once, with all its samples behind them.
"""

from collections.abc import Collection, Mapping
from typing import Final

LABEL: Final = "worker"


def merged(pages: Mapping[str, bytes]) -> bytes:
    """All samples of all pages; each gets the label `worker` with its page's key, which needs no escaping.

    Pages are as prometheus_client writes them. What is no sample of a family that was named before is left out.
    """
    families: dict[str, _Family] = {}
    for worker, page in pages.items():
        own = f'{LABEL}="{worker}"'
        family: _Family | None = None
        for line in page.decode(errors="replace").split("\n"):
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                family = families.setdefault(name, _Family(line))
            elif line.startswith("# TYPE "):
                if family is not None:
                    family.type_line = line
            elif line and not line.startswith("#") and family is not None:
                family.samples.append(_labelled(line, own))
    return "".join(one.text() for one in families.values()).encode()


def only(page: bytes, names: Collection[str]) -> bytes:
    """The families of a page that begin with one of these names."""
    kept: list[str] = []
    keeps = False
    for line in page.decode(errors="replace").split("\n"):
        if line.startswith("# HELP "):
            keeps = line.split(" ", 3)[2].startswith(tuple(names))
        if keeps:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept).encode()


class _Family:
    __slots__ = ("help_line", "samples", "type_line")

    def __init__(self, help_line: str) -> None:
        self.help_line = help_line
        self.type_line = ""
        self.samples: list[str] = []

    def text(self) -> str:
        return "".join(f"{line}\n" for line in (self.help_line, self.type_line, *self.samples) if line)


def _labelled(sample: str, label: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label},{rest}" if not rest.startswith("}") else f"{name}{{{label}{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
