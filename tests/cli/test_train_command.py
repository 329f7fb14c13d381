"""`train` never costs a user what was there before, and does what it was told."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from bert4rec.artefact import held
from bert4rec.cli.evaluate_command import evaluate_command
from bert4rec.cli.train_command import Heartbeat, LiveLine, refit_command, train_command
from bert4rec.data.dataset import Dataset
from bert4rec.settings.presets import list_presets
from bert4rec.training.loop import Interrupted, TrainingProgress
from bert4rec.training.reporting.watch import Throughput
from bert4rec.training.run import Plan, Run
from bert4rec.training.specs import MODELS
from tests.cli.test_data_commands import bert4rec, write_log
from tests.conftest import MakeDataset
from tests.training.tiny import after, random_histories, tiny_config, tiny_options, train_tiny

SHORT = [
    f"--set={setting}"
    for setting in (
        "training.steps=2",
        "training.validate_every=1",
        "training.batch_size=4",
        "model.dim=8",
        "model.max_length=5",
    )
]


SETTINGS = tuple(option.removeprefix("--set=") for option in tiny_options())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    assert bert4rec("prepare", write_log(folder / "log.csv"), "-o", folder / "dataset").returncode == 0
    return folder


@pytest.fixture
def dataset(prepared: Path, tmp_path: Path) -> Path:
    """A copy, beside its log."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path / "dataset"


def train_shortly(dataset: Path, folder: Path, **options: Any) -> None:
    """As `bert4rec train` with SHORT, in this process."""
    settings = tuple(option.removeprefix("--set=") for option in SHORT)
    train_command(dataset, output=folder, settings=settings, device="cpu", **options)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_seed_zero_is_a_seed(dataset: Path, tmp_path: Path) -> None:
    run = bert4rec("train", dataset, "-o", tmp_path / "run", "--seed", "0", *SHORT, "--json")
    assert [line["seed"] for line in json.loads(run.stdout)] == [0, 0]


def test_a_mistake_in_the_settings_does_not_cost_the_old_run(dataset: Path, tmp_path: Path) -> None:
    train_shortly(dataset, tmp_path / "run")
    before = contents(tmp_path / "run")
    for mistake in (["--set", "model.dmi=3"], ["--preset", "ml-1mm"], ["--device", "abacus"]):
        run = bert4rec("train", dataset, "-o", tmp_path / "run", "--overwrite", *mistake)
        assert run.returncode in (2, 4)
        assert contents(tmp_path / "run") == before


def test_a_model_is_trained_by_its_name_and_a_wrong_name_is_refused(dataset: Path, tmp_path: Path) -> None:
    short = [setting for setting in SHORT if "max_length" not in setting]
    run = bert4rec("train", dataset, "-o", tmp_path / "run", "--model", "bpr-mf", *short, "--json")
    assert "at most 2 steps;" in run.stderr
    assert "NDCG@10 on the validation items: 0." in run.stderr
    assert [line["model"] for line in json.loads(run.stdout)] == ["bpr-mf", "bpr-mf"]
    wrong = bert4rec("train", dataset, "-o", tmp_path / "other", "--model", "bpr-fm", *short)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("Error: Unknown model 'bpr-fm'. Did you mean bpr-mf?")
    assert not (tmp_path / "other").exists()


def test_a_run_does_not_take_the_place_of_its_dataset(dataset: Path) -> None:
    run = bert4rec("train", dataset, "-o", dataset, "--overwrite", *SHORT)
    assert run.returncode == 2
    assert "will not be overwritten" in run.stderr
    assert bert4rec("stats", dataset).returncode == 0


def test_nobody_else_trains_in_a_folder_while_somebody_does(dataset: Path, tmp_path: Path) -> None:
    with held(tmp_path / "run", wait=False):
        refused = bert4rec("train", dataset, "-o", tmp_path / "run", "--overwrite", *SHORT)
        assert refused.returncode == 2
        assert "Another process is at work in" in refused.stderr
        assert (tmp_path / "run").exists(), "it is not for the other to remove"
    assert not (tmp_path / "run").exists(), "nothing was trained, so nothing is left"
    train_shortly(dataset, tmp_path / "run")
    with held(tmp_path / "run", wait=False):
        assert bert4rec("train", dataset, "-o", tmp_path / "run", "--resume").returncode == 2
    evaluate_command(tmp_path / "run", device="cpu")


def test_too_little_memory_is_told_with_what_to_do(dataset: Path, tmp_path: Path) -> None:
    run = bert4rec("train", dataset, "-o", tmp_path / "run", *SHORT, "--set", "model.dim=10000000000")
    assert run.returncode == 1
    assert "There is not enough memory. Lower training.batch_size" in run.stderr
    assert "Traceback" not in run.stderr


def test_resuming_refuses_other_settings_and_appends_no_result_twice(dataset: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    again = ("train", dataset, "-o", tmp_path / "run", "--results", results, "--resume")
    train_shortly(dataset, tmp_path / "run", results=results)
    assert bert4rec(*again, "--seed", "7").returncode == 2
    train_shortly(dataset, tmp_path / "run", results=results, resume=True, seed=1)
    lines = results.read_text().splitlines()
    assert len(lines) == 2
    # Killed before both lines were written: the next call writes them.
    results.write_text(lines[0] + "\n")
    assert bert4rec(*again).returncode == 0
    assert set(results.read_text().splitlines()) == set(lines)


def test_a_run_that_is_resumed_where_its_dataset_is_now_knows_it_there(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    dataset = make_dataset(random_histories())
    with pytest.raises(Interrupted):
        train_tiny(dataset, tmp_path / "run", should_stop=after(4))
    moved = dataset.folder.rename(tmp_path / "moved")
    train_command(moved, output=tmp_path / "run", resume=True, device="cpu")
    assert Run.open(tmp_path / "run").plan.dataset == str(moved)
    evaluate_command(tmp_path / "run", device="cpu")


def test_a_chosen_run_is_refitted_and_a_stopped_refit_is_continued(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    dataset = make_dataset(random_histories()).folder
    options: dict[str, Any] = {"settings": SETTINGS, "select_by": "hr@5:full", "device": "cpu"}
    train_command(dataset, output=tmp_path / "chosen", test=False, **options)
    train_command(dataset, output=tmp_path / "whole", **options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(LiveLine, "progress", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        refit_command(tmp_path / "chosen", output=tmp_path / "final", device="cpu")
    train_command(dataset, output=tmp_path / "final", resume=True, device="cpu")
    refit_command(tmp_path / "chosen", output=tmp_path / "again", device="cpu")
    for name in ("final", "again"):
        assert Run.open(tmp_path / name).metrics == Run.open(tmp_path / "whole").metrics


def test_warnings_look_like_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    LiveLine().warn('Prepare with `repeats="keep"`.')
    assert capsys.readouterr().err == "Warning: Prepare with --repeats keep.\n"


def test_the_help_names_the_presets_that_there_are() -> None:
    told = " ".join(str(train_command.__doc__).split())
    usual = {"ml-1m", "beauty", "steam", "ml-20m"}
    assert "There are ml-1m, beauty, steam, ml-20m and demo. All but demo also exist with" in told
    owners = {suffix: names.split(", ") for suffix, names in re.findall(r"(-\w+) \([^;)]*; ([^)]*)\)", told)}
    assert owners.keys() == {"-small", "-paper", "-softmax"}
    for model in MODELS:
        suffixes = [suffix for suffix, names in owners.items() if model in names]
        also = {name + suffix for name in usual for suffix in suffixes}
        assert set(list_presets(model)) == usual | {"demo"} | also


@pytest.mark.parametrize("metric", ["NDCG@10", "NDCG@10:both"])
def test_a_line_of_progress_tells_all_in_80_columns(monkeypatch: pytest.MonkeyPatch, metric: str) -> None:
    told: list[str] = []
    monkeypatch.setattr("bert4rec.cli.train_command.say", told.append)
    line = LiveLine()
    line.stage("selection", 12_000)
    mark = {"step": 11_000, "loss": 5.12345, "value": 0.5182}
    pace = Throughput(5.12345, samples_per_second=256_000.0, seconds_left=1.1)
    progress = TrainingProgress(11_000, 11_000, 0.5182, history=[mark], metric=metric)
    line.progress("selection", progress, pace)
    text = f"step 11000/12000, loss 5.12, {metric} 0.5182, 256k samples/s, 0:00:01 left"
    assert told[-1] == f"{text}: the best so far"
    assert len(f"⠋ {text}") <= 80


def test_the_metric_of_both_protocols_is_explained_once_before_it_first_appears(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = LiveLine()
    line.stage("selection", 20)
    pace = Throughput(5.0, samples_per_second=10.0, seconds_left=1.0)
    for step in (10, 20):
        mark = {"step": step, "loss": 5.0, "value": 0.5}
        progress = TrainingProgress(step, step, 0.5, history=[mark], metric="NDCG@10:both")
        line.progress("selection", progress, pace)
    _, meaning, first, second = capsys.readouterr().err.splitlines()
    assert meaning == (
        "NDCG@10:both is the geometric mean of NDCG@10 among 101 candidates and among all items."
    )
    assert first.startswith("step 10/20")
    assert second.startswith("step 20/20")


def test_a_log_without_a_terminal_never_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a validation takes minutes: it says what is going on, and how much of the time is left by now."""
    told: SimpleQueue[str] = SimpleQueue()
    now = [100.0]
    monkeypatch.setattr("bert4rec.cli.train_command.say", told.put)
    monkeypatch.setattr("bert4rec.cli.train_command.time.monotonic", lambda: now[0])
    monkeypatch.setattr("bert4rec.cli.train_command.SILENCE", 0.01)
    with LiveLine() as line:
        assert told.get(timeout=60) == "Getting ready."
        line.stage("selection", 800)
        line.progress(
            "selection", TrainingProgress(120), Throughput(5.1, samples_per_second=512.0, seconds_left=90.0)
        )
        expected = "step 120/800, loss 5.10, 512 samples/s, 0:01:30 left"
        assert any(told.get(timeout=60) == expected for _ in range(1000))
        line.busy("validating at step 160", 80.0)
        now[0] += 30
        expected = "validating at step 160, 0:00:50 left"
        assert any(told.get(timeout=60) == expected for _ in range(1000))


def test_nothing_is_repeated_while_there_is_news() -> None:
    told: list[str] = []
    with Heartbeat(lambda: told.append("again")) as heartbeat:
        for _ in range(3):
            heartbeat.note()
    assert told == []


@pytest.fixture
def broken_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is installed but cannot be loaded, for all processes started now."""
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('torch was loaded')")
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path / "broken"), before])))


@pytest.mark.usefixtures("broken_torch")
@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ("train NOWHERE -o NEW", 4, "nowhere does not exist; expected a dataset"),
        ("train LOG -o NEW", 2, "log.csv is a file; expected a dataset. Prepare it first: bert4rec prepare "),
        ("train DATA -o DATA --overwrite", 2, "will not be overwritten"),
        ("train DATA -o NEW --model sasrek", 2, "Unknown model 'sasrek'. Did you mean sasrec?"),
        (
            "train DATA -o NEW --preset ml-1mm",
            4,
            "Unknown preset 'ml-1mm' of bert4rec+. Did you mean ml-1m?",
        ),
        (
            "train DATA -o NEW --model caser --preset beauty-softmax",
            4,
            "Unknown preset 'beauty-softmax' of caser. It exists for gru4rec+ and sasrec. Presets of caser: ml-1m, ",
        ),
        ("train DATA -o BEGUN --resume --seed 3", 2, "which has --seed 1; found --seed 3. Leave out --seed"),
        (
            "train DATA -o BEGUN --resume --model sasrec",
            2,
            "--resume keeps the settings of the run, which has",
        ),
        ("train DATA -o BEGUN --resume --no-refit", 2, "which has --refit; found --no-refit."),
        ("train DATA -o BEGUN --resume --set model.dim=8", 2, "which has --set model.dim=16; found --set"),
        ("train DATA -o BEGUN --resume --overwrite", 2, "--resume and --overwrite cannot be used together."),
        ("train DATA -o DATA --resume", 4, "has no config.json: this is not a run"),
        ("train DATA -o NEW --seed -1", 2, 'Invalid value "-1" for --seed. Must be >= 0.'),
        (f"train DATA -o NEW --seed {2**63}", 2, "for --seed. Must be < "),
        ("tune NOWHERE -o NEW", 4, "nowhere does not exist; expected a dataset"),
        ("tune DATA -o DATA --overwrite", 2, "will not be overwritten"),
        ("tune DATA -o NEW --minutes 0", 2, "--minutes must be a number above 0; found 0.0."),
        ("tune DATA -o NEW --model pop", 2, "pop is not trained, so there is nothing to tune."),
        ("refit NOWHERE -o NEW", 4, "nowhere does not exist; expected a run"),
        ("evaluate NOWHERE --k 5;10", 2, "--k '5;10': expected whole numbers separated by commas"),
        ("evaluate NOWHERE", 4, "nowhere does not exist; expected a run"),
        ("compare DATA", 2, "Two runs or more are required"),
        ("compare NOWHERE DATA", 4, "nowhere does not exist; expected a run"),
        ("report NOWHERE", 4, "nowhere does not exist; expected the results"),
        ("reproduce table3 --data DATA --seeds one", 2, "--seeds one: expected whole numbers"),
    ],
)
def test_a_slip_is_told_before_torch_is_loaded(
    dataset: Path, tmp_path: Path, arguments: str, code: int, complaint: str
) -> None:
    places = {
        "DATA": dataset,
        "LOG": tmp_path / "log.csv",
        "NEW": tmp_path / "new",
        "NOWHERE": tmp_path / "nowhere",
        "BEGUN": tmp_path / "begun",
    }
    places["BEGUN"].mkdir()
    plan = Plan.for_dataset(Dataset.open(dataset), "bert4rec", tiny_config(), preset=None, seed=1, split=None)
    plan.save(places["BEGUN"])
    run = bert4rec(*(places.get(word, word) for word in arguments.split()))
    assert run.returncode == code, run.stderr
    assert complaint in run.stderr
    assert run.stderr.count("\n") == 1
    assert not places["NEW"].exists()
    assert (dataset / "dataset.json").exists()


@pytest.mark.usefixtures("broken_torch")
def test_what_is_no_slip_does_load_torch(dataset: Path, tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    assert "torch was loaded" in bert4rec("train", dataset, "-o", tmp_path / "new").stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--set", "model.dimm=32"], "Did you mean model.dim?"),
        (["--set", "model.dim=-1"], "model.dim = -1: must be greater than or equal to 1."),
        (["--set", "model.heads=3"], "model.dim = 64 must be a multiple of model.heads = 3"),
        (["--model", "sasrek"], "Did you mean sasrec?"),
        (["--preset", "ml1m"], "Did you mean ml-1m?"),
    ],
)
def test_slips_in_settings_are_told_before_torch_is_loaded(
    make_dataset: MakeDataset, tmp_path: Path, options: list[str], told: str
) -> None:
    dataset = make_dataset(random_histories())
    program = f"""
import sys
from bert4rec.cli import app
from bert4rec.errors import Bert4RecError
try:
    app({["train", str(dataset.path), "-o", str(tmp_path / "run"), *options]!r}, result_action="return_value")
except Bert4RecError as error:
    print(error)
print("torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told in run.stdout
    assert run.stdout.endswith("False\n")
