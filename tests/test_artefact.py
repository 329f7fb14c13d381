"""Folders are whole or not there, and damage is named."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bert4rec.api.runs import load
from bert4rec.artefact import held, new_folder, read_manifest, verify_files, write_manifest, wrong_folder
from bert4rec.cli.options import as_options
from bert4rec.cli.prepare_command import stats_command
from bert4rec.errors import DataError, NotFoundError, UsageError
from bert4rec.training.run import Run

OLDER = Path(__file__).parent / "older"
"""A dataset, runs and an exported model."""


def write(target: Path, text: str = "content", **options: bool) -> None:
    with new_folder(target, "thing.json", **options) as folder:
        (folder / "data.txt").write_text(text)
        write_manifest(folder, "thing.json", {"format": "bert4rec thing", "schema": 1})


def read(target: Path) -> None:
    verify_files(target, read_manifest(target, "thing.json", kind="dataset", schema=1))


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_finished_folder_has_its_files_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "new" / "thing")
    read(tmp_path / "new" / "thing")
    assert names_in(tmp_path / "new") == ["thing"]


def test_an_error_half_way_leaves_the_old_folder_whole(tmp_path: Path) -> None:
    write(tmp_path / "thing", "old")
    with (
        pytest.raises(OSError, match="disk full"),
        new_folder(tmp_path / "thing", "thing.json", overwrite=True) as folder,
    ):
        (folder / "data.txt").write_text("half")
        raise OSError("disk full")
    assert (tmp_path / "thing" / "data.txt").read_text() == "old"
    assert names_in(tmp_path) == ["thing"]


def test_an_existing_folder_is_replaced_only_on_request(tmp_path: Path) -> None:
    write(tmp_path / "thing", "old")
    with pytest.raises(UsageError, match="`overwrite=True`"):
        write(tmp_path / "thing", "new")
    write(tmp_path / "thing", "new", overwrite=True)
    assert (tmp_path / "thing" / "data.txt").read_text() == "new"


def test_a_folder_that_something_else_wrote_is_never_replaced(tmp_path: Path) -> None:
    """Not even where it holds JSON, or something else of ours."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    for name, text in (("package.json", "{}"), ("thing.json", "[1]"), ("thing.json", '{"schema": 1}')):
        (tmp_path / "photos" / name).write_text(text)
        with pytest.raises(
            UsageError, match=r"is not a bert4rec folder .*thing\.json.* will not be overwritten"
        ):
            write(tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "cat.jpg").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_something_else_wrote_meanwhile_is_not_replaced(
    tmp_path: Path, overwrite: bool
) -> None:
    with (
        pytest.raises(UsageError, match="will not be overwritten"),
        new_folder(tmp_path / "thing", "thing.json", overwrite=overwrite) as folder,
    ):
        write_manifest(folder, "thing.json", {"format": "bert4rec thing", "schema": 1})
        (tmp_path / "thing").mkdir()
        (tmp_path / "thing" / "thesis.txt").write_text("years of work")
    assert names_in(tmp_path / "thing") == ["thesis.txt"]
    assert names_in(tmp_path) == ["thing"]


def test_of_two_that_make_the_same_folder_the_first_to_finish_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`overwrite=True`"), new_folder(tmp_path / "thing", "thing.json"):
        write(tmp_path / "thing", "the other's")
    assert (tmp_path / "thing" / "data.txt").read_text() == "the other's"


def test_behind_a_link_the_folder_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    write(tmp_path / "models" / "one", "old")
    current, other = tmp_path / "current", tmp_path / "other"
    current.symlink_to("models/one")
    other.symlink_to(current)
    with pytest.raises(UsageError, match="current already exists"):
        write(current, "new")
    write(other, "new", overwrite=True)
    assert (current.readlink(), other.readlink()) == (Path("models/one"), current)
    assert (tmp_path / "models" / "one" / "data.txt").read_text() == "new"
    assert names_in(tmp_path / "models") == ["one"]
    assert sorted(names_in(tmp_path)) == ["current", "models", "other"]


def test_a_link_to_nothing_gets_its_folder(tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "models" / "one")
    write(link)
    read(tmp_path / "models" / "one")
    assert link.is_symlink()


def test_a_link_to_nothing_can_be_held(tmp_path: Path) -> None:
    link, folder = tmp_path / "run", tmp_path / "runs" / "one"
    link.symlink_to(folder)
    with held(link, wait=False):
        with pytest.raises(UsageError, match="Another process is at work"), held(folder, wait=False):
            pass
        (link / "config.json").write_text("{}")
    assert names_in(folder) == ["config.json"]
    assert link.is_symlink()


def test_a_changed_a_cut_and_a_missing_file_are_named(tmp_path: Path) -> None:
    thing = tmp_path / "thing"
    write(thing)
    (thing / "data.txt").write_text("CONTENT")
    with pytest.raises(DataError, match=r"data\.txt has changed"):
        read(thing)
    (thing / "data.txt").write_text("cut")
    with pytest.raises(DataError, match=r"data\.txt has 3 bytes where 7 were written"):
        read(thing)
    (thing / "data.txt").unlink()
    with pytest.raises(DataError, match=r"data\.txt is missing"):
        read(thing)


def test_foreign_folders_and_other_schema_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match="is not a dataset"):
        read(tmp_path)
    (tmp_path / "thing.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        read(tmp_path)
    (tmp_path / "thing.json").write_text(json.dumps({"schema": 99, "files": {}}))
    with pytest.raises(DataError, match="schema version 99, this version of bert4rec reads 1"):
        read(tmp_path)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_command_while_it_writes_leaves_no_half_written_folder(
    tmp_path: Path, stop: signal.Signals
) -> None:
    """A real process, stopped at the moment its folder is half full."""
    program = f"""
import sys
from pathlib import Path
import bert4rec.cli
from bert4rec.artefact import new_folder

def half_way():
    with new_folder(Path({str(tmp_path / "thing")!r}), "thing.json") as folder:
        (folder / "data.txt").write_text("half")
        print("writing", flush=True)
        sys.stdin.read()

bert4rec.cli.app.command(half_way, name="half-way")
sys.argv = ["bert4rec", "half-way"]
bert4rec.cli.main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout and process.stdout.readline() == b"writing\n"
    process.send_signal(stop)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert names_in(tmp_path) == []


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of each kind, a folder of somebody else's and a log, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for kind in ("dataset", "run", "model"):
        Path(kind).mkdir()
        (Path(kind) / f"{kind}.json").touch()
    Path("photos").mkdir()
    Path("log.csv").touch()


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("path", "kinds", "code", "told"),
    [
        (
            "log.csv",
            ["dataset"],
            2,
            "is a file; expected a dataset. Prepare it first: bert4rec prepare log.csv -o dataset.",
        ),
        ("log.csv", ["run"], 2, "is a file; expected a run, which bert4rec train DATASET -o run writes."),
        (
            "run",
            ["dataset"],
            4,
            "is a run; expected a dataset, which bert4rec prepare LOG -o dataset writes. A run is for bert4rec "
            "evaluate RUN, bert4rec recommend RUN and bert4rec export RUN.",
        ),
        (
            "dataset",
            ["run"],
            4,
            "is a dataset; expected a run. Train with it first: bert4rec train dataset -o run.",
        ),
        (
            "dataset",
            ["run", "model"],
            4,
            "is a dataset; expected a run or an exported model. Train with it first: bert4rec train dataset -o run.",
        ),
        (
            "model",
            ["run"],
            4,
            "is an exported model; expected a run, which bert4rec train DATASET -o run writes. An exported model is "
            "for bert4rec recommend model and bert4rec serve model.",
        ),
        (
            "dataset",
            ["model"],
            4,
            "is a dataset; expected an exported model, which bert4rec export RUN writes. A dataset "
            "is for bert4rec train dataset -o run.",
        ),
        ("photos", ["dataset"], 4, "is not a dataset, which bert4rec prepare LOG -o dataset writes."),
        (
            "nowhere",
            ["run"],
            4,
            "does not exist; expected a run, which bert4rec train DATASET -o run writes.",
        ),
    ],
)
def test_a_folder_in_the_place_of_another_is_told_which_command_wants_what(
    path: str, kinds: list[str], code: int, told: str
) -> None:
    error = wrong_folder(Path(path), *kinds)
    assert as_options(str(error)) == f"{path} {told}"
    assert error.exit_code == code


def flipped(content: bytes, rng: random.Random) -> bytes:
    """With one bit that is not as it was."""
    damaged = bytearray(content)
    damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


OPEN: dict[str, Callable[[Path], object]] = {
    "dataset/dataset.json": lambda folder: stats_command(folder, json=True),
    "bert4rec/run.json": lambda folder: load(folder).recommend([1006]),
    "bert4rec/config.json": Run.open,
    "model/model.json": lambda folder: load(folder, force=True).recommend([1006]),
}
"""Manifest → what somebody does with its folder."""


@pytest.mark.parametrize("name", OPEN)
def test_no_flipped_bit_of_a_manifest_is_loaded_or_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(OLDER / Path(name).parent, tmp_path / "folder")
    manifest = Path(name).name.replace("config", "run")
    write_manifest(folder, manifest, json.loads((folder / manifest).read_text()))
    path = folder / Path(name).name
    OPEN[name](folder)
    content, rng = path.read_bytes(), random.Random(1)
    for _ in range(400):
        path.write_bytes(flipped(content, rng))
        with pytest.raises(DataError, match=re.escape(path.name)):
            OPEN[name](folder)


@pytest.mark.parametrize("name", ["dataset/dataset.json", "bert4rec/run.json", "model/model.json"])
def test_of_an_older_manifest_without_a_seal_no_flipped_bit_ends_in_a_traceback(
    name: str, tmp_path: Path
) -> None:
    """Some are loaded, such as one in the name of the data: nothing tells that it is not the right one."""
    folder = shutil.copytree(OLDER / Path(name).parent, tmp_path / "folder")
    path, rng = folder / Path(name).name, random.Random(2)
    content = path.read_bytes()
    OPEN[name](folder)
    for _ in range(300):
        path.write_bytes(flipped(content, rng))
        with suppress(DataError):
            OPEN[name](folder)
