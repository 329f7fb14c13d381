"""`bert4rec ab`."""

from rich.markup import escape

from bert4rec.api.ab import TestedArm, ab
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
    columns = ["arm", "share", "users", "shown", kind, "rate", "of users"]
    print_table(columns, rows)
    if any(arm.feedback for arm in found.arms):  # There is nothing to compare before.
        for arm in found.arms[1:]:
            _print_comparison(arm, found.arms[0].name)
    results.print()
    for sentence in found.sentences:
        results.print(escape(sentence))
    for warning in found.warnings:
        warn(warning)


def _print_comparison(arm: TestedArm, first: str) -> None:
    """Names stand above the table, which fits into 80 columns however long they are."""
    compared = arm.beside_first
    lifts = {"rate": compared.rate, "users": compared.active} if compared else {}
    rows = [(what, *_cells(lift)) for what, lift in lifts.items() if lift]
    if rows:
        results.print(f"\n{escape(arm.name)} beside {escape(first)}:")
        print_table(["of", "change", "95%, one look", "p", "95%, any number of looks"], rows)


def _cells(lift: Lift) -> tuple[str, ...]:
    relative = "–" if lift.relative is None else f"{lift.relative:+.1%}"
    once, often = (
        "–" if each is None else f"{each[0]:+.1%} to {each[1]:+.1%}"
        for each in (lift.relative_interval, lift.anytime_interval)
    )
    p_value = "< 0.0001" if lift.p_value < 0.0001 else f"{lift.p_value:.4f}"
    return relative, once, p_value, often
