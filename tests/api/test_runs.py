"""Train, evaluate, compare, refit, export, load, recommend: the library as a notebook uses it."""

import gc
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from bert4rec.api.runs import compare, load, train
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import SplitSpec, make_split
from bert4rec.errors import NotFoundError, UsageError
from bert4rec.settings.config import choose_config
from bert4rec.settings.sections import DEFAULT_MODEL
from bert4rec.training.loop import Interrupted
from bert4rec.training.plan import flat
from bert4rec.training.reporting.watch import TrainingStatus
from bert4rec.training.run import Run
from tests.conftest import MakeDataset
from tests.evaluation.tiny import CUT_BY_TIME, action_times
from tests.training.tiny import SETTINGS, random_histories, train_tiny

TINY: dict[str, Any] = {
    f"{section}.{key}": value
    for section, keys in SETTINGS[DEFAULT_MODEL].items()
    for key, value in keys.items()
}


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> Dataset:
    return make_dataset(random_histories())


def weights_of(run: Run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


def test_training_gives_a_run_with_its_metrics_validations_and_ranks(
    dataset: Dataset, tmp_path: Path
) -> None:
    given = (f"{key}={value}" for key, value in TINY.items())
    run = train(dataset, tmp_path / "run", settings=given, seed=3, device="cpu")
    chosen = flat(choose_config(dataset, DEFAULT_MODEL, settings=TINY).as_dict())
    texts = (f"{key}={value}" for key, value in chosen.items())
    reference = train_tiny(dataset, tmp_path / "reference", *texts, model=DEFAULT_MODEL, seed=3)
    assert weights_of(run) == weights_of(reference)
    assert (run.path, run.model, run.plan.seed) == (tmp_path / "run", "bert4rec+", 3)
    assert run.metrics == {line["split"]: line["metrics"] for line in reference.result["lines"]}
    history = run.history.to_polars()
    assert history.columns == ["stage", "attempt", "step", "loss", "value", "seconds"]
    selection = history.filter(pl.col("stage") == "selection")
    assert selection["step"].to_list() == [3, 6, 9, 12]
    both = [metrics["NDCG@10"] for metrics in run.metrics["valid"].values()]
    asked = run.result["lines"][0]["asked"]
    assert max(selection["value"]) == pytest.approx(asked["both"])
    assert max(asked.values()) == pytest.approx((both[0] * both[1]) ** 0.5)
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
        for section, keys in SETTINGS[DEFAULT_MODEL].items()
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
    expected = {**SETTINGS[DEFAULT_MODEL]["model"], "dim": 8}
    assert {key: vars(run.plan.config.model)[key] for key in expected} == expected
    assert run.plan.config.training is not None
    assert run.plan.config.training.steps == 12


def test_without_a_folder_a_run_lives_as_long_as_it_is_used(dataset: Dataset) -> None:
    run = train(dataset, settings=TINY, device="cpu")
    path, recommender = run.path, load(run)
    assert path.name == "bert4rec+", "comparisons call a run by its folder"
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
    assert any(each.message and "evaluating on the test items" in each.message for each in heard)


def test_a_callback_stops_training_and_it_is_resumed_as_if_nothing_had_happened(
    dataset: Dataset, tmp_path: Path
) -> None:
    whole = train(dataset, tmp_path / "whole", settings=TINY, device="cpu")

    def stop_by_answer(status: TrainingStatus) -> object:
        return np.bool_(status.step == 6)

    def stop_by_error(status: TrainingStatus) -> None:
        if status.step == 9:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(dataset, folder, settings=TINY, device="cpu", callback=stop_by_answer)
    with pytest.raises(UsageError, match=r"holds an unfinished run\. Continue it with `resume=True`"):
        train(dataset, folder, settings=TINY, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(dataset, folder, resume=True, device="cpu", callback=stop_by_error)
    resumed = train(dataset, folder, resume=True, device="cpu")
    assert weights_of(resumed) == weights_of(whole)
    assert [line["resumed"] for line in resumed.result["lines"]] == [True, True]


def test_a_run_is_resumed_with_the_same_settings_or_none_and_with_no_others(
    dataset: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[model]\ndim = 8\n")
    given: dict[str, Any] = {
        "model": "sasrec",
        "config": file,
        "seed": 4,
        "test": False,
        "split": SplitSpec(),
    }
    given["settings"] = {"training.steps": 6, "training.validate_every": 2, "model.max_length": 8}
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(dataset, folder, **given, device="cpu", callback=lambda status: status.step == 2)
    file_2 = tmp_path / "other.toml"
    file_2.write_text("[model]\ndim = 16\n")
    for change, told in [
        ({"model": "bert4rec"}, "which has `model='sasrec'`; found `model='bert4rec'`. Leave out `model`"),
        ({"preset": "demo"}, "which has `preset=None`; found `preset='demo'`"),
        ({"seed": 1}, "which has `seed=4`; found `seed=1`"),
        ({"refit": True, "test": True}, "which has `test=False`; found `test=True`"),
        ({"config": file_2}, "which has `settings={'model.dim': 8}`; found `settings={'model.dim': 16}`"),
        ({"settings": ["model.dim=4"]}, "which has `settings={'model.dim': 8}`; found `settings={'model.dim': 4}`"),
        ({"overwrite": True}, "`resume=True` and `overwrite=True` cannot be used together"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=re.escape(told)):
            train(dataset, folder, **change, resume=True, device="cpu")  # type: ignore[arg-type]
    heard: list[str | None] = []
    train(
        dataset,
        folder,
        **given,
        resume=True,
        device="cpu",
        callback=lambda status: heard.append(status.message),
    )
    assert "Resuming at step 2." in heard
    assert train(dataset, folder, settings=["model.dim=8"], resume=True).plan.seed == 4


def test_the_callers_random_numbers_go_on_as_without_training(dataset: Dataset, tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(dataset, tmp_path / "run", settings=TINY, device="cpu")
    assert torch.equal(torch.rand(3), expected)


def test_a_slip_in_a_parameter_is_refused_with_the_choices(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run")
    slip: Any = "validation"
    for ask in (run.evaluate, run.ranks, make_split(dataset).targets, make_split(dataset).training_end):
        with pytest.raises(UsageError, match="`split` must be one of 'valid', 'test'; found 'validation'"):
            ask(slip)
    with pytest.raises(UsageError, match="`split` must be one of"):
        compare(run, run, split=slip)
    with pytest.raises(
        UsageError, match="`negatives` must be one of 'popularity', 'uniform'; found 'validation'"
    ):
        run.evaluate(negatives=slip)
    with pytest.raises(
        UsageError, match="`track` must be one of 'tensorboard', 'mlflow'; found 'validation'"
    ):
        train(dataset, run.path, settings=TINY, track=slip, overwrite=True)
    for seed in (-1, "a", 1.5, 2**63):
        with pytest.raises(UsageError, match=r"`seed` must be a whole number from 0 to 2\*\*63 - 1; found"):
            train(dataset, run.path, settings=TINY, seed=seed, overwrite=True)  # type: ignore[arg-type]
    Run.open(run.path).verify()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"minutes": True}, "`minutes` must be a number above 0; found True"),
        ({"minutes": 1e308}, "`minutes` must be at most 10,000,000; found 1e+308"),
        ({"minutes": np.float64(-1)}, "`minutes` must be a number above 0"),
        ({"minutes": "5"}, "`minutes` must be a number above 0"),
        ({"seed": True}, "`seed` must be a whole number"),
        ({"settings": 5}, "`settings` must be a mapping or a list; found 5"),
        ({"settings": [{"model.dim": 8}]}, "is not of the form section.key=value"),
        ({"config": 5}, "`config` must be the path of a TOML file; found 5"),
        ({"model": 5}, "Unknown model 5"),
        ({"split": "time"}, "`split` must be a SplitSpec"),
        ({"select_by": "hr@200"}, "HR@200 is the same for every model among 101 sampled candidates"),
        ({"select_by": f"ndcg@{10**30}"}, "`select_by` must be HR@k"),
        (
            {"settings": {"objective.next_item_weight": 0}},
            "objective.next_item_weight = 0 teaches masked items only, so model.ask = auto",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence_before_anything_is_written(
    dataset: Dataset, tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        train(dataset, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_numbers(dataset: Dataset, tmp_path: Path) -> None:
    given: dict[str, Any] = {"minutes": np.int64(60), "seed": np.int32(3)}
    run = train(dataset, tmp_path / "run", **given, settings={"training.steps": 2})
    assert run.plan.seed == 3


def test_what_is_not_a_dataset_a_run_or_a_folder_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run")
    frame: Any = pl.DataFrame({"user": [1]})
    with pytest.raises(
        UsageError, match=r"`dataset` must be a dataset or its folder; found DataFrame\. Make one with"
    ):
        train(frame)
    with pytest.raises(UsageError, match="`dataset` must be a dataset or its folder; found DataFrame"):
        run.evaluate(dataset=frame)
    with pytest.raises(UsageError, match=r"`model` must be a run, its folder or .*; found int"):
        load(5)  # type: ignore[arg-type]
    for wrong in ([5], [[run, 5]], [{"five": 5}]):
        with pytest.raises(UsageError, match="`runs` must be runs or their folders; found int"):
            compare(run, *wrong)


def test_an_evaluation_shows_in_the_metrics_and_does_not_need_to_be_kept(
    dataset: Dataset, tmp_path: Path
) -> None:
    run = train_tiny(dataset, tmp_path / "run", test=False)
    assert run.metrics.keys() == {"valid"}
    in_the_way = run.path / f".ranks-test-sampled.npy.unfinished-{os.getpid()}"
    in_the_way.mkdir()
    found = run.evaluate("test", device="cpu")
    assert Run.open(run.path).metrics.keys() == {"valid"}, "it could not be written"
    in_the_way.rmdir()
    assert run.evaluate("test", device="cpu") == found
    assert Run.open(run.path).metrics["test"] == run.metrics["test"] == found.metrics
    Run.open(run.path).verify()


def test_a_run_reads_as_one_line(dataset: Dataset, tmp_path: Path) -> None:
    run = train_tiny(dataset, tmp_path / "run")
    sampled, full = (run.metrics["test"][protocol]["NDCG@10"] for protocol in ("sampled", "full"))
    assert repr(run) == (
        f"<Run '{tmp_path / 'run'}': bert4rec on {dataset.name}, "
        f"test NDCG@10 {sampled:.4f} sampled, {full:.4f} full>"
    )
    temporary = train(dataset, model="pop", test=False, device="cpu")
    assert repr(temporary).startswith(f"<Run: pop on {dataset.name}, valid NDCG@10 0.")
    gone = Run.open(run.path)
    shutil.rmtree(run.path)
    assert repr(gone) == f"<Run '{run.path}': bert4rec on {dataset.name}>"


@pytest.mark.parametrize("left", [[], [".config.json.unfinished-12ab34cd"]])
def test_resuming_where_a_kill_left_nothing_to_resume_begins(
    dataset: Dataset, tmp_path: Path, left: list[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("{")
    run = train(dataset, folder, settings=TINY, seed=5, resume=True, device="cpu")
    assert run.plan.seed == 5
    assert not run.result["lines"][0]["resumed"]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(NotFoundError, match="is not a run"):
        train(dataset, tmp_path / "mine", settings=TINY, resume=True)


def test_a_folder_that_is_in_use_is_never_written_to_unless_told(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match="will not be overwritten"):
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
        ("bert4rec+", "sampled"),
        ("bert4rec+", "full"),
        ("POP", "sampled"),
        ("POP", "full"),
        ("Markov", "sampled"),
        ("Markov", "full"),
    ]
    assert table["HR@3"].to_list()[1] == found.metrics["full"]["HR@3"]
    assert table["SameList@20"].to_list() == [
        None,
        found.lists["SameList@20"],
        None,
        found.pop_lists["SameList@20"],
        None,
        None,
    ]
    assert table["MRR"].to_list()[-1] == found.markov["full"]["MRR"]
    assert sum(each["users"] for each in found.slices["full"]["activity"]) == found.users == 29
    assert found.left_out == 1
    assert found.warnings
    assert json.loads(json.dumps(found.as_dict())).keys() == {
        "dataset", "model", "stage", "split", "targets", "repeats", "users", "left_out", "metrics", "lists", "slices",
        "pop", "pop_lists", "markov"
    }  # fmt: skip
    assert list(run.evaluate(k=5, device="cpu").metrics["full"]) == ["HR@5", "NDCG@5", "MRR"]
    for wrong in ((0, 5), 0, "0"):
        with pytest.raises(
            UsageError, match=r"`k`: expected whole numbers from 1 to 2,147,483,647; found '?0"
        ):
            run.evaluate(k=wrong)  # type: ignore[arg-type]


def test_all_that_users_do_after_a_date_is_judged_as_one_would_count_it_in_recommendations(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    histories = random_histories()
    dataset = make_dataset(histories, action_times(histories), split=CUT_BY_TIME)
    run = train_tiny(dataset, tmp_path / "run")
    recommender, hits, targets, lists = load(run), [], [], []
    for history in histories:
        seen, then = ([f"item-{item}" for item in part] for part in (history[:6], history[6:]))
        if not set(then) - set(seen):
            continue
        lists.append([item.item_id for item in recommender.recommend(seen, k=5).items])
        targets.append(set(then) - set(seen))
        hits.append(len(targets[-1] & set(lists[-1])))
    found = run.evaluate(k=5, targets="all", device="cpu")
    assert (found.targets, found.users, list(found.metrics)) == ("all", len(hits), ["full"])
    assert found.metrics["full"]["Recall@5"] == pytest.approx(
        np.mean([hit / len(sought) for hit, sought in zip(hits, targets, strict=True)])
    )
    assert found.metrics["full"]["Precision@5"] == pytest.approx(np.mean(hits) / 5)
    assert found.metrics["full"]["HR@5"] == pytest.approx(np.mean([hit > 0 for hit in hits]))
    assert found.lists["Coverage@5"] == len({item for each in lists for item in each}) / dataset.num_items
    assert found.to_polars()["protocol"].to_list() == ["full"] * 3
    assert found.slices["full"].keys() == {"activity"}
    with pytest.raises(UsageError, match="`targets` must be one of 'next', 'all'; found 'some'"):
        run.evaluate(targets="some")  # type: ignore[arg-type]


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
        with pytest.raises(
            UsageError, match=r"chosen is the folder of the run itself\. Choose another `folder`"
        ):
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


def test_systems_are_called_as_the_caller_says_or_by_what_distinguishes_them(dataset: Dataset) -> None:
    def trained(seed: int, **settings: int) -> Run:
        changes = {f"model.{key}": value for key, value in settings.items()}
        return train(dataset, settings=TINY | changes, seed=seed, device="cpu")

    small, twin, large, flat = (
        trained(1, dim=4),
        trained(2, dim=4),
        trained(1, dim=8),
        trained(1, dim=8, layers=1),
    )
    pop = train(dataset, model="pop", device="cpu")
    assert [system.name for system in compare(small, twin, large, flat, pop).systems] == [
        "bert4rec+, model.dim=4",
        "bert4rec+, model.dim=8, model.layers=2",
        "bert4rec+, model.dim=8, model.layers=1",
        "pop",
    ]
    named = compare({"small": [small, twin], "large": large})
    assert [(system.name, system.seeds) for system in named.systems] == [("small", 2), ("large", 1)]
    assert named.systems[0].metrics == compare([small, twin], large).systems[0].metrics
    assert [system.name for system in compare({"one": small, "two": twin}).systems] == ["one", "two"]
    with pytest.raises(UsageError, match="The runs of 'mixed' differ in more than their seed"):
        compare({"mixed": [small, large], "pop": pop})


def test_an_export_gives_the_same_answers_and_names_what_it_needs(dataset: Dataset, tmp_path: Path) -> None:
    # Every layer takes seconds to export, and to verify, all is exported twice.
    run = train(dataset, tmp_path / "run", settings=TINY | {"model.layers": 1}, device="cpu")
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
    with pytest.raises(UsageError, match="`threads` applies to exported models only"):
        load(run, threads=2)
    with pytest.raises(UsageError, match="POP cannot be exported"):
        train(dataset, model="pop", device="cpu").export(tmp_path / "pop")
