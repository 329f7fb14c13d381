"""Tests of what only a GPU computes: `make test-gpu`. Elsewhere they are skipped.

With `TRITON_INTERPRET=1`, and Triton installed, the kernels alone are tried on a CPU, one number after the other.
"""

import os

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
