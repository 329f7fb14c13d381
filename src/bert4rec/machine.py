"""What the machine has for us: processor cores, and a place for what need not be made twice."""

import os
import tempfile
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


def rank() -> int:
    """Which of several processes this is, by the variables that `torchrun` sets; 0 if there are no others."""
    return int(os.environ.get("RANK", "0")) if num_ranks() > 1 else 0


def num_ranks() -> int:
    """How many processes `torchrun` has started to work together, on all machines; 1 without it."""
    # Some clusters set all but LOCAL_RANK for the machine itself.
    is_launched = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return int(os.environ["WORLD_SIZE"]) if is_launched else 1


def local_ranks() -> int:
    """How many of these are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if num_ranks() > 1 else 1


def is_restarted() -> bool:
    """Whether torchrun has started this process anew because one of the others had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def cache_folder() -> Path:
    """Where downloads and compiled code are kept: `$XDG_CACHE_HOME/bert4rec`, or `~/.cache/bert4rec`.

    It is safe to delete.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert4rec"


def keep_compiled_code() -> None:
    """Tell torch and Triton where to keep what they compile for a GPU, unless the user has told them.

    Both find it again by its code, their version, the card and the options. By themselves one of them chooses a folder
    that goes with the next restart, the other one the home of the user, and fails if nothing can be written there.
    """
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        folder = Path(tempfile.gettempdir()) / f"bert4rec-{os.getuid()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torch"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))


def processor_name() -> str:
    """What the processor calls itself."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.processor() or platform.machine()
