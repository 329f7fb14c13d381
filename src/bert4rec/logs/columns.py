"""Which column is the user, the item, the time: guessed from usual names, or as named."""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

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
_TIME_WORDS = ("date", "time", "timestamp", "datetime", "at", "ts", "dt", "dat")
_ZONES_AND_UNITS = ("utc", "gmt", "local", "unix", "epoch", "s", "sec", "seconds", "ms", "millis", "us", "ns")
_NO_TIME_OF_THE_ACTION = re.compile(
    "release|birth|dob|publish|launch|expir|updat|modif|join|signup|regist|candidate|validate|mandate"
    "|(life|run|play|watch|dwell|listen|reading|screen|wait|response|full|part)(ing)?time"
)
"""Facts about the user or the item, durations, and words that only end like a date."""
_USUAL_RANK = {
    role: {name: rank for rank, name in enumerate(names.split())} for role, names in _USUAL_NAMES.items()
}


NO_COLUMN = "none"
"""Instead of a column's name: ignore the column."""


@dataclass(frozen=True)
class ColumnRequest:
    """Columns by name, or by place counted from 1; None is guessed."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    title: str | None = None

    @classmethod
    def of(cls, *columns: str | int | None) -> "ColumnRequest":
        """From names, or places counted from 1, in the order user, item, time, title."""
        return cls(*(None if column is None else str(column) for column in columns))


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of one file or frame that are read."""

    user: str
    item: str
    time: str | None = None
    title: str | None = None
    lists: frozenset[str] = frozenset()
    """Roles whose column holds lists: `item` if a row is a user with all items, and what goes along with them."""

    def describe(self) -> str:
        """For people: role and column."""
        in_lists = "the lists of " if self.lists else ""
        order = "none, order of the lists" if self.lists else "none, order of the rows"
        parts = [f"user = {self.user}", f"item = {in_lists}{self.item}", f"time = {self.time or order}"]
        return ", ".join([*parts, f"title = {self.title}"] if self.title else parts)

    def by_role(self) -> dict[str, str]:
        """Role → column, of those that are read."""
        columns = {"user": self.user, "item": self.item, "time": self.time, "title": self.title}
        return {role: name for role, name in columns.items() if name}


def guess_columns(names: Sequence[str], lists: Collection[str] = ()) -> dict[str, str]:
    """Role → column for every role that some column's name stands for; the more usual name wins.

    The name of a column in `lists` may be a plural ("item_ids").
    """
    plain = {name: _plain(name).removesuffix("s" if name in lists else "") for name in names}
    guessed: dict[str, str] = {}
    for role, rank in _USUAL_RANK.items():
        known = [name for name in names if plain[name] in rank and name not in guessed.values()]
        if known:
            guessed[role] = min(known, key=lambda name: rank[plain[name]])
    return guessed


def _guess_time(names: Sequence[str], dates: Collection[str], where: str) -> str | None:
    """The column whose name ends like that of a time ("Order Date", playedAt, event_ts_utc), or that holds dates."""
    found = [name for name in names if _ends_like_time(name)] or [
        name for name in names if name in dates and not _NO_TIME_OF_THE_ACTION.search(_plain(name))
    ]
    if len(found) > 1:
        raise DataError(
            f"{where} has several columns that may be the time: {', '.join(found)}. Name the one to sort by with "
            f'`time="{found[0]}"`, or use the order of the rows with `time="none"`.'
        )
    return found[0] if found else None


def _ends_like_time(name: str) -> bool:
    if _NO_TIME_OF_THE_ACTION.search(_plain(name)):
        return False
    without_type = name.partition(":")[0]
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", without_type)]
    while len(words) > 1 and words[-1] in _ZONES_AND_UNITS:
        words.pop()
    return bool(words) and (words[-1] in _TIME_WORDS or words[-1].endswith(("date", "time", "timestamp")))


def made_up_names(count: int) -> list[str]:
    """What the columns of a file without header are called."""
    return [f"column {place}" for place in range(1, count + 1)]


def choose_columns(
    names: Sequence[str],
    request: ColumnRequest,
    *,
    where: str,
    lists: Collection[str] = (),
    dates: Collection[str] = (),
) -> ColumnChoice:
    """Choose columns; a column that was named must exist, and user and item must be found.

    `lists` are the columns that hold lists. If no name stands for the item and one of them is left, it is that.
    `dates` are the columns whose type is a date or a time: if no name stands for the time, it is one of them.
    """
    roles: dict[str, str | None] = dict(guess_columns(names, lists))
    if list(names) == made_up_names(2):
        roles |= {"user": names[0], "item": names[1]}
    without_time = request.time == NO_COLUMN
    asked = {
        role: name for role, name in vars(request).items() if name and not (role == "time" and without_time)
    }
    named = {role: _named(name, names, role, where) for role, name in asked.items()}
    if roles.get("time") in named.values():
        del roles["time"]  # the user named it as something else
    roles |= named
    if request.time is None and "time" not in roles:
        roles["time"] = _guess_time([name for name in names if name not in roles.values()], dates, where)
    if not roles.get("item"):
        left = [name for name in lists if name not in roles.values()]
        if len(left) > 1:
            raise DataError(
                f"{where}: expected one column with lists of items, found {', '.join(left)}. Name it with `item`."
            )
        roles["item"] = left[0] if left else None
    for role in ("user", "item"):
        if not roles.get(role):
            raise DataError(
                f"No column of {where} looks like the {role}. Columns: {', '.join(names)}. Name it with `{role}`."
            )
    user, item, time, title = (roles.get(role) for role in ("user", "item", "time", "title"))
    assert user and item
    time = None if without_time else time
    for (one, name), (other, same) in combinations((("user", user), ("item", item), ("time", time)), 2):
        if name == same:
            raise UsageError(f"`{one}` and `{other}` cannot both be column {name!r}.")
    if item not in lists:
        return ColumnChoice(user, item, time, title)
    if title not in lists:
        if request.title:
            raise DataError(
                f"`title`: column {title!r} of {where} does not hold lists, so it cannot be the titles of listed items."
            )
        title = None  # it is the user's name
    along = {"item": item, "time": time, "title": title}
    return ColumnChoice(
        user, item, time, title, frozenset(role for role, name in along.items() if name in lists)
    )


def _named(asked: str, names: Sequence[str], role: str, where: str) -> str:
    """The column called `asked`, or the one in that place, counted from 1, if no column has that name."""
    if asked in names:
        return asked
    if asked.isdecimal() and 1 <= int(asked) <= len(names):
        return names[int(asked) - 1]
    by_lower_case = {name.lower(): name for name in names}
    near = difflib.get_close_matches(asked.lower(), by_lower_case, n=1)
    hint = f" Did you mean {by_lower_case[near[0]]!r}?" if near else ""
    raise DataError(f"`{role}`: column {asked!r} not found in {where}. Columns: {', '.join(names)}.{hint}")


def _plain(name: str) -> str:
    """Lower case, letters and digits only, without the type that some tools append ("user_id:token")."""
    return re.sub(r"[^a-z0-9]", "", name.lower().split(":")[0])
