"""How many processor cores there are to use."""

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Of a container: microseconds of processor time in a period, and the period."""


def usable_cores() -> int:
    """As many as this process may use: by its affinity, and by the quota of its container, which torch does not see."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # No container, or "max".
        return cores
