"""Train, evaluate, compare, refit, export, load, recommend: the library as a notebook uses it."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bert4rec.api.runs import compare, load, train
from bert4rec.data.dataset import Dataset
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.training.run import Run
from bert4rec.training.watch import TrainingStatus
from tests.conftest import MakeDataset
from tests.training.tiny import SETTINGS, random_histories, train_tiny

TINY: dict[str, Any] = {
    f"{section}.{key}": value for section, keys in SETTINGS["bert4rec"].items() for key, value in keys.items()
}


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


def weights_of(run: Run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


def test_training_gives_a_run_with_its_metrics_validations_and_ranks(
    dataset: Dataset, tmp_path: Path
) -> None:
    run = train(dataset, tmp_path / "run", settings=TINY, seed=3, device="cpu")
    reference = train_tiny(dataset, tmp_path / "reference", seed=3)
    assert weights_of(run) == weights_of(reference)
    assert (run.path, run.model, run.plan.seed) == (tmp_path / "run", "bert4rec", 3)
    assert run.metrics == {line["split"]: line["metrics"] for line in reference.result["lines"]}
    history = run.history.to_polars()
    assert history.columns == ["stage", "step", "loss", "value", "seconds"]
    selection = history.filter(pl.col("stage") == "selection")
    assert selection["step"].to_list() == [3, 6, 9, 12]
    assert max(selection["value"]) == pytest.approx(run.metrics["valid"]["sampled"]["NDCG@10"])
    ranks = run.ranks("test")
    table = ranks.to_polars()
    assert table.columns == ["user", "sampled", "full"]
    # The last item of user-19 repeats one of their history.
    assert table["user"].to_list() == [user for user in dataset.users()["id"] if user != "user-19"]
    assert float((ranks.full < 10).mean()) == pytest.approx(run.metrics["test"]["full"]["HR@10"])


def test_a_dataset_may_be_named_by_its_folder_and_settings_by_a_file(
    dataset: Dataset, tmp_path: Path
) -> None:
    sections = {
        section: "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
        for section, keys in SETTINGS["bert4rec"].items()
    }
    text = "\n".join(f"[{section}]\n{keys}" for section, keys in sections.items())
    (tmp_path / "tiny.toml").write_text(text)
    run = train(
        str(dataset.path),
        tmp_path / "run",
        config=tmp_path / "tiny.toml",
        settings={"model.dim": 8},
        device="cpu",
    )
    expected = {**SETTINGS["bert4rec"]["model"], "dim": 8}
    assert {key: vars(run.plan.config.model)[key] for key in expected} == expected
    assert run.plan.config.training is not None
    assert run.plan.config.training.steps == 12


def test_without_a_folder_a_run_lives_as_long_as_it_is_used(dataset: Dataset) -> None:
    run = train(dataset, settings=TINY, device="cpu")
    path, recommender = run.path, load(run)
    assert path.name == "bert4rec", "comparisons call a run by its folder"
    assert run.evaluate("valid", device="cpu").metrics == run.metrics["valid"]
    assert recommender.recommend_user("user-1").items == load(path).recommend_user("user-1").items
    del run
    gc.collect()
    assert recommender.recommend(["item-1", "item-2"], k=3).used == 2
    del recommender
    gc.collect()
    assert not path.exists()


def test_a_script_stays_quiet_but_for_warnings(
    dataset: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    train(dataset, tmp_path / "run", settings=TINY, device="cpu")
    assert capfd.readouterr().out == ""
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(text.startswith("Too few users to judge a model") for text in warned)
    assert {record.name for record in caplog.records} == {"bert4rec"}


def test_a_callback_hears_every_validation(dataset: Dataset, tmp_path: Path) -> None:
    heard: list[TrainingStatus] = []
    run = train(dataset, tmp_path / "run", settings=TINY, device="cpu", callback=heard.append)
    marks = [
        each for each in heard if each.stage == "selection" and each.loss is not None and not each.message
    ]
    assert [each.step for each in marks] == [3, 6, 9, 12]
    assert [each.value for each in marks] == run.history.to_polars().filter(stage="selection")[
        "value"
    ].to_list()
    assert {each.steps for each in marks} == {12}
    assert all(each.seconds_left is not None and each.seconds_left >= 0 for each in marks)
    assert any(each.message and "judging" in each.message for each in heard)


def test_a_callback_stops_training_and_it_is_resumed_as_if_nothing_had_happened(
    dataset: Dataset, tmp_path: Path
) -> None:
    whole = train(dataset, tmp_path / "whole", settings=TINY, device="cpu")

    def stop_by_answer(status: TrainingStatus) -> bool:
        return status.step == 6

    def stop_by_error(status: TrainingStatus) -> None:
        if status.step == 9:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(dataset, folder, settings=TINY, device="cpu", callback=stop_by_answer)
    with pytest.raises(UsageError, match=r"holds an unfinished run\. Continue it with `resume=True`"):
        train(dataset, folder, settings=TINY, device="cpu")
    with pytest.raises(UsageError, match="`resume=True` keeps the settings"):
        train(dataset, folder, settings=TINY, resume=True)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, folder, resume=True, device="cpu", callback=stop_by_error)
    resumed = train(dataset, folder, resume=True, device="cpu")
    assert weights_of(resumed) == weights_of(whole)
    assert [line["resumed"] for line in resumed.result["lines"]] == [True, True]


def test_a_folder_that_is_in_use_is_never_written_to_unless_told(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match="never replaced"):
        train(dataset, tmp_path / "mine", settings=TINY, overwrite=True)
    with pytest.raises(UsageError, match="`folder` is required"):
        train(dataset, resume=True)
    first = train(dataset, tmp_path / "run", settings=TINY, device="cpu")
    with pytest.raises(UsageError, match="exist"):
        train(dataset, tmp_path / "run", settings=TINY)
    second = train(dataset, tmp_path / "run", settings=TINY, seed=2, overwrite=True, device="cpu")
    assert (first.plan.seed, Run.open(second.path).plan.seed) == (1, 2)


def test_results_are_appended_once(dataset: Dataset, tmp_path: Path) -> None:
    results = tmp_path / "all" / "results.jsonl"
    run = train(dataset, tmp_path / "run", settings=TINY, device="cpu", results=results)
    train(dataset, tmp_path / "run", resume=True, device="cpu", results=results)
    assert [json.loads(line) for line in results.read_text().splitlines()] == run.result["lines"]


def test_an_evaluation_has_any_cut_off_the_baseline_and_slices(dataset: Dataset, tmp_path: Path) -> None:
    run = train(dataset, tmp_path / "run", settings=TINY, device="cpu")
    usual = run.evaluate(device="cpu")
    assert usual.metrics == run.metrics["test"]
    pop = train(dataset, tmp_path / "pop", model="pop", device="cpu")
    assert usual.pop == pop.metrics["test"]
    found = run.evaluate("test", k=(3, 20), device="cpu")
    assert list(found.metrics["full"]) == ["HR@3", "HR@20", "NDCG@3", "NDCG@20", "MRR"]
    assert found.metrics["full"]["HR@3"] == pytest.approx(float((run.ranks().full < 3).mean()))
    table = found.to_polars()
    assert table.select("model", "protocol").rows() == [
        ("bert4rec", "sampled"),
        ("bert4rec", "full"),
        ("POP", "sampled"),
        ("POP", "full"),
    ]
    assert table["HR@3"].to_list()[1] == found.metrics["full"]["HR@3"]
    assert sum(each["users"] for each in found.slices["full"]["activity"]) == found.users == 29
    assert found.left_out == 1
    assert found.warnings
    assert json.loads(json.dumps(found.as_dict())).keys() == {
        "dataset", "model", "stage", "split", "repeats", "users", "left_out", "metrics", "slices", "pop"
    }  # fmt: skip
    with pytest.raises(UsageError, match="`k`: expected whole numbers of at least 1; found 0"):
        run.evaluate(k=(0, 5))


def test_a_run_whose_dataset_has_moved_is_told_where_it_is(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run")
    moved = dataset.folder.rename(tmp_path / "moved")
    with pytest.raises(NotFoundError, match=r"The dataset was not found at .* Pass `dataset`"):
        run.evaluate()
    assert run.ranks("test").to_polars().columns == ["sampled", "full"]
    assert run.evaluate(dataset=moved, device="cpu").metrics == run.metrics["test"]


@pytest.mark.parametrize("left_out", ["test", "refit"])
def test_a_refit_gives_what_training_at_once_would_have_given(
    left_out: str, dataset: Dataset, tmp_path: Path
) -> None:
    whole = train(dataset, tmp_path / "whole", settings=TINY, device="cpu")
    chosen = train(dataset, tmp_path / "chosen", settings=TINY, device="cpu", **{left_out: False})  # type: ignore[arg-type]
    heard: list[TrainingStatus] = []
    final = chosen.refit(tmp_path / "final", device="cpu", callback=heard.append)
    assert {each.stage for each in heard} <= {None, "refit"}, "the selection is not trained again"
    assert weights_of(final) == weights_of(whole)
    assert final.metrics == whole.metrics
    assert (final.plan.refit, final.plan.test) == (True, True)
    assert (final.path / "selection.safetensors").read_bytes() == (
        whole.path / "selection.safetensors"
    ).read_bytes()
    with pytest.raises(UsageError, match="was refitted and tested already"):
        final.refit()


def test_a_refit_does_not_take_the_place_of_its_own_run(dataset: Dataset, tmp_path: Path) -> None:
    chosen = train_tiny(dataset, tmp_path / "chosen", test=False)
    (tmp_path / "link").symlink_to(chosen.path)
    for folder in (chosen.path, str(tmp_path / "link"), tmp_path / "other" / ".." / "chosen"):
        with pytest.raises(UsageError, match="chosen is the folder of the run itself. Choose another `folder`"):
            chosen.refit(folder, overwrite=True, device="cpu")
    Run.open(chosen.path).verify()


def test_runs_are_compared_by_themselves_or_by_their_folders(dataset: Dataset, tmp_path: Path) -> None:
    runs = [train_tiny(dataset, tmp_path / f"a{seed}", seed=seed) for seed in (1, 2)]
    other = train_tiny(dataset, tmp_path / "b", model="pop")
    by_run = compare(runs, other, metric="HR@3", split="valid")
    assert by_run == compare(*(run.path for run in runs), str(other.path), metric="HR@3", split="valid")
    expected = np.mean([(run.ranks("valid").sampled < 10).mean() for run in runs])
    assert by_run.systems[0].metrics["HR@10"] == pytest.approx(float(expected))
    with pytest.raises(UsageError, match="Two runs or more are required"):
        compare(other)


def test_an_export_gives_the_same_answers_and_names_what_it_needs(dataset: Dataset, tmp_path: Path) -> None:
    run = train(dataset, tmp_path / "run", settings=TINY, device="cpu")
    heard: list[Any] = []
    model = run.export(tmp_path / "model", verify=True, samples=True, callback=heard.append)
    assert model == tmp_path / "model"
    assert [check.is_good for check in heard] == [True]
    assert (model / "samples.json").is_file()
    ours, theirs = load(run, device="cpu"), load(model)
    for user in ("user-0", "user-7"):
        one, other = (each.recommend_user(user, dataset=dataset).items for each in (ours, theirs))
        assert [item.item_id for item in one] == [item.item_id for item in other]
    with pytest.raises(UsageError, match=r"An exported model does not know users\. Pass `dataset`"):
        theirs.recommend_user("user-0")
    with pytest.raises(UsageError, match="`threads` applies to exported models only"):
        load(run.path, threads=2)
    with pytest.raises(UsageError, match="POP cannot be exported"):
        train(dataset, model="pop", device="cpu").export(tmp_path / "pop")
