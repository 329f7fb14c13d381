"""What the commands print reads well."""

import pytest

from bert4rec.cli.console import count


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (12345, "12,345 runs")]
)
def test_one_is_not_many(number: int, words: str) -> None:
    assert count(number, "run") == words
