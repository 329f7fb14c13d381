"""`bert4rec ab`."""

from rich.markup import escape

from bert4rec.api.ab import ab
from bert4rec.cli.console import print_json, print_table, results, warn
from bert4rec.cli.prepare_command import Flag
from bert4rec.evaluation.ab_test import Lift


def ab_command(store: str, *, since: str | None = None, kind: str = "click", json: Flag = False) -> None:
    """Tell which of the models that are served side by side is better, and how sure that is.

    Users are compared, not requests. Only the newest test counts, with the shares it has now. The service may go on
    meanwhile.

    Parameters
    ----------
    store
        The file of the service's store, such as history.db, or its address.
    since
        Leave out recommendations before this day (UTC), such as 2026-01-31.
    kind
        Which feedback counts: click, or another kind that was sent to `POST /v1/feedback`. Events that carry the id of
        a recommendation count by their type.
    json
        Print JSON.
    """
    found = ab(store, since=since, kind=kind)
    if json:
        print_json(found.as_dict())
        return
    rows = [
        (
            arm.name,
            str(arm.share),
            f"{arm.users:,}",
            f"{arm.recommendations:,}",
            f"{arm.feedback:,}",
            f"{arm.rate:.2%}",
            f"{arm.active_users:.2%}",
        )
        for arm in found.arms
    ]
    columns = ["arm", "share", "users", "recommended", kind, "rate", f"users with {kind}"]
    print_table(columns, rows)
    compared = [
        (arm.name, what, *_cells(lift))
        for arm in found.arms
        if arm.beside_first
        for what, lift in (("rate", arm.beside_first.rate), ("users", arm.beside_first.active))
        if lift
    ]
    if compared:
        results.print()
        columns = [
            f"beside {found.arms[0].name}",
            "of",
            "relative",
            "95%, one look",
            "p",
            "95%, any number of looks",
        ]
        print_table(columns, compared, words=(0, 1))
    results.print()
    for sentence in found.sentences:
        results.print(escape(sentence))
    for warning in found.warnings:
        warn(warning)


def _cells(lift: Lift) -> tuple[str, ...]:
    relative = "–" if lift.relative is None else f"{lift.relative:+.1%}"
    once, often = (
        "–" if each is None else f"{each[0]:+.1%} to {each[1]:+.1%}"
        for each in (lift.relative_interval, lift.anytime_interval)
    )
    p_value = "< 0.0001" if lift.p_value < 0.0001 else f"{lift.p_value:.4f}"
    return relative, once, p_value, often
