"""What ran the benchmark: stands over every table."""

import os
import platform
import sys
from pathlib import Path


def machine() -> str:
    """One line: processor, cores, system and Python."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    python = ".".join(str(part) for part in sys.version_info[:3])
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {python}"
