"""Tests of what only a GPU computes: `make test-gpu`. Elsewhere they are skipped.

With `TRITON_INTERPRET=1`, and Triton installed, the kernels alone are tried on a CPU, one number after the other.
`BERT4REC_GPU_LOG` names a file for a short account of the last run.
"""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    """Where kernels run."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    pytest.skip("there is no GPU")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    path = os.environ.get("BERT4REC_GPU_LOG")
    if not path or not torch.cuda.is_available():
        return
    counts = {
        name: len(terminalreporter.getreports(name)) for name in ("passed", "failed", "skipped", "error")
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "numpy"))
    seconds = sum(report.duration for name in counts for report in terminalreporter.getreports(name))
    lines = [
        f"device: {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}",
        f"versions: Python {platform.python_version()}, {versions}",
        f"tests: {told}, {seconds:.0f} s",
    ]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
