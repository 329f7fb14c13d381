"""Kernels can be compiled for every GPU, and fit into it. No GPU is needed to find out."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.gpu.conftest import NO_TRITON

ROOT = Path(__file__).resolve().parents[2]
KIB = 1 << 10


@pytest.mark.parametrize(("gpu", "shared_memory"), [("sm_75", 64), ("sm_89", 99), ("gfx942", 64)])
def test_a_step_can_be_compiled_and_fits(gpu: str, shared_memory: int, tmp_path: Path) -> None:
    """For a T4, which has no bfloat16, an RTX 4090 and AMD's MI300; KiB that programs keep tiles in."""
    if find_spec("triton") is None:
        pytest.skip(NO_TRITON)
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    told = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compile_kernels", gpu],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    needed = json.loads(told.stdout)
    assert {"_attend_backward_kernel", "_update_kernel"} <= {name.partition(" ")[0] for name in needed}
    assert [name for name, bytes_ in needed.items() if bytes_ > shared_memory * KIB] == []
