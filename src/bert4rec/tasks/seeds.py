"""Streams of random numbers that are known by numbers: of a run, and of what is drawn in it."""

import numpy as np


def seed_of(*numbers: int) -> int:
    """A seed for torch's generators, another one for all other numbers; they may be of any size."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
