"""What many different prompts leave behind in a process that counts them, by the default settings.

    .venv/bin/python -m bench.tokens.memory FAMILY PROMPTS…

A process of its own: what other benchmarks freed would be taken for room that counting needs.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from bench.tokens.families import MODEL, counter, find
from bench.tokens.tables import made, verdict
from bench.tokens.texts import KB, FreshText
from extproc.prompt import CountedPrompt, Prompt
from extproc.tokensettings import TokenSettings

_MESSAGES: Final = 3


def resident(names: Sequence[str], prompts: Sequence[int]) -> Table:
    """Table 7."""
    table = made("family", right=("loaded: MB", *(f"after {number:,}: more MB" for number in prompts)))
    limit = TokenSettings().cache_bytes_max / 1e6
    most = 0.0
    arguments = [sys.executable, "-m", "bench.tokens.memory"]
    # All at once: it is not their time that counts.
    children = {
        name: subprocess.Popen([*arguments, name, *map(str, prompts)], stdout=subprocess.PIPE) for name in names
    }
    for name in names:
        output, _ = children[name].communicate()
        loaded, *after = json.loads(output.splitlines()[-1])
        table.add_row(name, f"{loaded:.0f}", *(f"{one - loaded:.1f}" for one in after))
        most = max(most, *(one - loaded for one in after))
    table.title = f"7 · Resident memory after different chats of {_MESSAGES} messages and 1 KB"
    table.caption = verdict(f"at most cache_bytes_max more, {limit:.0f} MB", most <= limit, f"{most:.0f}")
    return table


def _give_back_what_is_free() -> None:
    """Loading frees some 100 MB, which would hide what comes after it. A no-op where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        gc.collect()
        trim(0)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Print the megabytes before, and after so many prompts in all."""
    name, *numbers = sys.argv[1:]
    (family,) = find((name,))
    counting, text = counter(family.loaded), FreshText()
    _give_back_what_is_free()
    found = [_resident_mb()]
    done = 0
    for number in map(int, numbers):
        for _ in range(done, number):
            counted = counting.count(MODEL, Prompt(chat=text.chat(_MESSAGES, KB)), 1_000_000, lambda _: None)
            assert isinstance(counted, CountedPrompt), "short, so at once"
        done = number
        found.append(_resident_mb())
    counting.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
