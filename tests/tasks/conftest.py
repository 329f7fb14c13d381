"""The tests here train too, with as small blocks of batches as the tests of training."""

from tests.training.conftest import small_blocks

__all__ = ["small_blocks"]
