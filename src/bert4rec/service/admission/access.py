"""Who may ask for what, and how often: keys with names, roles and limits.

A plain file has one key a line, and each may do everything. A file that ends in .toml has a table for each key:

    [shop]
    key = "…"            # or sha256 = "…", its hexadecimal digest, so that the file holds no secret
    role = "write"       # read, write or admin
    limit = 50           # requests a second; without it there is no limit
    burst = 100          # how many may come at once; as many as the limit where it is not said

No message and no log line contains a key or a part of one.
"""

import hashlib
import hmac
import logging
import math
import re
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from bert4rec.errors import Bert4RecError, NotFoundError, UsageError
from bert4rec.service.http.messages import Headers
from bert4rec.service.problems import ProblemError

Role = Literal["read", "write", "admin"]
"""read: what changes nothing; write: also events and deletions; admin: also which model serves."""
RANK: dict[str, int] = {role: rank for rank, role in enumerate(get_args(Role))}
"""Each role may do what those before it may."""
SHORTEST_KEY = 16
"""Characters of a key in a .toml file: 64 bits, if they are hexadecimal digits drawn at random."""
SMALLEST_LIMIT, LARGEST_LIMIT = 0.001, 1_000_000
LOG_EVERY = 60.0
"""Seconds from one line on a kind of refusal to the next."""
FIELDS = ("key", "sha256", "role", "limit", "burst")
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
HEX_DIGEST = re.compile(r"[0-9A-Fa-f]{64}")
VISIBLE = re.compile(r"[!-~]+")
NO_DIGEST = hashlib.sha256(b"").digest()
Clock = Callable[[], float]
log = logging.getLogger("bert4rec.service")


@dataclass(frozen=True)
class Key:
    """A known key: its digest is of one length with all others, and useless to anybody who reads this memory."""

    name: str
    """For logs: its table, or its line ("line 3")."""
    role: Role
    digest: bytes = field(repr=False)
    limit: float | None = None
    """Requests a second."""
    burst: float = 1.0


class Keys:
    """The known keys. Limits count in each process.

    With several workers each of them grants its share, the limit divided by their number, so that all together grant
    the limit. A client that keeps a single connection reaches a single worker and gets one share; one that uses
    several connections gets nearer to the whole. A burst is shared in the same way, but is at least one request.
    """

    def __init__(self, path: Path, keys: list[Key], *, workers: int, clock: Clock) -> None:
        self._path, self._keys = path, keys
        self._workers, self._clock = workers, clock
        self._buckets = {key.digest: self._bucket(key) for key in self._keys if key.limit}
        self._refusals = Refusals(clock)
        self._trouble = ""

    @classmethod
    def read(cls, path: Path, *, workers: int = 1, clock: Clock = time.monotonic) -> "Keys":
        """The keys of a file; `workers` is how many processes share the limits. A wrong file is a UsageError."""
        return cls(path, read_keys(path), workers=workers, clock=clock)

    def __len__(self) -> int:
        return len(self._keys)

    def reload(self) -> None:
        """Read the file again. One that has become unreadable or wrong changes nothing but the log, once."""
        try:
            keys = read_keys(self._path)
        except Bert4RecError as error:
            if str(error) != self._trouble:
                log.error("The API keys cannot be read again; the known ones stay valid: %s", error)
            self._trouble = str(error)
            return
        if keys != self._keys or self._trouble:
            log.info("API keys read again: %d known.", len(keys))
        self._trouble = ""
        known = {key.digest: key for key in self._keys}
        # Whose limit stays the same must not get a full bucket by a change of another key.
        self._buckets = {
            key.digest: self._buckets[key.digest] if _same_limit(key, known) else self._bucket(key)
            for key in keys
            if key.limit
        }
        self._keys = keys

    def admit(self, headers: Headers, role: Role) -> Key:
        """The key of a request that may do what needs this role; otherwise a ProblemError: 401, 403 or 429.

        The key is sent as `Authorization: Bearer KEY` or as `X-API-Key: KEY`, or as both if they are equal. Two
        different ones are refused even if one of them is right: which one was meant would be a guess. Authorization
        of another scheme is not meant for this service, as behind a proxy that asks for a password of its own: it
        neither helps nor harms. Neither does a header without a key in it.

        Only what is admitted counts towards the limit.
        """
        key = self._find(headers)
        if RANK[key.role] < RANK[role]:
            self._refusals.note(403, f"key {key.name}, role {key.role}, {role} needed")
            detail = f"This needs a key with the role {role}; {key.name} has the role {key.role}."
            raise ProblemError(403, "forbidden", detail)
        bucket = self._buckets.get(key.digest)
        if bucket and (seconds := bucket.take(self._clock())):
            self._refusals.note(429, f"key {key.name}, more than {key.limit:g} requests a second")
            raise ProblemError(
                429,
                "rate_limited",
                f"{key.name} may send {key.limit:g} requests a second.",
                headers={"Retry-After": str(math.ceil(seconds))},
            )
        return key

    def _find(self, headers: Headers) -> Key:
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        bearer = credentials.strip() if scheme.lower() == b"bearer" else b""
        plain = headers.get(b"x-api-key", b"").strip()
        digest = hashlib.sha256(bearer or plain).digest()
        if bearer and plain and not hmac.compare_digest(digest, hashlib.sha256(plain).digest()):
            raise self._unauthorized(
                "two different keys",
                "Two different keys were sent, as Authorization and as X-API-Key. Send one of them.",
            )
        found = None
        # All of them, always: the time taken says nothing about which key matched, or how nearly.
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        if found is None:
            raise self._unauthorized(
                "an unknown key" if bearer or plain else "no key",
                "A valid API key is required, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.",
            )
        return found

    def _unauthorized(self, reason: str, detail: str) -> ProblemError:
        self._refusals.note(401, reason)
        return ProblemError(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})

    def _bucket(self, key: Key) -> "Bucket":
        assert key.limit
        return Bucket(key.limit / self._workers, max(1.0, key.burst / self._workers), self._clock())


class Bucket:
    """A token bucket: a request takes one token, and as many as the limit flow in each second."""

    def __init__(self, rate: float, size: float, now: float) -> None:
        self._rate, self._size = rate, size
        self._tokens, self._then = size, now

    def take(self, now: float) -> float:
        """0 if there was a token; otherwise the seconds until there will be one."""
        self._tokens = min(self._size, self._tokens + (now - self._then) * self._rate)
        self._then = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self._rate


class Refusals:
    """Logs that requests are refused: for each reason a line a minute at most, not one for each request."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[tuple[int, str], tuple[float, int]] = {}
        """Reason → when it was logged last, and how often it was met since."""

    def note(self, status: int, reason: str) -> None:
        now = self._clock()
        told, silent = self._told.get((status, reason), (-math.inf, 0))
        if now - told < LOG_EVERY:
            self._told[status, reason] = told, silent + 1
            return
        self._told[status, reason] = now, 0
        before = f", and {silent} more since the last line on this" if silent else ""
        log.warning("A request was refused with %d: %s%s.", status, reason, before)


def read_keys(path: Path) -> list[Key]:
    """The keys of a file: tables if it ends in .toml, otherwise lines."""
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except FileNotFoundError as error:
        raise NotFoundError(f"`api_key_file`: {path} does not exist.") from error
    except OSError as error:
        raise UsageError(f"`api_key_file`: {path} cannot be read: {error.strerror}.") from error
    is_toml = path.suffix.lower() == ".toml"
    keys = _read_tables(content, path) if is_toml else _read_lines(content)
    if not keys:
        how = "a table for each key" if is_toml else "one key a line"
        raise UsageError(f"`api_key_file`: {path} contains no key. Write {how}, or omit `api_key_file`.")
    return keys


def _read_lines(content: bytes) -> list[Key]:
    """One key a line; empty lines and lines that begin with # do not count. A repeated key counts once."""
    keys: dict[bytes, Key] = {}
    for number, line in enumerate(content.splitlines(), 1):
        given = line.strip()
        if given and not given.startswith(b"#"):
            digest = hashlib.sha256(given).digest()
            keys.setdefault(digest, Key(f"line {number}", "admin", digest))
    return list(keys.values())


def _read_tables(content: bytes, path: Path) -> list[Key]:
    try:
        tables = tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise _wrong(path, "not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        # The message may quote what stands there, so only what is known to be harmless is taken from it. Nor is the
        # error kept as the cause: it may hold the whole text of the file.
        raise _wrong(path, _toml_trouble(str(error))) from None
    keys: dict[bytes, Key] = {}
    for name, table in tables.items():
        key = _read_table(name, table, path)
        if key.digest in keys:
            raise _wrong(path, f"[{keys[key.digest].name}] and [{name}] have the same key; give each its own")
        keys[key.digest] = key
    return list(keys.values())


def _toml_trouble(message: str) -> str:
    place = re.search(r"at line \d+, column \d+", message)
    where = f" ({place[0]})" if place else ""
    if double := re.match(rf"Cannot declare \('({NAME.pattern})',\) twice", message):
        return f"[{double[1]}] is there twice{where}; give each key a name of its own"
    return f"not valid TOML{where}"


def _read_table(name: str, table: object, path: Path) -> Key:
    if not isinstance(table, dict):
        raise _wrong(path, f"the field {_shown(name)} is in no table; write [NAME] above the fields of a key")
    if not NAME.fullmatch(name):
        allowed = "at most 64 letters, digits, dots, dashes, _ and @"
        raise _wrong(path, f"a table is called {_shown(name)}; names are {allowed}")
    if unknown := sorted(table.keys() - set(FIELDS)):
        raise _wrong(
            path, f"[{name}] has the unknown field {_shown(unknown[0])}; known are {', '.join(FIELDS)}"
        )
    role = table.get("role")
    if not isinstance(role, str) or role not in RANK:
        found = "none" if role is None else _shown(role)
        raise _wrong(path, f"[{name}]: role must be {', '.join(RANK)}; found {found}")
    digest = _digest(name, table, path)
    if "limit" not in table:
        if "burst" in table:
            raise _wrong(path, f"[{name}] has burst without limit; add a limit, or omit the burst")
        return Key(name, cast(Role, role), digest)
    limit = _number(name, table, "limit", SMALLEST_LIMIT, path)
    burst = _number(name, table, "burst", 1.0, path) if "burst" in table else max(1.0, limit)
    return Key(name, cast(Role, role), digest, limit, burst)


def _digest(name: str, table: Mapping[str, object], path: Path) -> bytes:
    given = [table[field] for field in ("key", "sha256") if field in table]
    if len(given) != 1:
        found = "both" if given else "none"
        raise _wrong(path, f"[{name}] must have either key or sha256; found {found}")
    (value,) = given
    if "key" in table:
        if not isinstance(value, str) or len(value) < SHORTEST_KEY or not VISIBLE.fullmatch(value):
            what = f"text of at least {SHORTEST_KEY} visible ASCII characters, without blanks"
            raise _wrong(path, f"[{name}]: key must be {what}")
        return hashlib.sha256(value.encode()).digest()
    if not isinstance(value, str) or not HEX_DIGEST.fullmatch(value) or bytes.fromhex(value) == NO_DIGEST:
        raise _wrong(path, f"[{name}]: sha256 must be the digest of a key: text of 64 hexadecimal digits")
    return bytes.fromhex(value)


def _number(name: str, table: Mapping[str, object], which: str, smallest: float, path: Path) -> float:
    value = table[which]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not smallest <= value <= LARGEST_LIMIT
    ):
        raise _wrong(path, f"[{name}]: {which} must be a number from {smallest:g} to {LARGEST_LIMIT:,}")
    return float(value)


def _shown(given: object) -> str:
    """What was found, unless it is as long as a key: somebody may have put one in the wrong place."""
    if isinstance(given, str) and len(given) < SHORTEST_KEY and given.isprintable():
        return repr(given)
    return "something else"


def _wrong(path: Path, what: str) -> UsageError:
    return UsageError(f"`api_key_file`: {path}: {what}.")


def _same_limit(key: Key, known: Mapping[bytes, Key]) -> bool:
    before = known.get(key.digest)
    return before is not None and (before.limit, before.burst) == (key.limit, key.burst)
