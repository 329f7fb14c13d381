"""`bert4rec store hide`, `unhide`, `hidden`: items that are not to be recommended for now."""

from typing import Annotated

from cyclopts import Parameter

from bert4rec.cli.console import count, print_table, say


def hide_command(
    store: str,
    *items: str,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    until: str | None = None,
) -> None:
    """Never recommend some items: from now on and for good, unless told otherwise.

    A service that runs obeys within a second or so. What was said of these items before is replaced. They need not be
    known to any model yet.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or its address.
    items
        Ids of the items.
    from_
        The date or time from which on they are hidden, such as 2026-12-24 or 2026-12-24T18:00+01:00; UTC where no
        time zone is given.
    until
        The date or time from which on they may be recommended again.
    """
    from bert4rec.errors import UsageError
    from bert4rec.logs.times import format_moment, parse_moment
    from bert4rec.store.hiding import Hiding, now
    from bert4rec.store.transfer import opened
    from bert4rec.store.upkeep import address_of, sqlite_file

    ids = _named(items)
    begin = parse_moment(from_) if from_ else now()
    end = parse_moment(until) if until else None
    if end is not None and end <= begin:
        raise UsageError(f"`until` must be later than {'`from`' if from_ else 'now'}; found {until}.")
    sqlite_file(store)
    with opened(address_of(store)) as history:
        history.hide([Hiding(each, begin, end) for each in ids])
    period = f"from {format_moment(begin)} on" if from_ else "from now on"
    if end is not None:
        period += f", until {format_moment(end)}"
    say(f"Hidden {period}: {count(len(ids), 'item')}.")


def unhide_command(store: str, *items: str) -> None:
    """Let items be recommended again. A service that runs obeys within a second or so.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or its address.
    items
        Ids of the items.
    """
    from bert4rec.store.transfer import opened
    from bert4rec.store.upkeep import address_of, sqlite_file

    ids = _named(items)
    sqlite_file(store)
    with opened(address_of(store)) as history:
        removed = history.unhide(ids)
    others = f"; {count(len(ids) - removed, 'item')} not in the list" if removed < len(ids) else ""
    say(f"May be recommended again: {count(removed, 'item')}{others}.")


def hidden_command(store: str) -> None:
    """List what is hidden, the latest to begin first: also what will be, and what was until its time was over.

    Parameters
    ----------
    store
        The file of a store, such as history.db, or its address.
    """
    from bert4rec.logs.times import format_moment
    from bert4rec.store.hiding import now
    from bert4rec.store.transfer import opened
    from bert4rec.store.upkeep import address_of, sqlite_file

    sqlite_file(store)
    with opened(address_of(store)) as history:
        found = history.hidden()
    assert found is not None
    moment = now()
    rows = []
    for each in found.hidings:
        state = "hidden" if each.holds_at(moment) else "over" if each.begin <= moment else "to come"
        until = "" if each.end is None else format_moment(each.end)
        rows.append((each.item_id, state, format_moment(each.begin), until))
    if rows:
        print_table(["item", "state", "from", "until"], rows, words=range(4))
    say(f"Hidden now: {count(sum(each.holds_at(moment) for each in found.hidings), 'item')}.")


def _named(items: tuple[str, ...]) -> list[str]:
    """As they are stored, each once."""
    from bert4rec.errors import UsageError

    ids = list(dict.fromkeys(each.strip() for each in items))
    if not ids or "" in ids:
        raise UsageError("Name one item or more.")
    return ids
