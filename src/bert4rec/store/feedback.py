"""What became of recommendations: how many each user of a test got, of which model, and what these led to.

No answer is stored: the id of a recommendation tells what is needed to credit feedback. Of its 32 hexadecimal digits,
12 are the milliseconds since 1970, so that ids sort by time, 6 stand for the model and the test it was in, 10 for the
user, and the rest are random. A user stands here under a digest of the id: a pseudonym, for whoever knows the ids of
users can compute it.
"""

import re
import time
from collections.abc import Sequence
from hashlib import blake2b
from random import getrandbits
from typing import NamedTuple

from bert4rec.store.events import HistoryStore

A_DAY = 86_400_000_000
"""Microseconds."""
CLICK = "click"
"""The kind of feedback that names no other, and of events without a type."""
_SUBJECT = blake2b(digest_size=5, person=b"bert4rec subject")  # a copy is made faster than a new one
_ID = re.compile("([0-9a-f]{12})([0-9a-f]{6})([0-9a-f]{10})[0-9a-f]{4}")


class Served(NamedTuple):
    """A version of a model, as an arm of a test served it."""

    mark: str
    """What stands for it in ids of recommendations."""
    test: str
    """The names and shares of all arms: `champion=90:challenger=10`; empty outside of a test."""
    arm: str
    version: str

    @classmethod
    def of(cls, test: str, arm: str, version: str) -> "Served":
        whole = "\0".join((test, arm, version)).encode()
        return cls(blake2b(whole, digest_size=3, person=b"bert4rec model").hexdigest(), test, arm, version)


class Exposure(NamedTuple):
    """How many recommendations a user got on a day."""

    subject: str
    mark: str
    timestamp: int
    """The beginning of the day (UTC), in microseconds since 1970."""
    recommendations: int


class Feedback(NamedTuple):
    """What somebody did with a recommended item."""

    recommendation_id: str
    item_id: str
    kind: str
    timestamp: int
    """Microseconds since 1970."""


class Recommended(NamedTuple):
    """What the id of a recommendation says."""

    moment: int
    """Milliseconds since 1970."""
    mark: str
    subject: str


def subject_of(user: str) -> str:
    """What stands for a user in ids of recommendations, and for whatever else decides who is who in a test."""
    digest = _SUBJECT.copy()
    digest.update(user.encode())
    return digest.hexdigest()


def new_id(mark: str, subject: str | None) -> str:
    """Of a recommendation. Where nobody is known to have asked, chance stands for the user: nobody counts it."""
    moment = time.time_ns() // 1_000_000
    if subject is None:
        return f"{moment:012x}{mark}{getrandbits(56):014x}"  # no secret: to ask the system takes longer
    return f"{moment:012x}{mark}{subject}{getrandbits(16):04x}"


def read_id(recommendation_id: str) -> Recommended | None:
    """None if it is not an id that `new_id` makes."""
    found = _ID.fullmatch(recommendation_id)
    return Recommended(int(found[1], 16), found[2], found[3]) if found else None


# In the store. SQLite and PostgreSQL understand the same words.

TABLES = ("bert4rec_served", "bert4rec_exposures", "bert4rec_feedback")
SCHEMA = """
CREATE TABLE IF NOT EXISTS bert4rec_served (
    mark text PRIMARY KEY,
    test text NOT NULL,
    arm text NOT NULL,
    version text NOT NULL,
    last_seen bigint NOT NULL);
CREATE TABLE IF NOT EXISTS bert4rec_exposures (
    subject text NOT NULL,
    mark text NOT NULL,
    timestamp bigint NOT NULL,
    recommendations bigint NOT NULL,
    PRIMARY KEY (subject, mark, timestamp));
CREATE TABLE IF NOT EXISTS bert4rec_feedback (
    recommendation_id text NOT NULL,
    item_id text NOT NULL,
    kind text NOT NULL,
    timestamp bigint NOT NULL,
    subject text NOT NULL,
    PRIMARY KEY (recommendation_id, item_id, kind));
CREATE INDEX IF NOT EXISTS bert4rec_feedback_by_subject ON bert4rec_feedback (subject)"""

SEE = """
INSERT INTO bert4rec_served (mark, test, arm, version, last_seen) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (mark) DO UPDATE SET last_seen = excluded.last_seen"""
EXPOSE = """
INSERT INTO bert4rec_exposures (subject, mark, timestamp, recommendations) VALUES (%s, %s, %s, %s)
ON CONFLICT (subject, mark, timestamp)
DO UPDATE SET recommendations = bert4rec_exposures.recommendations + excluded.recommendations"""
ADD = """
INSERT INTO bert4rec_feedback (recommendation_id, item_id, kind, timestamp, subject) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING"""


def add_exposures(store: HistoryStore, served: Sequence[Served], exposures: Sequence[Exposure]) -> None:
    """Add to what each user has got. `served` are the models of the exposures."""
    now = time.time_ns() // 1000
    # In one order, so that two who write the same rows to PostgreSQL wait for each other and not in a circle.
    store.change((SEE, [(*each, now) for each in sorted(served)]), (EXPOSE, sorted(exposures)))


def add_feedback(store: HistoryStore, feedback: Sequence[Feedback]) -> list[bool]:
    """Keep feedback; whether each was new. The same recommendation, item and kind counts once."""
    rows = [(*each, each.recommendation_id[18:28]) for each in feedback]
    return store.change((ADD, rows))


TESTS = "SELECT test, arm, version, last_seen FROM bert4rec_served WHERE test <> '' ORDER BY last_seen"
GIVEN = """
SELECT given.subject, served.arm, sum(given.recommendations), min(given.timestamp)
FROM bert4rec_exposures AS given JOIN bert4rec_served AS served ON served.mark = given.mark
WHERE served.test = %s AND given.timestamp >= %s GROUP BY given.subject, served.arm"""
# Whoever sends an event with the id of a recommendation has said as much as by feedback.
LED_TO = """
SELECT substr(found.id, 19, 10), served.arm, count(*)
FROM (SELECT recommendation_id AS id, item_id FROM bert4rec_feedback WHERE kind = %s
      UNION SELECT recommendation_id, item_id FROM bert4rec_events
      WHERE recommendation_id IS NOT NULL AND coalesce(event_type, 'click') = %s) AS found
JOIN bert4rec_served AS served ON served.mark = substr(found.id, 13, 6)
WHERE served.test = %s AND substr(found.id, 1, 12) >= %s
GROUP BY substr(found.id, 19, 10), served.arm"""


class CountedTest(NamedTuple):
    """What was counted of a test."""

    test: str
    versions: dict[str, list[str]]
    """Of each arm, oldest first."""
    users: dict[str, dict[str, tuple[int, int]]]
    """Of each arm: user → recommendations and feedback."""
    first_day: int | None
    """Microseconds since 1970."""
    last_seen: int
    uncredited: int
    """Feedback on recommendations that were not counted, because they were for nobody in particular."""
    earlier: list[str]
    """Tests before this one: of the same models with other shares, or of others."""


def read_test(store: HistoryStore, kind: str, since: int) -> CountedTest | None:
    """What was counted of the newest test since the beginning of a day; None if there was no test.

    Other shares are another test. Days on which an arm had many users and days on which it had few must not be added
    up: what differs between the days would look like a difference between the models.
    """
    if store.path is None:  # PostgreSQL is asked by a service in a hurry as a rule
        store.query("SELECT set_config('statement_timeout', '0', false)")
    served = store.query(TESTS)
    if not served:
        return None
    test, *_, last_seen = served[-1]
    versions: dict[str, list[str]] = {}
    for _, arm, version, _ in (row for row in served if row[0] == test):
        versions.setdefault(arm, []).append(version)
    day = since // A_DAY * A_DAY
    given = store.query(GIVEN, test, day)
    led_to = {(subject, arm): int(count) for subject, arm, count in _led_to(store, kind, test, day)}
    users: dict[str, dict[str, tuple[int, int]]] = {}
    for subject, arm, count, _ in given:
        users.setdefault(arm, {})[subject] = int(count), led_to.pop((subject, arm), 0)
    earlier = list(dict.fromkeys(row[0] for row in served if row[0] != test))
    first_day = min((row[3] for row in given), default=None)
    return CountedTest(test, versions, users, first_day, last_seen, sum(led_to.values()), earlier)


def _led_to(store: HistoryStore, kind: str, test: str, since: int) -> list[tuple[str, str, int]]:
    rows = store.query(LED_TO, kind, kind, test, f"{max(0, since) // 1000:012x}")
    return [(subject, arm, count) for subject, arm, count in rows]
