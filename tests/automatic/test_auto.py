"""One command from a log to a served model: real processes, killed in between, and the page in a real browser."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import Browser

import bert4rec
from bert4rec.training.run import Run
from tests.cli.test_data_commands import bert4rec as command
from tests.service.servers import running

NASTY = "<script>document.title = 'run'</script>"
"""A title as it may stand in a log."""
SECTIONS = [
    "The data",
    "How the models learned",
    "Which model is the best?",
    "For whom, and for which items?",
    "A few users",
    "What to do next",
]
LEAST = 0.001
"""Minutes: the least that can be planned is trained."""


def log_of(users: int = 60, actions: int = 8, items: int = 20) -> pl.DataFrame:
    """What follows is certain, so that every model which looks at the order is better than popularity."""
    rows = [
        (f"u{user}", f"i{(user + step) % items}", 1_600_000_000 + 60 * step, NASTY)
        for user in range(users)
        for step in range(actions)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp", "title"], orient="row")


@dataclass(frozen=True)
class Finished:
    folder: Path
    words: list[str]
    """The command."""
    refused: str
    """What was said to other options, when it had been killed."""
    first_said: str
    """Before it was killed."""
    said: str
    """By the command that went on."""
    done_before: dict[str, int]
    """Model → when its run was finished, of those that were when it was killed."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Killed while the second model is trained, asked for something else, then brought to its end."""
    where = tmp_path_factory.mktemp("auto")
    is_last = (pl.col("user_id") == "u0") & (pl.col("item_id") == "i7")
    log = log_of().with_columns(item_id=pl.when(is_last).then(pl.lit("only tested")).otherwise("item_id"))
    log.write_csv(where / "events.csv")
    words = ["auto", str(where / "events.csv"), "-o", str(where / "it's out"), f"--minutes={LEAST}"]
    with subprocess.Popen(
        [sys.executable, "-m", "bert4rec", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as begun:
        assert begun.stderr
        said = list[str]()
        for line in begun.stderr:
            said.append(line)
            if line.startswith("SASRec"):
                break
        begun.kill()
    assert said[-1].startswith("SASRec"), "it has come to the second model"
    refused = command(*words, "--seed", "2")
    assert refused.returncode == 2
    folder = where / "it's out"
    done = {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/run.json")}
    ended = command(*words)
    assert ended.returncode == 0, ended.stderr
    return Finished(folder, words, refused.stderr, "".join(said), ended.stderr, done)


def test_a_killed_command_goes_on_where_it_stopped(finished: Finished) -> None:
    assert "Going on. Done already: prepare, pop, bert4rec+." in finished.said
    assert finished.done_before.keys() >= {"pop", "bert4rec+"}
    for model, when in finished.done_before.items():
        assert (finished.folder / "runs" / model / "run.json").stat().st_mtime_ns == when, "not trained again"
    kept = json.loads((finished.folder / "auto.json").read_text())
    assert kept["finished"]
    assert list(kept["seconds"]) == ["prepare", "pop", "bert4rec+", "sasrec", "production", "export", "page"]
    assert (
        kept["metrics"]["pop"]["test"]["full"]["HR@10"]
        < kept["metrics"][kept["served"]]["test"]["full"]["HR@10"]
    )


def test_other_options_are_refused_in_a_folder_that_was_begun(finished: Finished) -> None:
    assert "was begun with --seed 1, not with --seed 2. Go on as it was begun, or" in finished.refused
    assert "start again with --overwrite." in finished.refused


def test_nothing_is_advised_that_cannot_be_done_here(finished: Finished) -> None:
    page = (finished.folder / "report.html").read_text()
    for option in ("--refit", "training.", "Try another"):
        assert option not in finished.first_said + finished.said + page


def test_what_is_finished_is_not_overwritten(finished: Finished) -> None:
    before = (finished.folder / "auto.json").read_bytes()
    again = command(*finished.words)
    assert again.returncode == 2
    assert "already exists. Choose another folder, or replace it with --overwrite." in again.stderr
    assert (finished.folder / "auto.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["no-such-log.csv"], "no-such-log.csv"),
        (["LOG", "--user-col", "who"], "who"),
        (["LOG", "--min-user-actions", "99"], "99"),
        (["LOG", "--device", "cuda:77"], "cuda:77"),
    ],
)
def test_a_typo_costs_nothing_of_a_finished_folder(
    finished: Finished, options: list[str], problem: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
    log = finished.words[1]
    words = [log if each == "LOG" else each for each in options]
    refused = command("auto", *words, "-o", str(finished.folder), "--overwrite")
    assert refused.returncode != 0
    assert problem in refused.stderr
    after = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
    assert after == before


def test_the_exported_model_was_trained_on_everything(finished: Finished) -> None:
    run = Run.open(finished.folder / "production")
    assert run.final_stage == "production"
    tested = Run.open(finished.folder / "runs" / run.model)
    assert run.metrics == tested.metrics, "the test items were looked at once"
    expected = bert4rec.load(run).recommend(["i1", "i2"], k=3)
    found = bert4rec.load(finished.folder / "model").recommend(["i1", "i2"], k=3)
    assert [item.item_id for item in found.items] == [item.item_id for item in expected.items]
    assert not (finished.folder / "model" / "samples.json").exists(), "nobody asked for it"


def test_the_page_has_all_sections_and_escapes_what_the_log_says(
    finished: Finished, browser: Browser
) -> None:
    outcome = json.loads((finished.folder / "auto.json").read_text())
    for width, scheme in ((1100, "light"), (390, "dark")):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        page, asked = context.new_page(), list[str]()
        page.on("request", lambda request: asked.append(request.url))  # noqa: B023
        page.goto((finished.folder / "report.html").as_uri())
        assert page.locator("h2").all_inner_texts() == SECTIONS
        assert page.title() == "events: what comes next"
        assert page.locator("script").count() == 0
        assert NASTY in page.locator(".user").first.inner_text()
        assert page.locator("svg polyline").count() == 2, "a curve for each model that learns"
        assert page.locator(".answer").inner_text() == outcome["sentence"]
        curves = page.locator("h2:has-text('How the models learned') + p").inner_text()
        for best in page.locator("svg circle title").all_text_contents():
            assert f": {best.removeprefix('best: ')} after " in curves, "the chart and its text agree"
        assert len(re.findall(r", \d\.\d{4} asked by .+?, the best way", curves)) == 1, "of BERT4Rec+"
        is_cut = page.locator(".wide").evaluate_all(
            "all => all.some(each => each.scrollWidth > each.clientWidth)"
        )
        assert is_cut == (width < 400)
        assert (
            page.locator(".wide").first.evaluate("each => getComputedStyle(each).backgroundImage") != "none"
        )
        # What so short a training reaches depends on the machine; the page must agree with the sentence.
        is_good = " is worth serving: " in outcome["sentence"]
        assert page.locator(".answer.good").count() == is_good
        is_behind = outcome["sentence"].startswith("Counting what follows")
        assert page.locator("tr.served").count() == (not is_behind)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        assert len(asked) == 1, "the page fetches nothing"
        context.close()


def test_the_commands_on_the_page_run_as_they_stand_there(finished: Finished, browser: Browser) -> None:
    page = browser.new_page()
    page.goto((finished.folder / "report.html").as_uri())
    shown = [shlex.split(text) for text in page.locator("pre code").all_inner_texts()]
    page.close()
    assert [words[1] for words in shown] == [
        "serve",
        "serve",
        "recommend",
        "tune",
        "evaluate",
        "store",
        "refresh",
    ]
    with running(Path(shown[1][2]), *shown[1][3:]) as server:
        assert server.address
    for words in (
        shown[2],
        shown[4],
        shown[5],
        [*shown[6], "--set", "training.steps=8", "--set", "model.dim=8"],
    ):
        run = command(*words[1:])
        assert run.returncode == 0, run.stderr
    assert pl.read_parquet(finished.folder / "recommendations.parquet")["user"].n_unique() == 60


def prepare_only(log: pl.DataFrame, folder: Path) -> None:
    """Stop as soon as the log is prepared."""
    with pytest.raises(KeyboardInterrupt):
        bert4rec.auto(log, folder, LEAST, should_stop=(folder / "dataset" / "dataset.json").exists)


def checksum(folder: Path) -> str:
    return bert4rec.Dataset.open(folder / "dataset").checksum


def train_badly(folder: Path, model: str, steps: int) -> None:
    """In the place of what `auto` would train."""
    small = {"training.steps": steps, "training.validate_every": steps, "model.layers": 1, "model.dim": 8}
    bert4rec.train(
        folder / "dataset",
        folder / "runs" / model,
        model=model,
        settings={**small, "model.heads": 1},
        select_by="ndcg@10:both",
        device="cpu",
    )


def test_a_baseline_that_is_better_on_the_validation_items_is_exported(tmp_path: Path) -> None:
    log = log_of()
    folder = tmp_path / "out"
    prepare_only(log, folder)
    train_badly(folder, "bert4rec+", steps=1)
    found = bert4rec.auto(log, folder, LEAST, device="cpu")
    assert found.served == "sasrec"
    assert Run.open(folder / "production").model == "sasrec"
    assert found.sentence.startswith("SASRec, the best on the validation items,")
    assert "What was exported is SASRec" in found.page.read_text()
    with pytest.raises(bert4rec.UsageError, match="already exists"):
        bert4rec.auto(log, folder, LEAST, device="cpu")


def test_where_counting_is_ahead_that_is_said_first_and_nothing_looks_like_a_success(
    tmp_path: Path, browser: Browser
) -> None:
    log, folder = tmp_path / "events.csv", tmp_path / "out"
    log_of().write_csv(log)
    with pytest.raises(KeyboardInterrupt):
        bert4rec.auto(log, folder, LEAST, should_stop=(folder / "dataset" / "dataset.json").exists)
    for model in ("bert4rec+", "sasrec"):
        train_badly(folder, model, steps=8)
    words = ["auto", str(log), "-o", str(folder), f"--minutes={LEAST}"]
    ended = command(*words)
    assert ended.returncode == 0, ended.stderr
    sentence = json.loads((folder / "auto.json").read_text())["sentence"]
    beginning = (
        r"Counting what follows the last item reaches 1\.0000 \(NDCG@10\), more than \S+, the best of the "
    )
    assert re.match(beginning + r"trained models \(0\.\d{4}\)\. More minutes may change that\.", sentence)
    assert "worth serving" not in sentence
    told = " ".join(ended.stdout.split())
    assert told.partition(sentence)[2], "the differences are told after it"
    page = browser.new_page()
    page.goto((folder / "report.html").as_uri())
    assert page.locator(".answer").inner_text() == sentence
    assert page.locator(".answer.good, tr.served").count() == 0
    page.close()


def test_another_frame_is_refused_in_a_folder_that_was_begun(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    prepare_only(log_of(), folder)
    with pytest.raises(bert4rec.UsageError, match="was made of another frame"):
        bert4rec.auto(log_of(items=19), folder, LEAST)


@pytest.mark.parametrize(
    ("log", "options", "problem"),
    [
        (log_of(users=1), {}, "The log has 1 user to test on; at least 2 are required"),
        (log_of(actions=2), {"min_user_actions": 1}, "leaves no users to validate or to test on"),
        (log_of(actions=3), {}, "`min_user_actions=5` leaves none of 180 actions"),
        (log_of(), {"user": "who"}, "who"),
        (log_of(), {"minutes": 0}, "`minutes` must be a number above 0"),
    ],
)
def test_a_log_that_cannot_be_judged_is_refused_and_leaves_nothing(
    log: pl.DataFrame, options: dict[str, object], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(bert4rec.Bert4RecError, match=re.escape(problem)):
        bert4rec.auto(log, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_starting_again_removes_neither_its_source_nor_what_others_put_there(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    prepare_only(log_of(), folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(bert4rec.UsageError, match=r"dataset lies in .*out, which is to be filled"):
        bert4rec.auto(folder / "dataset", folder, overwrite=True)
    assert (folder / "dataset").exists()
    with pytest.raises(bert4rec.UsageError, match=r"dataset lies in .*out, which is to be filled"):
        bert4rec.auto(bert4rec.Dataset.open(folder / "dataset"), folder, overwrite=True)
    before = checksum(folder)
    with pytest.raises(KeyboardInterrupt):
        other = log_of(items=19)
        bert4rec.auto(other, folder, LEAST, overwrite=True, should_stop=lambda: checksum(folder) != before)
    assert sorted(path.name for path in folder.iterdir()) == ["auto.json", "dataset", "notes.txt"]
    assert json.loads((folder / "auto.json").read_text())["seconds"].keys() == {"prepare"}


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(bert4rec.UsageError, match="is not a bert4rec folder"):
        bert4rec.auto(log_of(), tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
