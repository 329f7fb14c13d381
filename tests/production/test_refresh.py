"""A refresh: every step once, whatever interrupts it; and no worse model in service."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import bert4rec
from bert4rec.artefact import held
from bert4rec.cli import app
from bert4rec.cli.production.refresh_command import NOT_IN_SERVICE
from bert4rec.data.dataset import Dataset
from bert4rec.errors import Bert4RecError, DataError, NotFoundError, UsageError
from bert4rec.production.refresh import CURRENT, refresh
from bert4rec.store.transfer import opened
from bert4rec.training.run import Run
from tests.production.shop import SET, SHORT, add, fashion, open_shop, store_of
from tests.service.servers import BERT4REC, PATIENCE


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_shop(tmp_path_factory.mktemp("shop") / "dataset")


@pytest.fixture
def store(shop: Dataset, tmp_path: Path) -> Path:
    store_of(shop, tmp_path / "history.db")
    return tmp_path / "history.db"


def version_in_service(folder: Path) -> str:
    return str(json.loads((folder / CURRENT / "model.json").read_text())["version"])


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_a_model_that_is_worse_is_not_put_into_service_unless_forced(
    shop: Dataset, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "production"
    refresh(store, folder, settings=SHORT)
    good = version_in_service(folder)
    # What is popular stays so, and the first model knows that.
    old, new = shop.items()["id"].head(2).to_list()
    add(f"sqlite:///{store}", fashion(shop, old, new, 1))
    never_learns = [*SET, "--set=training.learning_rate=1e-9"]

    with pytest.raises(SystemExit) as end:
        app(["refresh", str(store), "-o", str(folder), *never_learns], result_action="return_value")

    assert end.value.code == NOT_IN_SERVICE
    assert "not put into service" in capsys.readouterr().err
    assert version_in_service(folder) == good
    [_, refused] = lines_of(folder)
    assert refused["model"] is None
    verdict = refused["verdict"]
    assert isinstance(verdict, dict)
    assert not verdict["accepted"]
    assert verdict["new"] < verdict["in_service"]
    assert verdict["high"] < 0, "beyond chance"
    assert 0 < verdict["users"] <= 120, "those who did something new since"
    [work] = (folder / "work").iterdir()
    trained = (work / "run" / "run.json").stat().st_mtime_ns
    forced = ["refresh", str(store), "-o", str(folder), *never_learns, "--force", "--json"]
    app(forced, result_action="return_value")
    assert version_in_service(folder) != good
    assert (work / "run" / "run.json").stat().st_mtime_ns == trained, "not trained again"
    [_, line] = lines_of(folder)
    assert line["model"] == version_in_service(folder)
    assert json.loads(capsys.readouterr().out)["verdict"]["reason"].startswith("Forced. ")


def until_there(path: Callable[[], list[Path]], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path() and process.poll() is None:
        assert time.monotonic() < deadline
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.01)


def command(store: Path, folder: Path) -> list[str]:
    return [BERT4REC, "refresh", str(store), "-o", str(folder), *SET]


ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Weights are the same to the last bit with the same number of threads."""


@pytest.fixture(scope="module")
def uninterrupted(shop: Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The version of the model that a refresh makes that nobody interrupts."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    store_of(shop, folder / "history.db")
    refreshing = command(folder / "history.db", folder / "production")
    subprocess.run(refreshing, env=ALONE, check=True, capture_output=True)
    return version_in_service(folder / "production")


@pytest.mark.parametrize("made", ["dataset/dataset.json", "run/resume-refit.safetensors", "verdict.json"])
def test_a_refresh_that_is_killed_goes_on_where_it_stopped(
    uninterrupted: str, store: Path, tmp_path: Path, made: str
) -> None:
    folder = tmp_path / "production"
    refreshing = command(store, folder)
    with subprocess.Popen(refreshing, env=ALONE, stderr=subprocess.DEVNULL) as process:
        until_there(lambda: list(folder.glob(f"work/*/{made}")), process)
        process.send_signal(signal.SIGKILL)
    [work] = (folder / "work").iterdir()
    prepared = (work / "dataset" / "dataset.json").stat().st_mtime_ns

    subprocess.run(refreshing, env=ALONE, check=True, capture_output=True)

    assert [each.name for each in (folder / "work").iterdir()] == [work.name], "the same, gone on with"
    assert (work / "dataset" / "dataset.json").stat().st_mtime_ns == prepared, "not made again"
    assert len(lines_of(folder)) == 1
    assert version_in_service(folder) == uninterrupted, "to the last bit"


def test_with_other_settings_it_begins_anew(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "production"
    stops = iter([False] * 5 + [True] * 1000)
    with pytest.raises(KeyboardInterrupt):
        refresh(store, folder, settings=SHORT, should_stop=lambda: next(stops))
    found = refresh(store, folder, settings={**SHORT, "training.steps": 30})
    training = Run.open(found.run).plan.config.training
    assert training
    assert training.steps == 30
    assert [each.name for each in (folder / "work").iterdir()] == [found.when], (
        "what the first had made is gone"
    )


def test_only_the_newest_models_are_kept_and_the_one_in_service(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "production"
    tiny = {**SHORT, "training.steps": 2, "training.validate_every": 1}
    first = refresh(store, folder, settings=tiny, keep=1)
    assert first.model
    for number in range(3):
        shutil.copytree(first.model, folder / "models" / f"2020010{number}T000000Z")
    (folder / "models" / "thesis").mkdir()
    (folder / "work" / "notes.txt").touch()
    second = refresh(store, folder, settings={**tiny, "training.steps": 3}, keep=2, force=True)
    assert sorted((folder / "models").iterdir()) == [first.model, second.model, folder / "models" / "thesis"]
    assert (folder / "work" / "notes.txt").exists(), "what is not ours stays"
    assert (folder / CURRENT).resolve() == second.model
    assert not list(folder.glob("work/*/events.parquet")), "a copy of everybody's events is not left behind"


def test_what_is_older_than_asked_for_does_not_count(shop: Dataset, store: Path, tmp_path: Path) -> None:
    first, second, third, fourth = shop.items()["id"].head(4).to_list()
    for day, (old, new) in enumerate([(first, second), (third, fourth)]):
        add(f"sqlite:///{store}", fashion(shop, old, new, day))
    found = refresh(
        store,
        tmp_path / "production",
        since="90d",
        min_user_actions=1,
        settings={**SHORT, "training.steps": 2, "training.validate_every": 1},
        force=True,
    )
    dataset = Dataset.open(found.run.parent / "dataset")
    assert dataset.num_actions == 480


def test_a_log_will_do_in_place_of_a_store_and_titles_come_from_a_file(shop: Dataset, tmp_path: Path) -> None:
    log = tmp_path / "events.parquet"
    shop.to_polars().write_parquet(log)
    (tmp_path / "items.csv").write_text(f"item_id,title\n{shop.items()['id'][0]},A lamp\n")
    tiny = {**SHORT, "training.steps": 2, "training.validate_every": 1}
    found = refresh(log, tmp_path / "production", items=tmp_path / "items.csv", settings=tiny, force=True)
    assert log.exists(), "it is not ours to delete"
    assert found.model
    assert bert4rec.load(found.model, force=True).catalogue.title_of(1) == "A lamp"


def test_two_at_once_are_refused(store: Path, tmp_path: Path) -> None:
    with held(tmp_path / "production", wait=False):
        done = subprocess.run(
            [sys.executable, "-m", "bert4rec", "refresh", str(store), "-o", str(tmp_path / "production")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == UsageError.exit_code
    assert "Another refresh is going on" in done.stderr


def test_a_folder_in_place_of_the_link_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "production" / CURRENT).mkdir(parents=True)
    with pytest.raises(UsageError, match="is not a link"):
        refresh(store, tmp_path / "production")


def test_where_nobody_acted_since_a_model_that_lost_much_is_refused(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "production"
    refresh(store, folder, settings=SHORT)
    good = version_in_service(folder)
    found = refresh(store, folder, settings={**SHORT, "training.learning_rate": 1e-9})
    assert found.model is None
    assert found.verdict.users == 0
    assert found.verdict.low is None, "not the same users, so no interval"
    assert version_in_service(folder) == good
    assert found.as_dict() == json.loads(json.dumps(found.as_dict()))


def test_what_fails_before_training_leaves_nothing_to_go_on_with(shop: Dataset, tmp_path: Path) -> None:
    """Today's log must not be that of the first try."""
    store, folder = tmp_path / "history.db", tmp_path / "production"
    with opened(f"sqlite:///{store}"):
        pass
    with pytest.raises(Bert4RecError, match="no actions"):
        refresh(store, folder, settings=SHORT)
    assert not list(folder.rglob("*.parquet"))
    store_of(shop, store)
    assert refresh(store, folder, settings=SHORT).model


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"model": "bert5rec"}, "bert5rec"),
        ({"model": "bpr-mf"}, "cannot be exported"),
        ({"minutes": 0}, "`minutes`"),
        ({"since": "yesterday"}, "not a date"),
        ({"since": "999999999y"}, "before the first date"),
        ({"items": "catlog.csv"}, "catlog.csv does not exist"),
        ({"keep": 0}, "`keep`"),
        ({"user": "buyer"}, "columns of a log"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    store: Path, tmp_path: Path, option: dict[str, Any], message: str
) -> None:
    with pytest.raises(Bert4RecError, match=message):
        refresh(store, tmp_path / "production", **option)
    assert not (tmp_path / "production").exists()


def test_a_wrong_address_makes_no_store_and_a_password_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"typo\.db does not exist"):
        refresh(f"sqlite:///{tmp_path}/typo.db", tmp_path / "production")
    assert not (tmp_path / "typo.db").exists()
    with pytest.raises(UsageError, match="two slashes") as refused:
        refresh("postgresql:/ann:secret@host/shop", tmp_path / "production")
    assert "secret" not in str(refused.value)


def test_a_model_in_service_that_cannot_be_read_is_told_before_training(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "production"
    tiny = {**SHORT, "training.steps": 2, "training.validate_every": 1}
    first = refresh(store, folder, settings=tiny, force=True)
    assert first.model
    (first.model / "bias.npy").write_bytes(b"damaged")
    with pytest.raises(DataError, match="The model in service cannot be read"):
        refresh(store, folder, settings={**tiny, "training.steps": 3})
    assert [each.name for each in (folder / "work").iterdir()] == [first.when]
    assert refresh(store, folder, settings={**tiny, "training.steps": 3}, force=True).model


def test_a_folder_of_something_else_is_refused(store: Path, shop: Dataset) -> None:
    with pytest.raises(UsageError, match="is a dataset"):
        refresh(store, shop.folder)


def test_it_says_what_the_next_model_will_not_know_of_items(
    shop: Dataset, store: Path, tmp_path: Path
) -> None:
    folder, said = tmp_path / "production", list[str]()
    tiny = {**SHORT, "training.steps": 2, "training.validate_every": 1}
    items = tmp_path / "items.csv"
    items.write_text(f"item_id,title,price\n{shop.items()['id'][0]},A lamp,12\n")
    refresh(store, folder, items=items, settings=tiny, force=True)
    refresh(store, folder, settings=tiny, force=True, say=said.append)
    assert any("title, price" in each for each in said)
