"""How many threads torch uses and how they wait for each other: set in the environment, before torch is loaded."""

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Of a container: microseconds of processor time in a period, and the period."""
SPINS = "1000"
"""Then a waiting thread sleeps: some ten microseconds, where libgomp's usual 300,000 are milliseconds."""


def share_the_machine() -> None:
    """Leave a core to others, unless the user has set the number of threads.

    Threads wait for each other after every operation, spinning. If one of them has no core, because something else
    runs there, all the others wait for it: two threads on two cores with one busy neighbour train at a fraction of the
    speed of one thread. `python -m benchmarks.busy` shows it.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() - 1)))
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def usable_cores() -> int:
    """As many as this process may use: by its affinity, and by the quota of its container, which torch does not see."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # No container, or "max".
        return cores
