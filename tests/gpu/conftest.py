"""Kernels on a GPU (`make test-gpu`) or, where there is none, in Triton's interpreter, one number after the other.

`BERT4REC_GPU_LOG` names a file for a short account of the last run on a GPU.
"""

import os
import platform
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import pytest
import torch

from bert4rec.kernels.support import Played

HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
"""Triton's interpreter cannot multiply matrices of bfloat16."""
NO_TRITON = "Triton is not installed: pip install triton"
H200, T4 = 227 << 10, 64 << 10
"""What their multiprocessors have of shared memory."""
BEGAN = time.perf_counter()


def import_interpreted() -> None:
    """Triton's own functions are interpreted from their import on, too, so it comes before that of any other test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITON_INTERPRET", "1")
        import triton.language  # noqa: F401


if find_spec("triton") is not None and not torch.cuda.is_available():
    import_interpreted()


class GpuRole:
    """A GPU, or inside a `with` block a CPU that plays its part."""

    def __init__(self, shared_memory: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._shared_memory = shared_memory

    def __enter__(self) -> None:
        Played.shared_memory = 0 if self.device.type == "cuda" else self._shared_memory

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Played.shared_memory = 0


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Triton's interpreter, in which kernels are executed from their first import on."""
    if not torch.cuda.is_available():
        if find_spec("triton") is None:
            pytest.skip(NO_TRITON)
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def gpu(_interpreted: None) -> GpuRole:
    return GpuRole(H200)


@pytest.fixture
def small_gpu(_interpreted: None) -> GpuRole:
    return GpuRole(T4)


@pytest.fixture
def device(gpu: GpuRole) -> Iterator[torch.device]:
    """Where kernels run."""
    with gpu:
        yield gpu.device


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    path = os.environ.get("BERT4REC_GPU_LOG")
    if not path or not torch.cuda.is_available():
        return
    counts = {
        name: len(terminalreporter.getreports(name)) for name in ("passed", "failed", "skipped", "error")
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "numpy"))
    seconds = time.perf_counter() - BEGAN  # Of the process that waits for those which run the tests.
    lines = [
        f"device: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}",
        f"versions: Python {platform.python_version()}, {versions}",
        f"tests: {told} in {seconds:.0f} s",
    ]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
