"""Which column is the user, which the item, which the time: guessed from usual names, or as told."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bert4rec.errors import DataError, UsageError

_USUAL_NAMES = {
    "user": "user userid uid reviewerid customerid visitorid memberid accountid clientid buyerid sessionid "
    "session username customer visitor reviewer author query queryid u",
    "item": "item itemid iid productid movieid asin articleid sku appid gameid songid trackid videoid bookid "
    "newsid adid offerid businessid artistid goodsid contentid product movie article book song track video i",
    "time": "timestamp time datetime date ts eventtime createdat eventtimestamp unixreviewtime reviewtime "
    "unixtime posted day when t",
    "title": "title name itemname productname movietitle itemtitle producttitle productdisplayname description",
}
_USUAL_RANK = {
    role: {name: rank for rank, name in enumerate(names.split())} for role, names in _USUAL_NAMES.items()
}


NO_COLUMN = "none"
"""Said in place of a column's name: do as if there were none."""


@dataclass(frozen=True)
class ColumnRequest:
    """What the user said about columns; None where it is to be guessed."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of one file that are read."""

    user: str
    item: str
    time: str | None = None
    title: str | None = None

    def describe(self) -> str:
        parts = [
            f"user = {self.user}",
            f"item = {self.item}",
            f"time = {self.time or 'none, order of the rows'}",
        ]
        return ", ".join([*parts, f"title = {self.title}"] if self.title else parts)

    def names(self) -> list[str]:
        return [name for name in (self.user, self.item, self.time, self.title) if name]


def guess_columns(names: Sequence[str]) -> dict[str, str]:
    """Role → column for every role some column's name stands for; the more usual name wins."""
    guessed: dict[str, str] = {}
    for role, rank in _USUAL_RANK.items():
        known = [name for name in names if _plain(name) in rank and name not in guessed.values()]
        if known:
            guessed[role] = min(known, key=lambda name: rank[_plain(name)])
    return guessed


def made_up_names(count: int) -> list[str]:
    """What the columns of a file without header are called."""
    return [f"column {place}" for place in range(1, count + 1)]


def choose_columns(names: Sequence[str], request: ColumnRequest, *, where: str) -> ColumnChoice:
    """Settle on columns; a column that was asked for must be there, user and item must be found."""
    guessed: dict[str, str | None] = dict(guess_columns(names))
    if list(names) == made_up_names(2):
        guessed |= {"user": names[0], "item": names[1]}
    if request.time == NO_COLUMN:
        request, guessed = replace(request, time=None), {**guessed, "time": None}
    roles = {
        role: _named(asked, names, role, where) if asked else guessed.get(role)
        for role, asked in vars(request).items()
    }
    for role in ("user", "item"):
        if roles[role] is None:
            raise DataError(
                f"{where} has no column that looks like the {role}. Columns found: {', '.join(names)}. "
                f"Name it with --{role}-col."
            )
    if roles["user"] == roles["item"]:
        raise UsageError(f"User and item cannot both be column {roles['user']!r}.")
    assert roles["user"] is not None and roles["item"] is not None
    return ColumnChoice(roles["user"], roles["item"], roles["time"], roles["title"])


def _named(asked: str, names: Sequence[str], role: str, where: str) -> str:
    """The column called `asked`, or the one in that place, counted from 1, where no column has that name."""
    if asked in names:
        return asked
    if asked.isdecimal() and 1 <= int(asked) <= len(names):
        return names[int(asked) - 1]
    by_lower_case = {name.lower(): name for name in names}
    near = difflib.get_close_matches(asked.lower(), by_lower_case, n=1)
    hint = f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""
    raise DataError(
        f"{where} has no column {asked!r} for --{role}-col. Columns found: {', '.join(names)}.{hint}"
    )


def _plain(name: str) -> str:
    """Lower case, letters and digits only, without the type that some tools append ("user_id:token")."""
    return re.sub(r"[^a-z0-9]", "", name.lower().split(":")[0])
