"""What the README says is true: its commands run, its numbers are those in results/."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from bert4rec.paper.reporting.summary import END, MARK, fill, make_parts
from tests.cli.test_data_commands import bert4rec, write_log

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_tables_are_those_made_from_the_results() -> None:
    assert fill(README, make_parts(ROOT / "results")) == README
    assert {"quality", "speed"} <= set(MARK.findall(README))


def test_no_result_is_written_by_hand() -> None:
    """A metric has four decimals; outside the parts that a command wrote there is none."""
    pieces = MARK.split(README)
    by_hand = [pieces[0], *(piece.partition(END)[2] for piece in pieces[2::2])]
    assert [re.findall(r"\b0\.\d{4}\b", piece) for piece in by_hand] == [[] for _ in by_hand]


def test_the_commands_for_a_log_of_ones_own_run_in_order(tmp_path: Path) -> None:
    """As printed, but for trainings that stop after a few steps, and a service that would never end."""
    write_log(tmp_path / "events.csv", users=30, actions=8)
    block = README.split("## Your own log")[1].split("```")[1]
    lines = [line for line in block.strip().splitlines() if line.startswith("bert4rec")]
    *commands, last = [shlex.split(line, comments=True)[1:] for line in lines]
    named = ["prepare", "stats", "train", "evaluate", "train", "compare", "recommend", "export"]
    assert [command[0] for command in commands] == named
    assert last == ["serve", "model"]
    values = {"training.steps": 4, "training.validate_every": 2, "training.batch_size": 8}
    short = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    for command in commands:
        run_in(tmp_path, ["-m", "bert4rec", *command, *(short if command[0] == "train" else [])])
    python = README.split("```python")[1].split("```")[0]
    assert "demo/model" in python
    run_in(tmp_path, ["-c", python.replace("demo/model", "model")])


def run_in(folder: Path, arguments: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_every_command_and_option_it_names_exists() -> None:
    named = set(re.findall(r"`?bert4rec ([a-z]+)", README)) - {"predicts", "bench"}
    listed = bert4rec("--help").stdout
    assert all(f" {name} " in listed for name in named), named
    options = set(re.findall(r"`(--[a-z-]+)", README)) - {"--json"}
    helps = "".join(bert4rec(command, "--help").stdout for command in named)
    assert all(option in helps for option in options), options
