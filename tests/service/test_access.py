"""Keys: who may ask for what, how often, and what is said about it."""

import hashlib
import logging
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bert4rec.errors import Bert4RecError, NotFoundError, UsageError
from bert4rec.service.admission.access import Key, Keys, Role
from bert4rec.service.problems import ProblemError

SHOP, SHELF, BOSS = "shop-0123456789abcdef", "shelf-0123456789abcdef", "boss-0123456789abcdef"
TABLES = f"""
[shop]
key = "{SHOP}"
role = "write"
limit = 2
burst = 3

[shelf]
sha256 = "{hashlib.sha256(SHELF.encode()).hexdigest()}"
role = "read"

[boss]
key = "{BOSS}"
role = "admin"
"""


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(TABLES)
    return path


def bearer(key: str, **others: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + key.encode(), **header(**others)}


def header(**others: str) -> dict[bytes, bytes]:
    return {name.replace("_", "-").encode(): value.encode() for name, value in others.items()}


def refusal(keys: Keys, headers: dict[bytes, bytes], role: Role = "read") -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        keys.admit(headers, role)
    return caught.value


def read(tmp_path: Path, text: str | bytes, name: str = "keys.toml") -> Keys:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Keys.read(path)


# Plain files


def test_keys_of_a_plain_file_may_do_everything_and_are_named_by_their_line(tmp_path: Path) -> None:
    keys = read(tmp_path, "# for the shop\nfirst-secret\n\n  second-secret  \r\n", "keys")
    assert len(keys) == 2
    assert keys.admit(bearer("first-secret"), "admin").name == "line 2"
    assert keys.admit(header(x_api_key="second-secret"), "admin").name == "line 4"
    for unknown in ("# for the shop", "for the shop", "first-secret second-secret", ""):
        assert refusal(keys, header(x_api_key=unknown)).status == 401


def test_a_key_that_stands_twice_in_a_plain_file_counts_once(tmp_path: Path) -> None:
    keys = read(tmp_path, "one\ntwo\none\n", "keys.txt")
    assert len(keys) == 2
    assert keys.admit(bearer("one"), "read").name == "line 1"


@pytest.mark.parametrize("name", ["keys", "keys.toml"])
def test_a_mark_of_the_encoding_at_the_beginning_is_no_part_of_a_key(tmp_path: Path, name: str) -> None:
    text = f'[shop]\nkey="{SHOP}"\nrole="read"' if name.endswith("toml") else SHOP
    keys = read(tmp_path, b"\xef\xbb\xbf" + text.encode(), name)
    assert keys.admit(bearer(SHOP), "read")


@pytest.mark.parametrize("name", ["keys", "keys.toml"])
def test_a_file_without_keys_that_is_missing_or_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"`api_key_file`: .* contains no key"):
        read(tmp_path, "# nothing\n", name)
    with pytest.raises(NotFoundError, match=r"`api_key_file`: .* does not exist"):
        Keys.read(tmp_path / "missing" / name)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        Keys.read(tmp_path)


# Files with names and roles


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[shop]\nrole = 'read'", r"\[shop\] must have either key or sha256; found none"),
        ("[shop]\nkey='K'\nsha256='K'\nrole='read'", r"\[shop\] must have either .* found both"),
        ("[shop]\nkey = 'K'", r"\[shop\]: role must be read, write, admin; found none"),
        ("[shop]\nkey = 'K'\nrole = 'owner'", r"\[shop\]: role must be .* found 'owner'"),
        ("[shop]\nkey = 'K'\nrole = ['read']", r"\[shop\]: role must be .* found something else"),
        ("[shop]\nkey = 'K'\nrole = 'K'", r"\[shop\]: role must be .* found something else"),
        (
            "[shop]\nkey = 'K'\nrole = 'read'\nlimt = 5",
            r"\[shop\] has the unknown field 'limt'; known are key",
        ),
        ("[shop]\nK = 'K'\nrole = 'read'", r"\[shop\] has the unknown field something else"),
        ("[shop.web]\nkey = 'K'\nrole = 'read'", r"\[shop\] has the unknown field 'web'"),
        ("key = 'K'\nrole = 'read'", r"the field 'key' is in no table"),
        ("[[shop]]\nkey = 'K'\nrole = 'read'", r"the field 'shop' is in no table"),
        ("['a b']\nkey = 'K'\nrole = 'read'", r"a table is called 'a b'; names are"),
        ('["a\\nb"]\nkey = "K"\nrole = "read"', r"a table is called something else; names are"),
        ("[shop]\nkey = ''\nrole = 'read'", r"\[shop\]: key must be text of at least 16 visible"),
        ("[shop]\nkey = '0123456789abcde'\nrole = 'read'", r"\[shop\]: key must be text of at least 16"),
        ("[shop]\nkey = 'K K'\nrole = 'read'", r"\[shop\]: key must be .* without blanks"),
        ("[shop]\nkey = 'Kü'\nrole = 'read'", r"\[shop\]: key must be .* ASCII"),
        ("[shop]\nkey = 1234567890123456\nrole = 'read'", r"\[shop\]: key must be text"),
        ("[shop]\nsha256 = 'K'\nrole = 'read'", r"\[shop\]: sha256 must be the digest of a key"),
        (f"[shop]\nsha256 = '{hashlib.sha256().hexdigest()}'\nrole = 'read'", r"\[shop\]: sha256 must be"),
        ("[shop]\nkey = 'K'\nrole = 'read'\nburst = 5", r"\[shop\] has burst without limit"),
        (
            "[shop]\nkey='K'\nrole='read'\n[shop]\nkey='K'\nrole='read'",
            r"\[shop\] is there twice \(at line 4",
        ),
        ("[a]\nkey='K'\nrole='read'\n[b]\nkey='K'\nrole='admin'", r"\[a\] and \[b\] have the same key"),
        ("K\n", r"not valid TOML \(at line 1, column \d+\)"),
        ("[shop]\nkey = K\n", r"not valid TOML \(at line 2, column \d+\)"),
        ("[shop]\nkey = 'K'\nkey = 'K'\n", r"not valid TOML \(at line 3, column \d+\)"),
        ("[K", r"not valid TOML"),
        (f"[shop]\nlimit = {'1' * 5000}", r"not valid TOML"),
        (f"[shop]\nlimit = {'[' * 5000}", r"not valid TOML"),
    ],
)
def test_a_wrong_table_is_refused_by_name_and_its_key_is_not_quoted(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text.replace("K", SHOP))
    told = str(caught.value)
    assert told.startswith(f"`api_key_file`: {tmp_path / 'keys.toml'}: ")
    assert told.count(". ") == 0 and told.endswith(".")
    assert SHOP not in told and caught.value.__cause__ is None


@pytest.mark.parametrize("which", ["limit", "burst"])
@pytest.mark.parametrize(
    "value", ["0", "-1", "nan", "inf", "-inf", "true", "'5'", "1e-9", "1" + "0" * 400, "[1]"]
)
def test_a_limit_that_is_no_positive_number_is_refused(tmp_path: Path, which: str, value: str) -> None:
    limit = "limit = 5\n" if which == "burst" else ""
    with pytest.raises(UsageError, match=rf"\[shop\]: {which} must be a number from"):
        read(tmp_path, f"[shop]\nkey = '{SHOP}'\nrole = 'read'\n{limit}{which} = {value}")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not UTF-8 text"):
        read(tmp_path, b"[shop]\nkey = '\xff'")


TOKENS = st.sampled_from(
    [SHOP, "'", '"', "=", "\n", "[", "]", "key", "role", "read", "limit", "5", ".", "\\", " "]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.lists(TOKENS, max_size=25).map("".join))
@example(f"{SHOP} = {{{SHOP} = 1, {SHOP} = 2}}")
@example(f"a.{SHOP}.b = 1\n[a.{SHOP}]\n")
def test_no_message_about_a_broken_file_contains_its_key(tmp_path: Path, text: str) -> None:
    try:
        read(tmp_path, text)
    except Bert4RecError as error:
        if f"[{SHOP}]" not in text.replace(" ", ""):  # the name of a table is no secret
            assert SHOP not in str(error)


def test_the_digest_of_a_key_is_as_good_as_the_key_in_any_case_of_its_letters(tmp_path: Path) -> None:
    digest = hashlib.sha256(SHELF.encode()).hexdigest()
    keys = read(tmp_path, f"[shelf]\nsha256 = '{digest.upper()}'\nrole = 'read'")
    assert keys.admit(bearer(SHELF), "read").name == "shelf"
    assert refusal(keys, bearer(digest)).status == 401


# Which key a request carries


@pytest.mark.parametrize(
    "headers",
    [
        bearer(SHOP),
        {b"authorization": b"bearer   " + SHOP.encode() + b" "},
        header(x_api_key=SHOP),
        bearer(SHOP, x_api_key=SHOP),
        bearer("", x_api_key=SHOP),
        bearer(SHOP, x_api_key=""),
        {b"authorization": b"Basic dXNlcjpwYXNz", **header(x_api_key=SHOP)},
    ],
)
def test_a_known_key_is_admitted(file: Path, headers: dict[bytes, bytes]) -> None:
    assert Keys.read(file).admit(headers, "write").name == "shop"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Basic " + SHOP.encode()},
        {b"authorization": SHOP.encode()},
        bearer("wrong"),
        bearer(SHOP[:-1]),
        bearer(SHOP + "x"),
        bearer("\xff"),
        header(x_api_key=f"{SHOP}, {SHOP}"),
        header(x_api_key=""),
    ],
)
def test_no_key_or_an_unknown_one_is_unauthorized(file: Path, headers: dict[bytes, bytes]) -> None:
    problem = refusal(Keys.read(file), headers)
    assert (problem.status, problem.code) == (401, "unauthorized")
    assert problem.headers == {"WWW-Authenticate": "Bearer"}
    assert "A valid API key is required" in problem.detail


@pytest.mark.parametrize(
    ("first", "second"), [(SHOP, "wrong"), ("wrong", SHOP), (SHOP, BOSS), ("wrong", "bad")]
)
def test_two_different_keys_are_refused_though_one_may_be_right(file: Path, first: str, second: str) -> None:
    problem = refusal(Keys.read(file), bearer(first, x_api_key=second))
    assert (problem.status, problem.code) == (401, "unauthorized")
    assert "Two different keys were sent" in problem.detail
    assert problem.headers == {"WWW-Authenticate": "Bearer"}


# Roles


@pytest.mark.parametrize(("key", "may"), [(SHELF, 1), (SHOP, 2), (BOSS, 3)])
def test_a_role_may_do_what_it_says_and_what_lesser_roles_may(file: Path, key: str, may: int) -> None:
    keys = Keys.read(file)
    roles: tuple[Role, ...] = ("read", "write", "admin")
    for role in roles[:may]:
        keys.admit(bearer(key), role)
    for role in roles[may:]:
        problem = refusal(keys, bearer(key), role)
        assert (problem.status, problem.code) == (403, "forbidden")
        assert f"a key with the role {role};" in problem.detail
        assert f"has the role {roles[may - 1]}." in problem.detail


# Limits


def test_a_burst_is_admitted_at_once_and_then_as_many_as_the_limit_says(file: Path, clock: Clock) -> None:
    keys = Keys.read(file, clock=clock)
    for _ in range(3):
        keys.admit(bearer(SHOP), "write")
    problem = refusal(keys, bearer(SHOP), "write")
    assert (problem.status, problem.code) == (429, "rate_limited")
    assert problem.headers == {"Retry-After": "1"}
    assert "2 requests a second" in problem.detail
    clock.now += 0.5
    keys.admit(bearer(SHOP), "write")
    assert refusal(keys, bearer(SHOP), "write").status == 429
    clock.now += 3600
    for _ in range(3):
        keys.admit(bearer(SHOP), "write")
    assert refusal(keys, bearer(SHOP), "write").status == 429


def test_a_slow_limit_says_when_to_try_again_and_then_admits(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f"[shop]\nkey = '{SHOP}'\nrole = 'read'\nlimit = 0.1\n")
    keys = Keys.read(path, clock=clock)
    keys.admit(bearer(SHOP), "read")
    clock.now += 0.5
    problem = refusal(keys, bearer(SHOP))
    assert problem.headers == {"Retry-After": "10"}
    clock.now += 10
    keys.admit(bearer(SHOP), "read")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    limit=st.floats(0.01, 500),
    burst=st.floats(1, 300),
    pauses=st.lists(st.floats(0, 3), min_size=1, max_size=150),
)
def test_never_more_than_the_burst_and_what_flowed_in_is_admitted(
    tmp_path: Path, limit: float, burst: float, pauses: list[float]
) -> None:
    clock, path = Clock(), tmp_path / "keys.toml"
    path.write_text(f"[shop]\nkey = '{SHOP}'\nrole = 'read'\nlimit = {limit}\nburst = {burst}\n")
    keys, admitted = Keys.read(path, clock=clock), 0
    for pause in pauses:
        clock.now += pause
        try:
            keys.admit(bearer(SHOP), "read")
            admitted += 1
        except ProblemError as problem:
            wait = int(problem.headers["Retry-After"])
            assert 1 <= wait <= 1 + 1 / limit
    assert 1 <= admitted <= burst + limit * sum(pauses) + 1e-6


def test_only_the_key_that_asks_too_often_is_limited(file: Path, clock: Clock) -> None:
    keys = Keys.read(file, clock=clock)
    for _ in range(1000):
        keys.admit(bearer(BOSS), "admin")
        keys.admit(bearer(SHELF), "read")
    for _ in range(3):
        keys.admit(bearer(SHOP), "read")


def test_what_is_forbidden_does_not_count_towards_the_limit(file: Path, clock: Clock) -> None:
    keys = Keys.read(file, clock=clock)
    for _ in range(10):
        assert refusal(keys, bearer(SHOP), "admin").status == 403
    for _ in range(3):
        keys.admit(bearer(SHOP), "write")


def test_workers_share_limit_and_burst_but_each_admits_one(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f"[shop]\nkey = '{SHOP}'\nrole = 'read'\nlimit = 4\nburst = 8\n")
    for workers in (2, 16):
        keys = Keys.read(path, workers=workers, clock=clock)
        for _ in range(max(1, 8 // workers)):
            keys.admit(bearer(SHOP), "read")
        assert refusal(keys, bearer(SHOP)).headers["Retry-After"] == str(-(-workers // 4))
        clock.now += workers / 4
        keys.admit(bearer(SHOP), "read")
        assert refusal(keys, bearer(SHOP)).status == 429


# Reading again


def test_new_keys_are_known_and_old_ones_forgotten_after_reading_again(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys.read(file)
    file.write_text(f"[new]\nkey = '{'n' * 16}'\nrole = 'read'\n")
    with caplog.at_level(logging.INFO, "bert4rec.service"):
        keys.reload()
        keys.reload()
    assert [record.getMessage() for record in caplog.records] == ["API keys read again: 1 known."]
    assert len(keys) == 1
    assert keys.admit(bearer("n" * 16), "read").name == "new"
    assert refusal(keys, bearer(SHOP)).status == 401


def test_a_file_that_became_wrong_leaves_the_keys_and_one_line(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys.read(file)
    with caplog.at_level(logging.INFO, "bert4rec.service"):
        file.write_text(f"[shop]\nkey = {SHOP}")
        keys.reload()
        keys.reload()
        assert keys.admit(bearer(SHOP), "write").name == "shop"
        file.unlink()
        keys.reload()
        assert keys.admit(bearer(BOSS), "admin").name == "boss"
        file.write_text(TABLES)
        keys.reload()
    levels = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in levels] == ["ERROR", "ERROR", "INFO"]
    assert "not valid TOML" in levels[0][1] and "does not exist" in levels[1][1]
    assert levels[2][1] == "API keys read again: 3 known."
    assert SHOP not in caplog.text


def test_reading_again_fills_no_bucket_unless_its_limit_has_changed(file: Path, clock: Clock) -> None:
    keys = Keys.read(file, clock=clock)
    for _ in range(3):
        keys.admit(bearer(SHOP), "write")
    file.write_text(TABLES.replace("[boss]", "[chief]"))
    keys.reload()
    assert refusal(keys, bearer(SHOP), "write").status == 429
    file.write_text(TABLES.replace("burst = 3", "burst = 4"))
    keys.reload()
    for _ in range(4):
        keys.admit(bearer(SHOP), "write")
    file.write_text(TABLES.replace("limit = 2\nburst = 3", ""))
    keys.reload()
    for _ in range(100):
        keys.admit(bearer(SHOP), "write")


# The log


def test_refusals_are_logged_by_reason_once_a_minute_with_their_number_and_without_keys(
    file: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys.read(file, clock=clock)
    with caplog.at_level(logging.DEBUG, "bert4rec.service"):
        for _ in range(50):
            refusal(keys, bearer("wrong-0123456789abcdef"))
            refusal(keys, bearer(SHELF), "write")
            refusal(keys, bearer(SHOP, x_api_key=BOSS))
        for _ in range(3):
            keys.admit(bearer(SHOP), "write")
        for _ in range(50):
            refusal(keys, bearer(SHOP), "write")
        clock.now += 59
        refusal(keys, bearer(SHELF), "write")
        clock.now += 1
        refusal(keys, bearer(SHELF), "write")
        clock.now += 60
        refusal(keys, bearer(SHELF), "write")
    assert [record.getMessage() for record in caplog.records] == [
        "A request was refused with 401: an unknown key.",
        "A request was refused with 403: key shelf, role read, write needed.",
        "A request was refused with 401: two different keys.",
        "A request was refused with 429: key shop, more than 2 requests a second.",
        "A request was refused with 403: key shelf, role read, write needed, and 50 more since the last line on this.",
        "A request was refused with 403: key shelf, role read, write needed.",
    ]
    assert "0123456789" not in caplog.text


def test_what_is_said_of_a_key_does_not_contain_it(file: Path) -> None:
    keys = Keys.read(file)
    key = keys.admit(bearer(SHOP), "read")
    assert isinstance(key, Key)
    assert SHOP not in repr(key) and key.digest.hex() not in repr(key) and str(key.digest) not in repr(key)
    for headers in (bearer("wrong" * 5), bearer(SHELF), bearer(SHOP, x_api_key=BOSS)):
        problem = refusal(keys, headers, "admin")
        document = f"{problem.detail} {problem.headers} {problem.errors} {problem}"
        assert not any(secret in document for secret in (SHOP, SHELF, BOSS, "wrong"))


def test_names_may_be_any_word_of_plain_characters(tmp_path: Path) -> None:
    name = string.ascii_letters[:40] + "._@-09"
    keys = read(tmp_path, f"['{name}']\nkey = '{SHOP}'\nrole = 'read'")
    assert keys.admit(bearer(SHOP), "read").name == name
