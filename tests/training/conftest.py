"""Shared by the tests of training."""

import pytest

from bert4rec.tasks import pairs


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are drawn two million numbers at a time. A few steps of a tiny model need a few hundred."""
    monkeypatch.setattr(pairs, "BLOCK_NUMBERS", 1 << 10)
