"""Which of the models that are served side by side is better: the counts of a store, judged."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bert4rec.errors import NotFoundError
from bert4rec.evaluation.ab_test import ENOUGH, ArmComparison, ArmUsers, Lift, compare_arms, share_mismatch
from bert4rec.logs.times import format_moment, parse_moment
from bert4rec.store.feedback import CLICK, CountedTest, read_test
from bert4rec.store.transfer import opened
from bert4rec.store.upkeep import address_of, sqlite_file

ONE_LOOK = (
    "The 95% intervals hold for one look at a moment that was chosen beforehand. If you look again and again, and stop "
    "as soon as there is a difference, go by the intervals for any number of looks."
)


@dataclass(frozen=True)
class TestedArm:
    """One of the models of a test, and what its recommendations led to."""

    name: str
    share: int
    versions: list[str]
    """Which it has served, the newest last."""
    users: int
    recommendations: int
    feedback: int
    rate: float
    """Feedback per recommendation."""
    active_users: float
    """The share of users with any feedback."""
    beside_first: ArmComparison | None
    """Compared with the first arm; None for that one."""


@dataclass(frozen=True)
class ABTest:
    """The outcome of a test so far."""

    kind: str
    since: str | None
    """The first day of which something is counted."""
    until: str
    """When recommendations were last counted."""
    arms: list[TestedArm]
    sentences: list[str]
    """Which is better, and how sure that is."""
    warnings: list[str]
    """Why that might be wrong."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def ab(store: str, *, since: str | None = None, kind: str = CLICK) -> ABTest:
    """Tell which of the models that `serve` serves side by side is better, and how sure that is.

    Users are compared, not requests. Only the newest test counts, with the shares it has now.

    Parameters
    ----------
    store
        The file of the service's store, such as "history.db", or its address.
    since
        Leave out recommendations before this day (UTC): "2026-01-31".
    kind
        Which feedback counts: "click", or another kind that was sent to `POST /v1/feedback`. Events that carry the id
        of a recommendation count by their type.
    """
    sqlite_file(store)
    with opened(address_of(store)) as history:
        found = read_test(history, kind, 0 if since is None else parse_moment(since))
    if found is None:
        raise NotFoundError(
            "No test is in this store: nothing was recommended by two models or more. Serve two side by side first, "
            "each to its share of the users (`split`)."
        )
    shares = {name: int(share) for name, _, share in (each.partition("=") for each in found.test.split(":"))}
    users = {name: _users(found, name) for name in shares}
    first = next(iter(users.values()))
    arms = [
        TestedArm(
            name,
            share,
            found.versions.get(name, []),
            len(users[name].feedback),
            int(users[name].recommendations.sum()),
            int(users[name].feedback.sum()),
            users[name].rate,
            users[name].active,
            None if users[name] is first else compare_arms(first, users[name]),
        )
        for name, share in shares.items()
    ]
    return ABTest(
        kind,
        None if found.first_day is None else format_moment(found.first_day),
        format_moment(found.last_seen),
        arms,
        [_sentence(arm, arm.beside_first, arms[0].name, kind) for arm in arms[1:] if arm.beside_first],
        list(_warnings(found, arms, kind)),
    )


def _users(found: CountedTest, arm: str) -> ArmUsers:
    counts = np.array(list(found.users.get(arm, {}).values()), np.int64).reshape(-1, 2)
    return ArmUsers(counts[:, 0], counts[:, 1])


def _sentence(arm: TestedArm, compared: ArmComparison, first: str, kind: str) -> str:
    lift, name = compared.rate, arm.name
    if lift is None or compared.verdict == "too little feedback":
        return (
            f"There is too little feedback to compare {name} with {first}: at least {ENOUGH} users with feedback of "
            f"kind {kind} are needed in each."
        )
    if compared.verdict != "unclear":
        return f"{name} is {compared.verdict} than {first}: its {kind} rate is {_describe(lift)}."
    unclear = f"No difference between {name} and {first} can be told: the {kind} rate of {name} is {_describe(lift)}."
    if compared.users_needed:
        return f"{unclear} At this rate, about {compared.users_needed:,} more users are needed to find one of 5%."
    return f"{unclear} One of 5% would most likely have shown."


def _describe(lift: Lift) -> str:
    direction = "lower" if lift.difference < 0 else "higher"
    if lift.relative is None or lift.relative_interval is None:
        low, high = lift.interval
        return f"{abs(lift.difference):.2%} of recommendations {direction} (95%: {low:+.2%} to {high:+.2%})"
    low, high = lift.relative_interval
    return f"{abs(lift.relative):.1%} {direction} (95%: {low:+.1%} to {high:+.1%})"


def _warnings(found: CountedTest, arms: list[TestedArm], kind: str) -> Iterator[str]:
    users, shares = [arm.users for arm in arms], [arm.share for arm in arms]
    if p_value := share_mismatch(users, shares):
        yield (
            f"The numbers of users, {', '.join(f'{each:,}' for each in users)}, do not fit the shares, "
            f"{':'.join(map(str, shares))} (p = {p_value:.1g}). Chance alone decides who is in an arm, so something "
            "keeps users of one from being counted. Find out what before you trust the comparison."
        )
    if found.uncredited:
        yield (
            f"Not counted: feedback of kind {kind} on {found.uncredited:,} items that were recommended to nobody in "
            "particular. Requests that carry a history can carry a `subject` too."
        )
    if found.earlier:
        yield f"Not counted: earlier tests, with other shares or models ({', '.join(found.earlier)})."
    for arm in arms:
        if len(arm.versions) > 1:
            yield f"{arm.name} has served {len(arm.versions)} versions; they are counted together."
    if len(arms) > 2:
        yield "With several challengers, one of them seems better by chance more often than one time in twenty."
    has_feedback = any(arm.feedback for arm in arms)
    if has_feedback and any(arm.beside_first and arm.beside_first.rate for arm in arms):
        yield ONE_LOOK
