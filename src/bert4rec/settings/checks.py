"""Arguments of the public functions that are refused in a sentence before anything else is done."""

import numpy as np

from bert4rec.errors import UsageError

LONGEST = 10_000_000
"""Minutes: 19 years."""


def checked_minutes(minutes: object) -> float:
    """A time limit as a plain number."""
    is_number = isinstance(minutes, int | float | np.integer | np.floating) and not isinstance(minutes, bool)
    if not is_number or not 0 < minutes <= LONGEST:  # type: ignore[operator]
        limit = f"at most {LONGEST:,}" if is_number and minutes > LONGEST else "a number above 0"  # type: ignore[operator]
        raise UsageError(f"`minutes` must be {limit}; found {minutes!r}.")
    return float(minutes)  # type: ignore[arg-type]


def checked_seed(seed: object) -> int:
    """A seed as a plain number; 1 if there is none."""
    if seed is None:
        return 1
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise UsageError(f"`seed` must be a whole number from 0 to 2**63 - 1; found {seed!r}.")
    return int(seed)
