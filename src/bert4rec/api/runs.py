"""Runs: train a model, compare several, load one to recommend."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Part, SplitSpec
from bert4rec.errors import UsageError
from bert4rec.evaluation.protocol import Protocol
from bert4rec.extras import require_torch

if TYPE_CHECKING:
    from bert4rec.api.comparison import Comparison
    from bert4rec.recommend.recommender import Recommender
    from bert4rec.training.run import Run
    from bert4rec.training.train import Listener
    from bert4rec.training.watch import Callback


def train(
    dataset: Dataset | str | Path,
    folder: str | Path | None = None,
    *,
    model: str = "bert4rec",
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, object] | Iterable[str] | None = None,
    seed: int = 1,
    refit: bool = True,
    test: bool = True,
    split: SplitSpec | None = None,
    device: str = "auto",
    compile: bool = True,  # noqa: A002 (the public name)
    resume: bool = False,
    overwrite: bool = False,
    results: str | Path | None = None,
    track: Literal["tensorboard", "mlflow"] | None = None,
    progress: bool | None = None,
    callback: "Callback | None" = None,
    listener: "Listener | None" = None,
    should_stop: Callable[[], bool] | None = None,
) -> "Run":
    """Train a model: choose the number of steps on the validation items, refit, test once.

    If training is stopped, it raises KeyboardInterrupt and leaves a checkpoint in `folder`, from which
    `resume=True` goes on.

    Parameters
    ----------
    dataset
        A dataset, or the folder of one.
    folder
        Folder of the run; None keeps it in a temporary folder for as long as the run is used.
    model
        "bert4rec", a baseline ("pop", "bpr-mf", "ncf", "fpmc", "gru4rec", "gru4rec+", "caser", "sasrec"), or a model
        that was registered.
    preset
        Named settings to start from. Without one, usual settings, and as many steps as the size of the data asks for.
    config
        A TOML file of settings, with the sections `model`, `objective` and `training`. It changes the preset.
    settings
        Single settings, such as `{"model.dim": 128}`. They change the preset and the file.
    seed
        Of weights, batches, masks and dropout.
    refit
        Train again on all but the test items once the number of steps is chosen.
    test
        Refit and look at the test items in the end. Use False while you are still choosing settings, and `run.refit()`
        when you have chosen.
    split
        How histories are cut for validation and test; None: as the dataset was prepared.
    device
        "auto", "cpu", "cuda" or "cuda:1".
    compile
        Compile the training step if that helps: on a GPU.
    resume
        Continue an interrupted run, with the settings it was started with.
    overwrite
        Start again in a folder that holds a run.
    results
        Append the result to this file, one JSON object a line; ranks go to a folder beside it.
    track
        Also log to "tensorboard" (in the run's folder) or "mlflow".
    progress
        Whether to show a live line; None shows one in notebooks.
    callback
        Hears a `TrainingStatus` about once a second and at every validation. If it returns True, training stops.
    listener
        The advanced form of `callback`: an object with a method for each kind of news. It replaces the logger.
    should_stop
        Asked before every step; True stops training.
    """
    began = time.perf_counter()
    require_torch()
    # What can be refused without torch is refused first: loading it takes seconds.
    from bert4rec.training.plan import Plan, refuse_run

    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if resume:
        changes = [model != "bert4rec", preset, config, settings, seed != 1, split, overwrite]
        if any([*changes, not refit, not test]):
            raise UsageError(
                "`resume=True` keeps the settings of the run. Leave out `model`, `preset`, `config`, `settings`, "
                "`seed`, `split`, `refit`, `test` and `overwrite`."
            )
        if folder is None:
            raise UsageError("`folder` is required with `resume=True`.")
        plan = Plan.load(Path(folder))
        plan.check_dataset(opened)
        # It may have moved since.
        plan = replace(plan, dataset=str(opened.path.absolute()) if opened.path else "")
    else:
        from bert4rec.settings.config import choose_config

        chosen = choose_config(opened, model, preset=preset, settings=settings or (), config=config)
        if folder is not None:
            refuse_run(Path(folder), overwrite=overwrite)
        plan = Plan.for_dataset(
            opened, model, chosen, preset=preset, seed=seed, split=split, refit=refit, test=test
        )
    from bert4rec.training.launch import launch

    return launch(
        opened,
        folder,
        plan,
        device=device,
        compile_step=compile,
        resume=resume,
        overwrite=overwrite,
        results=results,
        track=track,
        progress=progress,
        callback=callback,
        listener=listener,
        should_stop=should_stop,
        began=began,
    )


def load(model: "Run | str | Path", *, device: str = "auto", threads: int = 1) -> "Recommender":
    """Load a model to recommend with.

    Parameters
    ----------
    model
        A run or its folder, or the folder of an exported model, which needs no torch.
    device
        Of a run: "auto", "cpu", "cuda" or "cuda:1".
    threads
        Of an exported model: how many processors one answer may use.
    """
    from bert4rec.recommend.recommender import Recommender

    if isinstance(model, str | Path):
        return Recommender.load(model, device=device, threads=threads)
    from bert4rec.recommend.run_engine import recommender_of

    return recommender_of(model, device)


def compare(
    *runs: "Run | str | Path | Iterable[Run | str | Path]",
    metric: str = "NDCG@10",
    protocol: Protocol = "sampled",
    split: Part = "test",
) -> "Comparison":
    """Compare runs on the same items: means, differences from the first, intervals and significance tests.

    Parameters
    ----------
    runs
        Two or more runs or their folders. Runs that differ only in their seed count as one system; they may be given
        as a list.
    metric
        "HR@k", "NDCG@k" with any k, or "MRR".
    protocol
        "sampled" or "full".
    split
        "test", or "valid" while you are still choosing settings.
    """
    from bert4rec.api.comparison import compare_runs
    from bert4rec.training.run import Run

    listed = [[run] if isinstance(run, Run | str | Path) else list(run) for run in runs]
    flat = [run for each in listed for run in each]
    if len(flat) < 2:
        raise UsageError("Two runs or more are required to compare.")
    return compare_runs(flat, metric=metric, protocol=protocol, part=split)
