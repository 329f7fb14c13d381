"""Runs: train a model, compare several, load one to recommend."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import Part, SplitSpec
from bert4rec.errors import UsageError
from bert4rec.evaluation.protocol import Protocol
from bert4rec.extras import require_torch
from bert4rec.machine import is_restarted, num_ranks
from bert4rec.settings.checks import checked_minutes, checked_seed

if TYPE_CHECKING:
    from bert4rec.api.comparison import Comparison, Systems
    from bert4rec.distributed.crew import Crew
    from bert4rec.recommend.recommender import Recommender
    from bert4rec.training.plan import Refit
    from bert4rec.training.reporting.watch import Callback, Listener, Track
    from bert4rec.training.run import Run


def train(
    dataset: Dataset | str | Path,
    folder: str | Path | None = None,
    *,
    model: str | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, object] | Iterable[str] | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    refit: "Refit | None" = None,
    test: bool | None = None,
    select_by: str | None = None,
    split: SplitSpec | None = None,
    device: str = "auto",
    compile: bool = True,  # noqa: A002 (the public name)
    resume: bool = False,
    overwrite: bool = False,
    results: str | Path | None = None,
    track: "Track | None" = None,
    progress: bool | None = None,
    callback: "Callback | None" = None,
    listener: "Listener | None" = None,
    should_stop: Callable[[], bool] | None = None,
) -> "Run":
    """Train a model: choose the number of steps on the validation items, refit, test once.

    Ctrl-C stops training after the current step, and so does `callback`: a checkpoint is written to `folder`, and
    `bert4rec.training.loop.Interrupted`, a KeyboardInterrupt, is raised. Continue with the same call and
    `resume=True`. A second Ctrl-C stops at once; the last checkpoint, at most some minutes old, is kept.

    In a script that `torchrun` starts several times, all processes train together. Only the first comes back from
    here; the others end.

    Parameters
    ----------
    dataset
        A dataset, or the folder of one.
    folder
        Folder of the run; None keeps it in a temporary folder for as long as the run is used.
    model
        "bert4rec+" (the default), "bert4rec" (the paper's), a baseline ("pop", "bpr-mf", "ncf", "fpmc", "gru4rec",
        "gru4rec+", "caser", "sasrec"), or a model that was registered.
    preset
        Named settings to start from. Without one, settings follow from the data.
    config
        A TOML file of settings, with the sections `model`, `objective` and `training`. It changes the preset.
    settings
        Single settings, such as `{"model.dim": 128}`. They change the preset and the file.
    minutes
        How long all of it may take: selection, refit, test and, with `refit="all"`, the training on everything. Steps,
        width and validations are planned for that time on this machine, unless they were set: `preset` keeps the width,
        `config` and `settings` keep what they name.
        By default it takes as long as the usual settings need; on a CPU, bert4rec+ without a preset or a number of
        steps takes at most 15.
    seed
        Of weights, batches, masks and dropout; 1 by default. The caller's random numbers are left alone.
    refit
        Train again on all but the test items once the number of steps is chosen; True by default. "all": then look at
        the test items, and train once more on everything, for as many steps an action. `load` and `run.export` take
        these weights; all metrics are those of the refit, which has not seen the test items.
    test
        Refit and look at the test items in the end; True by default. Use False while you are still choosing settings,
        and `run.refit()` when you have chosen.
    select_by
        By which metric the best number of steps is chosen on the validation items: "HR@k", "NDCG@k" or "MRR", among
        the sampled candidates or, followed by ":full", among all items; ":both" takes the geometric mean of the two.
        By default "NDCG@10", as in the paper; for bert4rec+ "NDCG@10:both".
    split
        How histories are cut for validation and test; None: as the dataset was prepared.
    device
        "auto", "cpu", "cuda", "cuda:1" or "mps".
    compile
        Compile the training step where that helps: on a GPU, for models that have no kernels of their own.
    resume
        Continue an interrupted run, with the settings it was started with. They need not be passed again; other ones
        are refused, and `minutes` only count for a run that begins. If there is nothing to continue, one begins: the
        same call suits the first start and every restart.
    overwrite
        Start again in a folder that holds a run.
    results
        Append the result to this file, one JSON object a line; ranks go to a folder beside it.
    track
        Also log to "tensorboard" (in the run's folder) or "mlflow".
    progress
        Whether to show a live line; None shows one in notebooks.
    callback
        Hears a `TrainingStatus` about once a second and at every validation. If it returns something true, training
        stops as on Ctrl-C.
    listener
        The advanced form of `callback`: an object with a method for each kind of news. It replaces the logger.
    should_stop
        Asked before every step; True stops training as on Ctrl-C.
    """
    began = time.perf_counter()
    require_torch()
    minutes = None if minutes is None else checked_minutes(minutes)
    if isinstance(settings, Iterator):  # They are read more than once.
        settings = tuple(settings)
    asked = {
        "model": model,
        "preset": preset,
        "config": Path(config) if config and isinstance(config, str) else config,
        "settings": settings,
        "seed": seed,
        "split": split,
        "refit": refit,
        "test": test,
        "select_by": select_by,
        "minutes": minutes,
        "resume": resume,
    }
    with _together(dataset, device, asked, compile_step=compile) as (crew, own_device):
        if folder is not None and (crew.has_begun(Path(folder)) if crew else is_restarted()):
            resume, overwrite = True, False  # torchrun has started again after a failure.
        # What can be refused without torch is refused first: loading it takes seconds.
        from bert4rec.training.plan import Plan, is_begun, open_dataset, refuse_run

        opened, told = open_dataset(dataset), ""
        if resume and folder is None:
            raise UsageError("`folder` is required with `resume=True`.")
        if resume and overwrite:
            raise UsageError("`resume=True` and `overwrite=True` cannot be used together.")
        if resume and is_begun(Path(folder or "")):
            assert folder is not None
            plan = Plan.load(Path(folder))
            plan.refuse_changes(
                model=model,
                preset=preset,
                config=config,
                settings=settings,
                seed=seed,
                split=split,
                refit=refit,
                test=test,
                select_by=select_by,
            )
            plan.check_dataset(opened)
            # It may have moved since.
            plan = replace(plan, dataset=str(opened.path.absolute()) if opened.path else "")
        else:
            from bert4rec.settings.config import GivenSettings
            from bert4rec.settings.defaults import DataFacts
            from bert4rec.settings.sections import DEFAULT_MODEL

            model, seed = model or DEFAULT_MODEL, checked_seed(seed)
            given, facts = GivenSettings.read(model, preset, settings or (), config), DataFacts.of(opened)
            chosen = given.complete(facts)
            if folder is not None and not resume:
                refuse_run(Path(folder), overwrite=overwrite)
            plan = Plan.for_dataset(
                opened,
                model,
                chosen,
                preset=preset,
                seed=seed,
                split=split,
                refit=True if refit is None else refit,
                test=test is not False,
                select_by=select_by,
            )
            if chosen.training:
                from bert4rec.budget.time_plan import plan_minutes, usual_minutes
                from bert4rec.training.device import place

                placement = place(own_device)
                limit = usual_minutes(given, placement) if minutes is None else minutes
                if limit is not None:
                    plan, told = plan_minutes(
                        limit,
                        plan,
                        given,
                        opened,
                        placement,
                        compile_step=compile,
                        began=began,
                        is_asked=minutes is not None,
                    )
        from bert4rec.training.launch import launch

        return launch(
            opened,
            folder,
            plan,
            device=own_device,
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
            told=told,
            crew=crew,
        )


@contextmanager
def _together(
    dataset: Dataset | str | Path, device: str, given: Mapping[str, object], *, compile_step: bool
) -> "Iterator[tuple[Crew | None, str]]":
    """The processes that torchrun has started to train together, if it has, and the device of this one.

    Only the first of them comes out of here.
    """
    if num_ranks() == 1:
        yield None, device
        return
    from bert4rec.training.launch import join

    with join(dataset, device, given, compile_step=compile_step) as joined:
        yield joined


def load(
    model: "Run | str | Path",
    *,
    device: str = "auto",
    threads: int = 1,
    quantised: bool = True,
    approximate: bool = False,
    force: bool = False,
) -> "Recommender":
    """Load a model to recommend with.

    Parameters
    ----------
    model
        A run or its folder, or the folder of an exported model, which needs no torch.
    device
        Of a run: "auto", "cpu", "cuda", "cuda:1" or "mps".
    threads
        Of an exported model: how many processors one answer may use.
    quantised
        Of an exported model: whether to search 100,000 items and more by vectors of whole numbers first. The answers
        are the same; False takes several times as long and a quarter less memory.
    approximate
        Of a model that was exported with `approximate=True`: search its index instead of all items. Scores are exact;
        now and then one of the best items is not found.
    force
        Of an exported model: load it even if it recommends the same to everybody.
    """
    from bert4rec.recommend.opening import open_folder, refuse_options_of_exported

    if isinstance(model, str | Path):
        return open_folder(
            Path(model),
            device=device,
            threads=threads,
            quantised=quantised,
            approximate=approximate,
            force=force,
        )
    from bert4rec.training.run import Run

    if not isinstance(model, Run):
        raise UsageError(
            "`model` must be a run, its folder or the folder of an exported model; found "
            f"{type(model).__name__}."
        )
    refuse_options_of_exported(threads=threads, quantised=quantised, approximate=approximate, force=force)
    require_torch()
    from bert4rec.recommend.run_engine import recommender_of

    return recommender_of(model, device)


def compare(
    *runs: "Systems",
    metric: str = "NDCG@10",
    protocol: Protocol = "sampled",
    split: Part = "test",
) -> "Comparison":
    """Compare runs on the same items: means, differences from the first, intervals and significance tests.

    Parameters
    ----------
    runs
        Two or more runs or their folders. Runs that differ only in their seed count as one system; they may be given
        as a list. With a mapping, such as `{"small": run, "large": other}`, you name the systems yourself.
    metric
        "HR@k", "NDCG@k", "Recall@k", "Precision@k" or "MRR@k" with any k, or "MRR"; upper or lower case.
    protocol
        "sampled" or "full".
    split
        "test", or "valid" while you are still choosing settings.
    """
    from bert4rec.api.comparison import compare_runs

    return compare_runs(runs, metric=metric, protocol=protocol, part=split)
