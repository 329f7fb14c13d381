"""Real processes, killed while they write a folder: at every step they take, and at random moments."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert4rec.artefact import new_folder, read_manifest, verify_files, write_manifest, wrong_folder

PATIENCE = 60
WRITE = """
import sys
from pathlib import Path
from bert4rec import artefact

def write(target, text):
    with artefact.new_folder(Path(target), "thing.json", overwrite=True) as folder:
        (folder / "data.txt").write_text(text)
        artefact.write_manifest(folder, "thing.json", {"format": "bert4rec thing", "schema": 1, "text": text})
"""
KILLED_AT_A_STEP = (
    WRITE
    + """
import os, signal
target, text, last, can_exchange = sys.argv[1:]
if can_exchange == "no":
    artefact._exchange = lambda one, other: False
steps = 0

def step(event, _):
    # What Python tells of itself: every file opened, folder made, name changed, call into C.
    global steps
    steps += 1
    if steps == int(last):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(step)
write(target, text)
"""
)
KILLED_AT_SOME_MOMENT = (
    WRITE
    + """
print("writing", flush=True)
for number in range(10**9):
    write(sys.argv[1], str(number) * 1000)
"""
)


def write(target: Path, text: str) -> None:
    with new_folder(target, "thing.json", overwrite=True) as folder:
        (folder / "data.txt").write_text(text)
        write_manifest(folder, "thing.json", {"format": "bert4rec thing", "schema": 1, "text": text})


def content_of(target: Path) -> str:
    """What is in a folder that is whole."""
    manifest = read_manifest(target, "thing.json", kind="dataset", schema=1)
    verify_files(target, manifest)
    assert (target / "data.txt").read_text() == manifest["text"]
    return str(manifest["text"])


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("can_exchange", ["yes", "no"])
def test_a_kill_at_any_step_leaves_the_old_folder_or_the_new_one_and_the_next_writer_clears_up(
    tmp_path: Path, can_exchange: str
) -> None:
    """Where two folders cannot be exchanged in one step, the next writer also brings the old one back."""
    target = tmp_path / "thing"
    outcomes, left_behind, steps = [], 0, 0
    while "finished" not in outcomes:
        write(target, "old")
        assert names_in(tmp_path) == ["thing"], "what the last kill left is still there"
        steps += 1
        command = [sys.executable, "-c", KILLED_AT_A_STEP, str(target), "new", str(steps), can_exchange]
        killed = subprocess.run(command, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
        if killed.returncode == 0:
            outcomes.append("finished")
            continue
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        left_behind += len(names_in(tmp_path)) > 1
        if can_exchange == "yes" or target.exists():
            outcomes.append(content_of(target))
        else:
            assert "rename it" in str(wrong_folder(target, "dataset"))
            outcomes.append("out of sight")
    assert outcomes.count("old") > 10
    assert "new" in outcomes
    assert left_behind > 10
    assert ("out of sight" in outcomes) == (can_exchange == "no")


def test_a_folder_that_was_out_of_sight_is_back_before_anything_new_is_written(tmp_path: Path) -> None:
    write(tmp_path / "thing", "old")
    (tmp_path / "thing").rename(tmp_path / ".thing.replaced-0123abcd")
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "thing", "thing.json", overwrite=True):
        raise ZeroDivisionError
    assert content_of(tmp_path / "thing") == "old"
    assert names_in(tmp_path) == ["thing"]


def test_kills_at_random_moments_never_leave_a_folder_that_is_not_whole(tmp_path: Path) -> None:
    target, rng = tmp_path / "thing", random.Random(1)
    write(target, "first")
    for _ in range(40):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED_AT_SOME_MOMENT, str(target)], stdout=subprocess.PIPE
        )
        assert process.stdout and process.stdout.readline() == b"writing\n"
        time.sleep(rng.uniform(0, 0.02))  # the moment itself is what is tried
        process.kill()
        process.communicate(timeout=PATIENCE)
        content_of(target)
    write(target, "last")
    assert names_in(tmp_path) == ["thing"]


def test_what_another_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with new_folder(target, "thing.json", overwrite=True) as ours:
        (ours / "data.txt").write_text("half")
        command = [sys.executable, "-c", WRITE + "write(sys.argv[1], 'theirs')", str(target)]
        subprocess.run(command, timeout=PATIENCE, check=True)
        assert content_of(target) == "theirs"
        (ours / "data.txt").write_text("ours")
        write_manifest(ours, "thing.json", {"format": "bert4rec thing", "schema": 1, "text": "ours"})
    assert content_of(target) == "ours"
    assert json.loads((target / "thing.json").read_text())["text"] == "ours"
    assert names_in(tmp_path) == ["thing"]
