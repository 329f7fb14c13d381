"""What the README says is true: its commands run, its numbers are those in results/."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from bert4rec.experiments.summary import END, make_tables
from tests.cli.test_data_commands import bert4rec, write_log

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_tables_are_those_made_from_the_results() -> None:
    for begin, table in make_tables(ROOT / "results").items():
        assert README.split(begin)[1].split(END)[0].strip() == table


def test_the_commands_for_a_log_of_ones_own_run_in_order(tmp_path: Path) -> None:
    """As printed, but for a training that stops after a few steps."""
    write_log(tmp_path / "events.csv", users=30, actions=8)
    block = README.split("## Your own log")[1].split("```")[1]
    lines = [line for line in block.strip().splitlines() if line.startswith("bert4rec")]
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    assert [command[0] for command in commands] == ["prepare", "stats", "train", "evaluate", "compare"]
    short = [
        "--set",
        "training.steps=4",
        "--set",
        "training.validate_every=2",
        "--set",
        "training.batch_size=8",
    ]
    for command in commands:
        if command[0] == "compare":
            other = [
                "train",
                "dataset",
                "-o",
                "other-run",
                *short,
                "--set",
                "model.dim=32",
                "--set",
                "model.max_length=10",
            ]
            run_in(tmp_path, other)
        run_in(tmp_path, command + (short if command[0] == "train" else []))


def run_in(folder: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "bert4rec", *arguments]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_every_command_and_option_it_names_exists() -> None:
    named = set(re.findall(r"`?bert4rec ([a-z]+)", README)) - {"predicts"}
    listed = bert4rec("--help").stdout
    assert all(f" {name} " in listed for name in named), named
    options = set(re.findall(r"`(--[a-z-]+)", README)) - {"--like", "--json"}
    helps = "".join(
        bert4rec(command, "--help").stdout for command in ("prepare", "stats", "train", "evaluate")
    )
    assert all(option in helps for option in options), options
