"""`bert4rec ab`: a store as a service leaves it, with a truth that is known."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert4rec
from bert4rec.cli import app
from bert4rec.store.events import Event, HistoryStore, open_store
from bert4rec.store.feedback import A_DAY, Exposure, Feedback, Served, add_exposures, add_feedback, subject_of
from tests.service.conftest import postgres, store_url
from tests.service.servers import BERT4REC, PATIENCE

__all__ = ["postgres", "store_url"]
FIRST_DAY = 20_000
"""Since 1970: 2024-10-04."""


def id_of(served: Served, user: str, day: int, number: int) -> str:
    return f"{day * A_DAY // 1000:012x}{served.mark}{subject_of(user)}{number:04x}"


def fill(
    store: HistoryStore,
    arm: str,
    rate: float,
    users: int,
    *,
    test: str = "champion=50:challenger=50",
    day: int = FIRST_DAY,
) -> Served:
    """Users who got 20 recommendations each, of which so many led to a click."""
    rng = np.random.default_rng(len(arm))
    served = Served.of(test, arm, f"{arm}-1")
    names = [f"{arm}-{number}" for number in range(users)]
    add_exposures(
        store, [served], [Exposure(subject_of(name), served.mark, day * A_DAY, 20) for name in names]
    )
    add_feedback(
        store,
        [
            Feedback(id_of(served, name, day, number), "i", "click", day * A_DAY)
            for name in names
            for number in range(rng.binomial(20, rate))
        ],
    )
    return served


def outcome(store_url: str, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    app(["ab", store_url, *options, "--json"], result_action="return_value")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_better_model_is_named_with_how_much_and_how_sure(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(store_url)
    fill(store, "champion", 0.10, 400)
    fill(store, "challenger", 0.15, 400)
    store.close()
    found = outcome(store_url, capsys=capsys)
    champion, challenger = found["arms"]
    assert (champion["users"], champion["recommendations"], champion["share"]) == (400, 8000, 50)
    assert challenger["versions"] == ["challenger-1"]
    assert challenger["beside_first"]["verdict"] == "better"
    assert 0.3 < challenger["beside_first"]["rate"]["relative"] < 0.7
    assert found["since"] == "2024-10-04"
    (sentence,) = found["sentences"]
    assert sentence.startswith("challenger is better than champion: its click rate is ")
    app(["ab", store_url], result_action="return_value")
    said = capsys.readouterr()
    assert sentence in " ".join(said.out.split())
    assert "hold for one look" in " ".join(said.err.split())


def said(store: Path) -> tuple[list[str], str]:
    """Lines of the output, and what was warned of."""
    words = [BERT4REC, "ab", str(store)]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return found.stdout.splitlines(), found.stderr


def test_the_tables_fit_into_80_columns_and_no_name_is_broken(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'history.db'}")
    test = "champion=50:challenger-with-bert4rec=50"
    fill(store, "champion", 0.10, 1200, test=test)
    fill(store, "challenger-with-bert4rec", 0.15, 1200, test=test)
    store.close()
    lines, warned = said(tmp_path / "history.db")
    assert max(map(len, lines[:8])) <= 80
    assert lines[0].split() == ["arm", "share", "users", "shown", "click", "rate", "of", "users"]
    assert [line.split()[:4] for line in lines[1:3]] == [
        ["champion", "50", "1,200", "24,000"],
        ["challenger-with-bert4rec", "50", "1,200", "24,000"],
    ]
    assert lines[3:5] == ["", "challenger-with-bert4rec beside champion:"]
    assert [line.split()[0] for line in lines[5:8]] == ["of", "rate", "users"]
    assert lines[8] == ""
    assert "one look" in warned


def test_without_feedback_nothing_is_compared(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'history.db'}")
    fill(store, "champion", 0.0, 40)
    fill(store, "challenger", 0.0, 40)
    store.close()
    lines, warned = said(tmp_path / "history.db")
    assert [line.split()[0] for line in lines[:3]] == ["arm", "champion", "challenger"]
    assert " ".join(lines[3:]).split()[:5] == ["There", "is", "too", "little", "feedback"]
    assert "look" not in warned


def test_equal_models_are_told_apart_by_nobody_and_it_is_said_what_it_would_take(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(store_url)
    fill(store, "champion", 0.10, 300)
    fill(store, "challenger", 0.10, 300)
    store.close()
    (sentence,) = outcome(store_url, capsys=capsys)["sentences"]
    assert sentence.startswith("No difference between challenger and champion can be told: ")
    assert "more users are needed to find one of 5%" in sentence


def test_only_the_newest_test_counts_and_days_can_be_left_out(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(store_url)
    fill(store, "champion", 0.5, 50, test="champion=95:challenger=5")
    fill(store, "champion", 0.1, 30)
    fill(store, "challenger", 0.1, 31, day=FIRST_DAY + 1)
    store.close()
    found = outcome(store_url, capsys=capsys)
    assert [arm["users"] for arm in found["arms"]] == [30, 31]
    assert any("champion=95:challenger=5" in warning for warning in found["warnings"])
    later = outcome(store_url, "--since", "2024-10-05", capsys=capsys)
    assert [(arm["users"], arm["feedback"] > 0) for arm in later["arms"]] == [(0, False), (31, True)]
    assert later["since"] == "2024-10-05"


def test_feedback_counts_by_kind_and_events_with_the_id_of_a_recommendation_count_too(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(store_url)
    served = fill(store, "champion", 0.0, 10)
    shown = [id_of(served, f"champion-{number}", FIRST_DAY, 9) for number in range(4)]
    add_feedback(store, [Feedback(shown[0], "i", "purchase", 0), Feedback(shown[0], "j", "purchase", 0)])
    store.add(
        [
            Event("e1", "champion-0", "i", 1, "purchase", shown[0]),  # the same once more
            Event("e2", "champion-1", "i", 1, "purchase", shown[1]),
            Event("e3", "champion-2", "i", 1, None, shown[2]),
            Event("e4", "champion-3", "i", 1, "purchase", "of something else"),
            Event("e5", "champion-3", "i", 1, "purchase", None),
        ]
    )
    store.close()
    assert outcome(store_url, "--kind", "purchase", capsys=capsys)["arms"][0]["feedback"] == 3
    assert outcome(store_url, capsys=capsys)["arms"][0]["feedback"] == 1
    assert outcome(store_url, "--kind", "view", capsys=capsys)["arms"][0]["feedback"] == 0


def test_what_makes_a_test_doubtful_is_said(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(store_url)
    fill(store, "champion", 0.1, 300)
    served = fill(store, "challenger", 0.1, 200)
    other = Served.of(served.test, "challenger", "challenger-2")
    add_exposures(store, [other], [Exposure(subject_of("challenger-0"), other.mark, FIRST_DAY * A_DAY, 1)])
    add_feedback(store, [Feedback(id_of(served, "nobody", FIRST_DAY, 0), "i", "click", 0)])
    store.close()
    found = outcome(store_url, capsys=capsys)
    assert [arm["users"] for arm in found["arms"]] == [300, 200]
    said = "\n".join(found["warnings"])
    assert "The numbers of users, 300, 200, do not fit the shares, 50:50" in said
    assert "feedback of kind click on 1 items" in said
    assert "challenger has served 2 versions" in said


def test_a_store_without_a_test_is_told_how_to_make_one(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'history.db'}").close()
    for store, message in (("history.db", "No test is in this store"), ("nowhere.db", "does not exist")):
        found = subprocess.run(
            [BERT4REC, "ab", str(tmp_path / store)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert (found.returncode, message in " ".join(found.stderr.split())) == (4, True), found.stderr


def test_the_same_in_python(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'history.db'}")
    fill(store, "champion", 0.1, 100)
    fill(store, "challenger", 0.3, 100)
    store.close()
    found = bert4rec.ab(str(tmp_path / "history.db"), since="2024-01-01")
    assert found.arms[1].beside_first and found.arms[1].beside_first.verdict == "better"
