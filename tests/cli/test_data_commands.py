"""`prepare` and `stats` as a user meets them: real processes, exit codes, streams."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import polars as pl
import pytest

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.evaluation.judge import judge_among_negatives
from bert4rec.models.model import make_scorer
from bert4rec.models.pop import Pop
from bert4rec.settings.networks import PopConfig


def bert4rec(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bert4rec", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_log(path: Path, users: int = 6, actions: int = 6) -> Path:
    rows = [
        (f"u{user}", f"i{(user + step) % 9}", 1_600_000_000 + step)
        for user in range(users)
        for step in range(actions)
    ]
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(path)
    return path


def test_results_go_to_stdout_and_messages_to_stderr(tmp_path: Path) -> None:
    run = bert4rec("prepare", write_log(tmp_path / "log.csv"), "-o", tmp_path / "d", "--json")
    assert run.returncode == 0
    assert json.loads(run.stdout)["users"] == 6
    assert "Columns: user = user_id, item = item_id, time = timestamp." in run.stderr
    assert "Times are seconds since 1970." in run.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["prepare", "LOG"], 2, "-o is missing: the folder to write the dataset to"),
        (["prepare", "LOG", "-o", "NEW", "--min-user-actoins", "3"], 2, "Did you mean --min-user-actions"),
        (["prepare", "-o", "NEW"], 2, "SOURCE is required: a file"),
        (["prepare", "LOG", "-o", "OLD"], 2, "--overwrite"),
        (["prepare", "LOG", "-o", "NEW", "--split", "time"], 2, "--test-from"),
        (["prepare", "LOG", "-o", "NEW", "--from", "LOG"], 2, "named data set"),
        (["prepare", "synthetic", "-o", "NEW", "--from", "LOG"], 2, "named data set"),
        (
            ["prepare", "synthetic", "-o", "NEW", "--user-col", "user"],
            2,
            "--separator and --encoding are for files",
        ),
        (["prepare", "ml-1m", "-o", "NEW", "--encoding", "klingon"], 2, "the form of ml-1m is known"),
        (["prepare", "ml-1m", "-o", "NEW", "--separator", "::"], 2, "the form of ml-1m is known"),
        (["prepare", "ml-1m", "-o", "NEW", "--drop-bad-rows"], 2, "the form of ml-1m is known"),
        (
            ["prepare", "LOG", "-o", "NEW", "--separator", "^"],
            3,
            "--separator '^' not found in the first line",
        ),
        (
            ["prepare", "LOG", "-o", "NEW", "--time-format", "day"],
            2,
            "--time-format: 'day' does not describe a date",
        ),
        (["prepare", "LOG", "-o", "NEW", "--time-format", "%d/%m/%Y"], 3, "Expected dates written %d/%m/%Y"),
        (
            ["prepare", "LOG", "-o", "NEW", "--time-col", "none", "--time-format", "%Y"],
            2,
            "--time-format requires a time column",
        ),
        (["prepare", "LOG", "-o", "NEW", "--seed", "-1"], 2, 'Invalid value "-1" for --seed. Must be >= 0.'),
        (["demo", "-o", "NEW", "--seed", "-1"], 2, 'Invalid value "-1" for --seed. Must be >= 0.'),
        (
            ["prepare", "LOG", "-o", "NEW", "--min-user-actions", "99"],
            3,
            "--min-user-actions 99 leaves none of 36",
        ),
        (
            ["prepare", "LOG", "-o", "NEW", "--item-col", "thing"],
            3,
            "Columns: user_id, item_id, timestamp",
        ),
        (["prepare", "ml-2m", "-o", "NEW"], 4, "Did you mean the data set ml-"),
        (["prepare", "ml-1m", "--from", "nowhere.zip", "-o", "NEW"], 4, "nowhere.zip does not exist"),
        (["stats", "NEW"], 4, "does not exist"),
        (["stats", "OLD", "--plot", "picture.bmp"], 2, "must end in .png"),
    ],
)
def test_mistakes_get_their_exit_code_and_one_line(
    tmp_path: Path, arguments: list[str], code: int, complaint: str
) -> None:
    places = {"LOG": write_log(tmp_path / "log.csv"), "NEW": tmp_path / "new", "OLD": tmp_path / "old"}
    assert bert4rec("prepare", places["LOG"], "-o", places["OLD"]).returncode == 0
    run = bert4rec(*(places.get(argument, argument) for argument in arguments))
    assert run.returncode == code
    assert complaint in run.stderr
    assert run.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in run.stderr
    assert run.stdout == "" or arguments[0] == "stats"
    assert not places["NEW"].exists()


def test_an_impossible_split_leaves_the_old_dataset_alone(tmp_path: Path) -> None:
    log, target = write_log(tmp_path / "log.csv"), tmp_path / "d"
    assert bert4rec("prepare", log, "-o", target).returncode == 0
    run = bert4rec(
        "prepare", log, "-o", target, "--overwrite", "--split", "time", "--test-from", "2030-01-01"
    )
    assert run.returncode == 3
    assert "The log runs from 2020-09-13" in run.stderr
    assert bert4rec("stats", target).returncode == 0


def test_bad_times_are_refused_by_line_or_dropped_with_the_option_that_the_error_names(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "log.csv")
    log.write_text(log.read_text() + "u0,i7,soon\nu1,i8,later\n")
    refused = bert4rec("prepare", log, "-o", tmp_path / "d")
    assert refused.returncode == 3
    assert f"2 of 38 times in column 'timestamp' cannot be read: 'soon' ({log}:38), 'later' ({log}:39)." in (
        refused.stderr
    )
    assert "bert4rec prepare LOG --drop-bad-rows leaves such rows out." in refused.stderr
    dropped = bert4rec("prepare", log, "-o", tmp_path / "d", "--drop-bad-rows", "--json")
    assert json.loads(dropped.stdout)["actions"] == 36
    assert "--drop-bad-rows dropped 2 of 38 actions, whose time cannot be read: 'soon'" in dropped.stderr


def test_line_numbers_are_printed_as_numbers(tmp_path: Path) -> None:
    """A colon, 100 and a colon once became a picture."""
    rows = ["user,item,time"] + [f"u{i % 5},i{i % 7},{1_600_000_000 + i}" for i in range(98)] + ["short"]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    assert (
        "log.csv:100: expected 3 fields"
        in bert4rec("prepare", tmp_path / "log.csv", "-o", tmp_path / "d").stderr
    )


def test_a_catalogue_says_how_many_items_it_describes(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("sku,product_name\ni1,Tea\ni2,Jam\nother,Nothing\n")
    run = bert4rec(
        "prepare", write_log(tmp_path / "log.csv"), "--items", tmp_path / "items.csv", "-o", tmp_path / "d"
    )
    assert "2 of 9 items are described (title)." in run.stderr


def test_the_advice_to_name_an_encoding_works_for_a_catalogue(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_bytes("sku,product_name\ni1,Thé\n".encode("latin-1"))
    prepare = (
        "prepare",
        write_log(tmp_path / "log.csv"),
        "--items",
        tmp_path / "items.csv",
        "-o",
        tmp_path / "d",
    )
    advised = bert4rec(*prepare)
    assert advised.returncode == 3
    assert (
        "items.csv:2 is not UTF-8 text. If you know its encoding, name it, as in --encoding latin-1"
        in advised.stderr
    )
    assert bert4rec(*prepare, "--encoding", "latin-1").returncode == 0
    assert "Thé" in Dataset.open(tmp_path / "d").items()["title"].to_list()


def test_an_archive_with_an_unusual_log_and_its_catalogue(tmp_path: Path) -> None:
    rows = [f"{user}||{(user + step) % 9}.0||{step + 1:02}/02/2024" for user in range(6) for step in range(6)]
    with zipfile.ZipFile(tmp_path / "shop.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sales.txt", "\n".join(["who||sku||day", *rows]))
        archive.writestr("goods.csv", "sku,product_name\n0,Thé\n1,Jam\n".encode())
    run = bert4rec(
        *("prepare", tmp_path / "shop.zip/sales.txt", "--items", tmp_path / "shop.zip/goods.csv"),
        *(
            "--user-col",
            "who",
            "--separator",
            "||",
            "--time-format",
            "%d/%m/%Y",
            "-o",
            tmp_path / "d",
            "--json",
        ),
    )
    assert "Times are dates written %d/%m/%Y." in run.stderr
    assert "2 of 9 items are described (title)." in run.stderr
    found = json.loads(run.stdout)
    assert (found["name"], found["users"], found["first_day"], found["last_day"]) == (
        "sales",
        6,
        "2024-02-01",
        "2024-02-06",
    )
    assert Dataset.open(tmp_path / "d").items()["id"].dtype == pl.Int64


def test_stats_notices_a_changed_file(tmp_path: Path) -> None:
    bert4rec("prepare", write_log(tmp_path / "log.csv"), "-o", tmp_path / "d")
    content = bytearray((tmp_path / "d" / "sequences.npy").read_bytes())
    content[-1] ^= 1
    (tmp_path / "d" / "sequences.npy").write_bytes(content)
    run = bert4rec("stats", tmp_path / "d")
    assert run.returncode == 3
    assert "sequences.npy has changed" in run.stderr


def test_stats_draws_a_picture(tmp_path: Path) -> None:
    bert4rec("prepare", "synthetic", "-o", tmp_path / "d")
    run = bert4rec("stats", tmp_path / "d", "--plot", tmp_path / "picture.png")
    assert run.returncode == 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_prepares_the_same_synthetic_data(tmp_path: Path) -> None:
    checksums = []
    for i, seed in enumerate(("1", "1", "2")):
        assert bert4rec("prepare", "synthetic", "--seed", seed, "-o", tmp_path / str(i)).returncode == 0
        dataset = Dataset.open(tmp_path / str(i))
        checksums.append((dataset.checksum, dataset.manifest["files"]["negatives-popularity.npy"]["sha256"]))
    assert checksums[0] == checksums[1] != checksums[2]


@pytest.mark.parametrize(
    ("name", "file", "counts", "hit_rate"),
    [
        ("ml-1m", "ml-1m/ml-1m.txt.gz", (6040, 3416, 999_611), 0.1358),
        ("beauty", "beauty/beauty.txt.gz", (40226, 54542, 353_962), 0.0762),
    ],
)
def test_the_papers_files_give_its_counts_and_its_pop(
    real_data: Path, tmp_path: Path, name: str, file: str, counts: tuple[int, int, int], hit_rate: float
) -> None:
    """POP checks candidates, ranking and metrics at once: HR@10 within a few percent of Table 2."""
    run = bert4rec("prepare", name, "--from", real_data / file, "-o", tmp_path / "d")
    assert "Table 1 has" not in run.stderr, "no difference from the paper's counts"
    found = json.loads(bert4rec("stats", tmp_path / "d", "--json").stdout)
    assert (found["users"], found["items"], found["actions"]) == counts
    dataset = Dataset.open(tmp_path / "d")
    split = make_split(dataset)
    pop = Pop.fit(dataset, split.training_end("test"), PopConfig("all"))
    metrics = judge_among_negatives(make_scorer(pop), dataset, split, "test", "cpu")
    assert metrics["HR@10"] == pytest.approx(hit_rate, rel=0.08)


def test_raw_movielens_and_dirty_steam_reviews_are_read(real_data: Path, tmp_path: Path) -> None:
    old = json.loads(
        bert4rec("prepare", "ml-100k", "--from", real_data / "ml-100k", "-o", tmp_path / "a", "--json").stdout
    )
    assert (old["users"], old["items"], old["actions"]) == (943, 1682, 100_000)
    assert Dataset.open(tmp_path / "a").items()["title"][0] == "Star Wars (1977)"
    new = json.loads(
        bert4rec(
            "prepare", "ml-20m", "--from", real_data / "ml-latest-small", "-o", tmp_path / "b", "--json"
        ).stdout
    )
    assert (new["users"], new["items"], new["actions"]) == (671, 9066, 100_004)
    steam = real_data / "steam-australian"
    run = bert4rec(
        "prepare", steam / "reviews.tsv.gz", "--items", steam / "games.tsv.gz", "-o", tmp_path / "c", "--json"
    )
    dirty = json.loads(run.stdout)
    assert "rows without time were dropped" in run.stderr
    assert dirty["repeats"] > 0
    assert dirty["ties"] > 0
    assert Dataset.open(tmp_path / "c").items()["title"].null_count() < dirty["items"]


def test_what_may_be_chosen_instead_is_told_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = bert4rec("compare", "one", "other", "--protocol", "among-all-items-of-the-catalogue")
    assert run.returncode == 2
    assert run.stderr.startswith(
        'Error: Invalid value "among-all-items-of-the-catalogue" for --protocol. Choose from:'
    )
    assert '"sampled", "full"' in " ".join(run.stderr.split())
