"""The prepared dataset: a folder of memory-mapped arrays that every later stage reads.

Only NumPy is needed to read it. The tables of ids and titles are Parquet and are opened on request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bert4rec.artefact import read_manifest, verify_files
from bert4rec.errors import NotFoundError

if TYPE_CHECKING:
    import polars as pl

MANIFEST = "dataset.json"
SCHEMA = 1
PADDING = 0
"""The item number that stands for "nothing here". Items are 1 to V, and V + 1 is [mask]."""

Repeats = Literal["keep", "exclude"]
"""What users may be asked about and offered: `keep` means anything, also what they had before; `exclude` means
only what they never had. Whatever draws, ranks or recommends items obeys it, so that all ask the same question."""


@dataclass(frozen=True)
class Dataset:
    """Every user's actions in order, as item numbers, all users end to end."""

    path: Path
    manifest: Mapping[str, Any]
    sequences: NDArray[np.int32]
    """Item numbers of all actions: user u's are sequences[offsets[u] : offsets[u + 1]], oldest first."""
    offsets: NDArray[np.int64]
    times: NDArray[np.int64] | None
    """Microseconds since 1970, one per action, or None where the log had no times."""

    @classmethod
    def open(cls, path: str | Path) -> "Dataset":
        """Open a prepared dataset in milliseconds; nothing is read before it is used."""
        folder = Path(path)
        manifest = read_manifest(folder, MANIFEST, kind="dataset", schema=SCHEMA)
        has_times = "times.npy" in manifest["files"]
        return cls(
            path=folder,
            manifest=manifest,
            sequences=_map(folder / "sequences.npy"),
            offsets=_map(folder / "offsets.npy"),
            times=_map(folder / "times.npy") if has_times else None,
        )

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def checksum(self) -> str:
        """Identifies sequences and times, not titles: equal for equal data on every machine."""
        return str(self.manifest["checksum"])

    @property
    def repeats(self) -> Repeats:
        """Whether items of a history may come again. Datasets of before this was recorded leave them out."""
        repeats: Repeats = self.manifest.get("repeats", "exclude")
        return repeats

    @property
    def num_users(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_items(self) -> int:
        """V: items are numbered 1 to V, by falling popularity."""
        return int(self.manifest["counts"]["items"])

    @property
    def num_actions(self) -> int:
        return len(self.sequences)

    @property
    def mask_number(self) -> int:
        """The number of the [mask] token."""
        return self.num_items + 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @cached_property
    def item_counts(self) -> NDArray[np.int64]:
        """How often each item number occurs in the whole log; entry 0, padding, is 0."""
        return np.bincount(self.sequences, minlength=self.num_items + 1)

    def history(self, user: int) -> NDArray[np.int32]:
        """All actions of one user, oldest first."""
        return self.sequences[self.offsets[user] : self.offsets[user + 1]]

    def negatives(self, kind: str = "popularity") -> NDArray[np.int32]:
        """The stored candidates, one row a user; 0 fills up where there are no more.

        Where repeats are kept, a target may be among them, so there is one more than is needed.
        """
        path = self.path / f"negatives-{kind}.npy"
        if path.name not in self.manifest["files"]:
            raise NotFoundError(f"{self.path} holds no {path.name}. Prepare it anew with --negatives both.")
        return _map(path)

    def candidates_checksum(self, kind: str = "popularity") -> str:
        """Identifies the stored candidates; empty where there are none of this kind."""
        facts = self.manifest["files"].get(f"negatives-{kind}.npy")
        return str(facts["sha256"])[:16] if facts else ""

    def items(self) -> "pl.DataFrame":
        """One row an item, in the order of their numbers: `number`, `id`, `count`, `title` and more where known."""
        return self._table("items.parquet")

    def users(self) -> "pl.DataFrame":
        """One row a user, in the order of the sequences: `number` (from 0), `id`, `count`."""
        return self._table("users.parquet")

    def verify(self) -> None:
        """Hash every file; raises DataError naming the first that was changed."""
        verify_files(self.path, dict(self.manifest))

    def _table(self, name: str) -> "pl.DataFrame":
        import polars as pl

        return pl.read_parquet(self.path / name)


def _map(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
