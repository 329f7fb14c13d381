"""Start a run as its caller wants it: where, who watches, what is kept beside it."""

import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bert4rec import __version__
from bert4rec.artefact import held, write_text
from bert4rec.data.dataset import Dataset
from bert4rec.data.splits import make_split
from bert4rec.distributed.crew import ALONE, Crew
from bert4rec.errors import Bert4RecError, NotFoundError, UsageError, one_of
from bert4rec.kernels.support import has_triton, loading_compiler
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.device import Placement, place
from bert4rec.training.memory import what_fits
from bert4rec.training.plan import Plan, clear_run, open_dataset
from bert4rec.training.reporting.code_mark import code_checksum
from bert4rec.training.reporting.forecast import Forecast
from bert4rec.training.reporting.results import append_results
from bert4rec.training.reporting.watch import TRACKERS, Callback, Listener, Track, Watch, make_tracker
from bert4rec.training.run import Run
from bert4rec.training.specs import MODELS
from bert4rec.training.stages import StageTrainer
from bert4rec.training.train import RESULT, RunContext, train

if TYPE_CHECKING:
    from bert4rec.distributed.ranks import Ranks


class TemporaryFolder:
    """A folder that is removed once nothing refers to this object any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="bert4rec-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def launch(
    dataset: Dataset,
    folder: str | Path | None,
    plan: Plan,
    *,
    device: str = "auto",
    compile_step: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    results: str | Path | None = None,
    track: Track | None = None,
    progress: bool | None = None,
    callback: Callback | None = None,
    listener: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
    began: float | None = None,
    begun_by: Run | None = None,
    told: str = "",
    remedy: str = "",
    crew: Crew | None = None,
) -> Run:
    """Train what `plan` asks for. The parameters are those of `bert4rec.train`.

    `began` is when the caller began, for the time that is reported. What `begun_by` has of the plan's stages is reused.
    `told` is what there is to say about the plan, `remedy` what to try in the place of other settings. `crew` are the
    processes that train together, as `join` gives them.
    """
    crew = crew or ALONE
    if track is not None:
        one_of("track", track, TRACKERS)
    placement = place(device)
    has_kernels = MODELS[plan.model].network.has_kernels and has_triton()
    if placement.device.type == "cuda" and crew.is_alone and has_kernels:
        loading_compiler(placement.device)
    if dataset.path:
        dataset.verify()
    keeper = TemporaryFolder() if folder is None else None
    # Comparisons call a run by its folder, so a temporary one is called by its model.
    target = keeper.path / plan.model if keeper else Path(folder or "")
    with held(target, wait=False):
        if not resume:
            clear_run(target, overwrite=overwrite)
            crew.note_begun(target)
        if begun_by:
            _copy_stages(begun_by, target, plan)
        with (
            # Training seeds torch; the caller's random numbers go on as if nothing had happened.
            torch.random.fork_rng(devices=[placement.device] if placement.device.type == "cuda" else []),
            make_tracker(track, target) as tracker,
            Watch(
                callback=callback,
                listener=listener,
                tracker=tracker,
                should_stop=should_stop,
                progress=progress,
                metric=plan.select_by,
            ) as watch,
        ):
            if told:
                watch.say(told)
            since = time.perf_counter() if began is None else began
            context = RunContext(
                placement,
                watch,
                compile_step,
                watch.should_stop,
                since,
                is_announced=bool(told),
                remedy=remedy,
                crew=crew,
            )
            run, reason = None, ""
            try:
                with crew.order("plan", plan=plan.as_dict()):
                    pass
                run = train(dataset, target, plan, context)
            except torch.OutOfMemoryError as error:  # Whose frames hold memory for as long as it is handled.
                reason = str(error).partition("\n")[0]
            if run is None:
                raise UsageError(what_fits(dataset, plan, placement, reason, processes=crew.size))
    if results:
        _add_to(Path(results), run)
    return replace(run, trained_on=dataset, keeper=keeper)


@contextmanager
def join(
    dataset: Dataset | str | Path, device: str, given: Mapping[str, object], *, compile_step: bool
) -> Iterator[tuple[Crew, str]]:
    """With `torchrun`: the processes that train together, and the device of this one, for the first of them.

    The others do their part in here and end. All must have the same data and be `given` the same parameters of `train`.
    """
    from bert4rec.distributed.ranks import device_of_rank, joined

    with joined() as ranks:
        error: Bert4RecError | None = None
        facts: dict[str, str] = {}
        try:
            opened = open_dataset(dataset)
            if opened.path:
                opened.verify()
            device = device_of_rank(device)
            facts = {
                "the version of bert4rec": f"{__version__} ({code_checksum()})",
                "the version of torch": str(torch.__version__),
                "the checksum of the dataset": opened.checksum,
                "the checksum of the stored candidates": opened.candidates_checksum(),
                "the device": torch.device(device).type,
                **{f"`{name}`": _in_words(value) for name, value in given.items()},
            }
        except Bert4RecError as found:
            error = found
        except OSError as found:
            error = NotFoundError(f"{found.filename}: {found.strerror}.")
        try:
            ranks.agree(facts, error)
        except Bert4RecError as disagreement:
            if not ranks.leads:
                ranks.leave(disagreement.exit_code)
            raise
        if ranks.leads:
            yield ranks, device
        else:
            with _undisturbed():
                follow(ranks, opened, place(device), compile_step=compile_step)
    if not ranks.leads:
        raise SystemExit(0)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave Ctrl-C and SIGTERM to the first process, which hears them, too, and says what is to be done."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(ranks: "Ranks", dataset: Dataset, placement: Placement, *, compile_step: bool = True) -> None:
    """What all processes but the first do: their part of each training that it launches."""
    _, given = next(ranks.orders(), ("", None))
    while given is not None:
        plan = Plan.from_dict(given["plan"])
        unheard = Watch(
            callback=None,
            listener=None,
            tracker=lambda *_: None,
            should_stop=None,
            progress=False,
            metric=plan.select_by,
        )
        context = RunContext(placement, unheard, compile_step, crew=ranks)
        split, spec = make_split(dataset, plan.split), MODELS[plan.model]
        try:
            given = StageTrainer(dataset, split, Path(), plan, context, spec, Forecast(plan)).follow(ranks)
        except torch.OutOfMemoryError as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(what_fits(dataset, plan, placement, reason, processes=ranks.size)) from error


def _in_words(value: object) -> str:
    """A parameter as others have it, too: of a file, what is in it."""
    return value.read_text(encoding="utf-8") if isinstance(value, Path) else str(value)


def refit_run(
    run: Run, folder: str | Path | None, *, for_production: bool = False, dataset: Dataset, **options: Any
) -> Run:
    """What `Run.refit` does."""
    if run.plan.refit == "all":
        raise UsageError(f"{run.path} was refitted, tested and trained on everything already.")
    if run.plan.refit and run.plan.test and not for_production:
        raise UsageError(
            f"{run.path} was refitted and tested already. To train on everything, use `run.refit(all=True)`."
        )
    if run.plan.variant:
        raise UsageError(f"{run.path} holds a variant of {run.plan.model}, which cannot be refitted.")
    if folder is not None and Path(folder).resolve() == run.path.resolve():
        raise UsageError(
            f"{run.path} is the folder of the run itself. Choose another `folder` for the refit."
        )
    run.verify()
    where = str(dataset.path.absolute()) if dataset.path else ""
    plan = replace(run.plan, dataset=where, refit="all" if for_production else True, test=True)
    return launch(dataset, folder, plan, begun_by=run, **options)


def _copy_stages(run: Run, folder: Path, plan: Plan) -> None:
    """The selection depends on nothing that comes later, so it is the same in a run that goes further. So is the refit,
    and what was found with it, if the run was tested."""
    tensors, state = load_tensors(run.path / "selection.safetensors")
    save_tensors(folder / "selection.safetensors", tensors, {**state, "tag": plan.tag("selection")})
    if (run.path / "progress.jsonl").exists():
        shutil.copyfile(run.path / "progress.jsonl", folder / "progress.jsonl")
    if run.plan.refit:
        for path in (run.path / "model.safetensors", *run.path.glob("ranks-*.npy")):
            shutil.copyfile(path, folder / path.name)
        found = {name: value for name, value in run.result.items() if name != "seen"}
        write_text(folder / RESULT, dumps(found, indent=2))


def _add_to(results: Path, run: Run) -> None:
    """Add the run's lines unless they are there: an earlier call may have been killed before or after it did so."""
    there = set(results.read_text(encoding="utf-8").splitlines()) if results.exists() else set()
    if not all(dumps(line, ensure_ascii=False) in there for line in run.result["lines"]):
        append_results(results, run)
