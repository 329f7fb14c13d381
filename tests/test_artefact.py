"""Folders are whole or not there, and damage is named."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert4rec.artefact import held, new_folder, read_manifest, verify_files, write_manifest
from bert4rec.errors import DataError, NotFoundError, UsageError


def write(target: Path, text: str = "content", **options: bool) -> None:
    with new_folder(target, "thing.json", **options) as folder:
        (folder / "data.txt").write_text(text)
        write_manifest(folder, "thing.json", {"format": "bert4rec thing", "schema": 1})


def read(target: Path) -> None:
    verify_files(target, read_manifest(target, "thing.json", kind="thing", schema=1))


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
    with pytest.raises(NotFoundError, match=r"has no thing\.json"):
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
