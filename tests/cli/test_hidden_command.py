"""`bert4rec store hide`, `unhide` and `hidden`, as an operator types them."""

import re
from pathlib import Path

import pytest

from bert4rec.cli import app
from bert4rec.errors import Bert4RecError, NotFoundError, UsageError
from bert4rec.store.events import open_store
from bert4rec.store.hiding import Hiding


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "history.db"
    open_store(f"sqlite:///{path}").close()
    return str(path)


def run(*words: str) -> None:
    app(["store", *words], result_action="return_value")


def hidings(store: str) -> list[Hiding]:
    history = open_store(f"sqlite:///{store}")
    found = history.hidden()
    history.close()
    assert found is not None
    return found.hidings


def test_items_are_hidden_listed_and_shown_again(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("hide", store, "tea", "coffee", "tea", "--from", "2020-01-01", "--until", "2020-02-01T12:00+01:00")
    run("hide", store, "--", "-milk")
    run("hide", store, "bread", "--from", "2120-01-01")
    assert capsys.readouterr().err.splitlines() == [
        "Hidden from 2020-01-01 on, until 2020-02-01 11:00:00: 2 items.",
        "Hidden from now on: 1 item.",
        "Hidden from 2120-01-01 on: 1 item.",
    ]
    run("hidden", store)
    told = capsys.readouterr()
    listed = [re.split(r"\s{2,}", line.rstrip()) for line in told.out.splitlines()]
    assert listed[0] == ["item", "state", "from", "until"]
    assert listed[1] == ["bread", "to come", "2120-01-01"]
    assert listed[2][:2] == ["-milk", "hidden"]
    assert listed[3:] == [[item, "over", "2020-01-01", "2020-02-01 11:00:00"] for item in ("coffee", "tea")]
    assert told.err == "Hidden now: 1 item.\n"
    run("unhide", store, "tea", "bread", "cake")
    assert capsys.readouterr().err == "May be recommended again: 2 items; 1 item not in the list.\n"
    assert [each.item_id for each in hidings(store)] == ["-milk", "coffee"]


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--from", "2020-01-01", "--until", "2019-01-01"], UsageError, "`until` must be later than `from`"),
        (["--until", "2019-01-01"], UsageError, "`until` must be later than now; found 2019-01-01"),
        (["--until", "soon"], UsageError, "'soon' is not a date"),
    ],
)
def test_mistakes_hide_nothing(store: str, words: list[str], kind: type[Bert4RecError], message: str) -> None:
    with pytest.raises(kind, match=message):
        run("hide", store, "tea", *words)
    with pytest.raises(UsageError, match="Name one item or more"):
        run("hide", store)
    assert hidings(store) == []


@pytest.mark.parametrize("words", [["hide", "tea"], ["unhide", "tea"], ["hidden"]])
def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(NotFoundError, match=r"no\.db does not exist"):
        run(words[0], str(tmp_path / "no.db"), *words[1:])
    assert list(tmp_path.iterdir()) == []
