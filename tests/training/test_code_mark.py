"""What changes the mark of the code, and what does not, in edited copies of the package."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bert4rec.training.reporting.code_mark import NEUTRAL, PACKAGE, code_checksum, decisive_modules

LOOP = '''"""Trains."""

from bert4rec.errors import DataError
from bert4rec.models.net import Net

RATE = 0.1
"""How fast."""


class Loop:
    """Steps."""

    steps: int = 10
    """How many."""

    def run(self, x: float, share: float = 0.5) -> float:
        # Half of it.
        if x < 0:
            raise DataError(f"{x} is negative.")
        return x * share + RATE
'''
SMALL = {
    "errors.py": "class DataError(Exception): ...\n",
    "models/net.py": '"""A net."""\n\nKEY = "weight"\n\ndef net(x: int) -> int:\n    return x + 1\n',
    "tasks/__init__.py": "",
    "evaluation/judge.py": "def judge(ranks):\n    return max(ranks)\n",
    "training/loop.py": LOOP,
    "training/train.py": "def train():\n    from bert4rec.training.loop import Loop\n    return Loop().run(1.0)\n",
    "api/bench.py": "SECONDS = 3\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in SMALL.items():
        path = tmp_path / "bert4rec" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "bert4rec"


def mark_of(package: Path) -> str:
    code_checksum.cache_clear()
    return code_checksum(package)


def edited(package: Path, name: str, before: str, after: str) -> str:
    text = (package / name).read_text()
    assert before in text
    (package / name).write_text(text.replace(before, after))
    return mark_of(package)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("training/loop.py", '"""Steps."""', '"""Takes as many steps as there are, one after the other."""'),
        ("training/loop.py", '    """How many."""\n', ""),
        ("training/loop.py", '    """Steps."""\n', ""),
        ("training/loop.py", "# Half of it.", "# A half, unless told otherwise."),
        ("training/loop.py", "is negative.", "must not be negative; pass `x=0` instead."),
        ("training/loop.py", "x * share + RATE", "(\n            x * share\n            + RATE\n        )"),
        ("training/loop.py", "share: float = 0.5", "share: float | int = 0.5"),
        ("api/bench.py", "3", "4"),
        ("errors.py", "...", "exit_code = 3"),
    ],
    ids=[
        "docstring",
        "docstring of a field",
        "no docstring",
        "comment",
        "message",
        "format",
        "type",
        "benchmark",
        "error",
    ],
)
def test_what_only_people_read_keeps_the_mark(package: Path, name: str, before: str, after: str) -> None:
    mark = mark_of(package)
    assert edited(package, name, before, after) == mark


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("training/loop.py", "RATE = 0.1", "RATE = 0.2"),
        ("training/loop.py", "x * share", "x / share"),
        ("training/loop.py", "share: float = 0.5", "share: float = 0.6"),
        ("training/loop.py", "x < 0", "x <= 0"),
        ("training/loop.py", "steps: int = 10", "steps: int = 11"),
        ("models/net.py", "x + 1", "x + True"),
        ("models/net.py", "x + 1", "x + None"),
        ("models/net.py", '"weight"', '"bias"'),
        ("evaluation/judge.py", "max", "min"),
        ("training/train.py", "run(1.0)", "run(1)"),
        ("training/loop.py", "net import Net", "net import Another as Net"),
    ],
)
def test_what_decides_results_changes_the_mark(package: Path, name: str, before: str, after: str) -> None:
    mark = mark_of(package)
    assert edited(package, name, before, after) != mark


def test_moving_a_file_or_a_definition_keeps_the_mark(package: Path) -> None:
    mark = mark_of(package)
    (package / "training" / "steps.py").write_text((package / "training" / "loop.py").read_text())
    (package / "training" / "loop.py").unlink()
    assert edited(package, "training/train.py", "training.loop", "training.steps") == mark
    definition = (package / "evaluation" / "judge.py").read_text()
    (package / "evaluation" / "judge.py").write_text("from bert4rec.tasks.scores import judge\n")
    (package / "tasks" / "scores.py").write_text(definition)
    assert mark_of(package) == mark


def test_a_new_model_or_a_newly_imported_module_changes_the_mark(package: Path) -> None:
    mark = mark_of(package)
    (package / "training" / "extra.py").write_text("MORE = 1\n")
    assert mark_of(package) == mark, "nobody imports it"
    imported = edited(
        package,
        "training/loop.py",
        "RATE = 0.1",
        "from bert4rec.training import (\n    extra,\n)\nRATE = 0.1",
    )
    assert imported != mark
    (package / "models" / "another.py").write_text("WIDTH = 3\n")
    assert mark_of(package) not in (mark, imported)


def test_the_package_itself_is_marked_by_training_and_evaluation_alone() -> None:
    names = {path.relative_to(PACKAGE).as_posix() for path in decisive_modules()}
    assert {"training/train.py", "training/loop.py", "tasks/losses.py", "models/bert4rec.py"} <= names
    assert {"data/splits.py", "evaluation/protocol.py", "evaluation/metrics.py"} <= names
    parts = {name.split("/")[0] for name in names}
    assert parts == {
        "data",
        "distributed",
        "evaluation",
        "kernels",
        "models",
        "settings",
        "tasks",
        "training",
    }
    assert not any(name.startswith("kernels/gpu/") for name in names)
    assert not names & {f"training/{name}.py" for name in ("forecast", "plan", "run", "watch")}
    for name in NEUTRAL:
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file(), f"{name} does not exist"


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text(path.read_text().replace('"""', '"""Also: ', 1)),
        lambda path: path.write_text("# A remark.\n" + path.read_text()),
    ],
    ids=["docstring", "comment"],
)
def test_a_copy_of_the_package_with_another_docstring_or_comment_in_every_file_has_its_mark(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "bert4rec", ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        change(path)
    assert mark_of(copy) == mark_of(PACKAGE)
