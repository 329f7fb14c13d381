"""Several models side by side: which of them answers whom.

A user belongs to one arm of the test, by a hash of the id alone: on every worker, machine and restart the same. Each
arm draws a number for the user, and the smallest by its share wins (weighted rendezvous hashing). So nobody moves
between two arms whose shares keep their ratio: where 90:10 becomes 80:20, only those move who must, and an arm that is
added takes users from the others and moves nobody between these. Ranges of one number, one behind the other, would move
all that lie behind a change. Who is in an arm depends on its name: a new challenger under a new name gets new users.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.errors import UsageError

if TYPE_CHECKING:
    from bert4rec.service.served_models import ModelVersions

NAME = re.compile("[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True)
class Arm:
    """One of the models that are served side by side."""

    name: str
    """Empty where there is but one model."""
    model: Path
    share: int


def arms_of(models: Mapping[str, str | PathLike[str]], split: Sequence[int] | None) -> tuple[Arm, ...]:
    """The arms of a test, checked; the first is what the others are compared with."""
    if len(models) < 2:
        raise UsageError(
            "A test needs two models or more, each with a name: champion=model-a challenger=model-b."
        )
    for name in models:
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name for a model: use up to 32 letters, digits, dashes and underscores."
            )
    if split is None:
        raise UsageError(f"{len(models)} models need `split`, a share for each, as in 90:10.")
    if len(split) != len(models) or min(split) < 1:
        found = ":".join(map(str, split))
        raise UsageError(
            f"`split` must have {len(models)} whole numbers from 1 on, one for each model; found {found}."
        )
    return tuple(
        Arm(name, Path(model), share) for (name, model), share in zip(models.items(), split, strict=True)
    )


def name_of_test(arms: Sequence[Arm]) -> str:
    """What a store knows a test by: `champion=90:challenger=10`. Empty for a single model."""
    return ":".join(f"{arm.name}={arm.share}" for arm in arms) if len(arms) > 1 else ""


def draw(name: str, share: int, user: str) -> float:
    """What an arm draws for a user. It is the smallest of several with a probability that is the arm's share."""
    digest = _begun(name).copy()
    digest.update(user.encode())
    return -math.log((int.from_bytes(digest.digest()) + 1) / (2**64 + 1)) / share


@cache
def _begun(name: str) -> blake2b:
    """What all users of an arm have in common."""
    return blake2b(f"{name}\0".encode(), digest_size=8, person=b"bert4rec arm")


class ServedArms:
    """The arms with their models."""

    def __init__(self, served: Sequence[tuple[Arm, "ModelVersions"]]) -> None:
        self._served = {arm.name: (arm.share, versions) for arm, versions in served}
        self.first = served[0][1]
        """Answers whatever is asked for nobody in particular."""
        self.is_test = len(served) > 1

    def __iter__(self) -> Iterator[tuple[str, int, "ModelVersions"]]:
        """Name, share and models of each arm."""
        return ((name, share, versions) for name, (share, versions) in self._served.items())

    def of(self, user: str | None) -> "ModelVersions":
        """The models that answer a user."""
        if user is None or not self.is_test:
            return self.first
        return min(self._served.items(), key=lambda each: draw(each[0], each[1][0], user))[1][1]

    def named(self, name: str) -> "ModelVersions | None":
        return self._served[name][1] if name in self._served else None
