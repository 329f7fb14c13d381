"""The rules of a request, by the same names in Python, on the command line, in bulk and over HTTP."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bert4rec.errors import UsageError
from bert4rec.recommend.ids import as_list, check_k

_NUMBERS = (float, int)
Where = Mapping[str, object]
"""From attributes of items to what they must be, as in `{"category": ["tea"], "price": {"<": 20}}`."""


class RuleError(UsageError):
    """A rule that this model cannot follow."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"`{field.partition('.')[0]}`: {message}")
        self.field, self.message = field, message
        """Which rule, and of `where` which attribute."""


@dataclass  # not frozen, as `Item`
class Rules:
    """How many items to recommend, and which; see `Recommender.recommend`."""

    k: int = 10
    exclude_seen: bool | None = None
    allow: Iterable[object] | None = None
    deny: Iterable[object] | None = None
    where: Where | None = None
    diversity: float = 0.0

    def __post_init__(self) -> None:
        """Check what can be checked without a model; lists that can be read only once are read."""
        self.k = check_k(self.k)
        if self.allow is not None:
            self.allow = as_list(self.allow, "allow")
        if self.deny is not None:
            self.deny = as_list(self.deny, "deny")
        share = self.diversity
        is_number = isinstance(share, _NUMBERS) and not isinstance(share, bool)
        if not (is_number and 0 <= share <= 1):
            raise RuleError("diversity", f"expected a number from 0 to 1; found {share!r}.")

    def leave_out_seen(self, *, by_default: bool) -> bool:
        """Whether items of the history are left out."""
        return by_default if self.exclude_seen is None else self.exclude_seen

    def facts(self) -> dict[str, object]:
        """What decides an answer besides `k` and `exclude_seen`; what was not given is left out."""
        lists = {"allow": self.allow, "deny": self.deny or None}
        facts: dict[str, object] = {
            name: sorted(map(str, ids)) for name, ids in lists.items() if ids is not None
        }
        if self.where:
            facts["where"] = repr(sorted(self.where.items()))
        if self.diversity:
            facts["diversity"] = self.diversity
        return facts
