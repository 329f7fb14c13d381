import pytest
import torch

WHERE_KERNELS_RUN = [pytest.mark.gpu] if torch.cuda.is_available() else []
"""Tests of kernels need no GPU: where there is none, `make test` runs them, with a CPU that plays its part."""
