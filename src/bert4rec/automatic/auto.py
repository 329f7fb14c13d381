"""`bert4rec.auto`: from a log to a model that can be served, and a page about it, in a given time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert4rec.artefact import held
from bert4rec.automatic.auto_folder import AutoFolder
from bert4rec.data.dataset import Dataset
from bert4rec.errors import UsageError
from bert4rec.extras import require_exporters, require_torch
from bert4rec.frames import Frame, is_frame
from bert4rec.settings.checks import checked_minutes, checked_seed

if TYPE_CHECKING:
    from bert4rec.api.comparison import Comparison
    from bert4rec.training.reporting.watch import Listener
    from bert4rec.training.run import Run


@dataclass(frozen=True)
class AutoResult:
    """What `auto` has made and found."""

    folder: Path
    dataset: Dataset
    runs: "dict[str, Run]"
    """Name of the model → its run, in which the test items were held out."""
    served: str
    """Name of the model that was the best on the validation items."""
    comparison: "Comparison"
    """All models on the test items, among all items, as differences from POP."""
    sentence: str
    """What was found: which model, how much better than popularity, and how sure that is."""
    seconds: dict[str, float]
    """Stage → how long it took."""

    def as_dict(self) -> dict[str, Any]:
        """What was found as plain values, ready for JSON."""
        return {
            "served": self.served,
            "sentence": self.sentence,
            "metrics": {model: run.metrics for model, run in self.runs.items()},
            "comparison": self.comparison.as_dict(),
            "seconds": self.seconds,
        }

    @property
    def page(self) -> Path:
        """The report, an HTML file."""
        return self.folder / "report.html"

    @property
    def model(self) -> Path:
        """The exported model, for `load` and `serve`."""
        return self.folder / "model"


def auto(
    source: Dataset | Frame | str | Path | Sequence[str | Path],
    folder: str | Path,
    minutes: float = 10,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    title: str | int | None = None,
    items: Frame | str | Path | None = None,
    time_format: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    local_copy: str | Path | None = None,
    min_user_actions: int | None = None,
    samples: bool = False,
    seed: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    listener: "Listener | None" = None,
    should_stop: Callable[[], bool] | None = None,
    wording: Callable[[str], str] = str,
) -> AutoResult:
    """Do everything with a log: prepare, train BERT4Rec+ beside SASRec and POP, compare, export, write a page.

    The best on the validation items is trained once more on everything and exported. If the call is interrupted, the
    same call goes on where it stopped.

    Parameters
    ----------
    source
        As in `prepare`, or a dataset or its folder.
    folder
        Folder for the dataset, the runs, the exported model and report.html.
    minutes
        How long all of it may take. The trainings are planned for that time on this machine.
    user, item, time, title, items, time_format, separator, encoding, local_copy, min_user_actions
        As in `prepare`.
    samples
        Export the histories of a few users too, so that the service's page can show them. Everybody who may use the
        service will see them.
    seed
        Of the trainings; 1 by default.
    device
        "auto", "cpu", "cuda", "cuda:1" or "mps".
    overwrite
        Start again in a folder that an earlier call has filled.
    listener
        Hears messages and how training is going; by default messages go to the logger.
    should_stop
        Asked before every step; True stops as Ctrl-C does.
    wording
        Applied to what the library says on the page; the command line writes parameters as options.
    """
    require_torch()
    require_exporters()
    reading = {
        "user": user,
        "item": item,
        "time": time,
        "title": title,
        "items": items,
        "time_format": time_format,
        "separator": separator,
        "encoding": encoding,
        "local_copy": local_copy,
        "min_user_actions": min_user_actions,
    }
    reading = {name: value for name, value in reading.items() if value is not None}
    limit, start = checked_minutes(minutes), checked_seed(seed)
    asked = {"source": source, **reading, "minutes": limit, "samples": samples, "seed": start}
    target = Path(folder)
    origin = source.path if isinstance(source, Dataset) else source
    if isinstance(origin, str | Path) and target.resolve() in Path(origin).resolve().parents:
        raise UsageError(f"{origin} lies in {target}, which is to be filled. Choose another `folder`.")
    with held(target, wait=False):
        begun = AutoFolder.begin(
            target, {key: _plain(value) for key, value in asked.items()}, overwrite=overwrite
        )
        try:
            from bert4rec.automatic.auto_stages import EXPORTED, POPULAR, AutoStages

            stages = AutoStages(begun, 60 * limit, start, device, listener, should_stop or (lambda: False))
            dataset = stages.prepare(source, reading)
            runs = {model: stages.train(model, dataset) for model in (POPULAR, *EXPORTED)}
            found = stages.find(dataset, runs)
            final = stages.train_for_production(found)
            stages.export(final, samples=samples)
            stages.write_page(found, wording)
            result = AutoResult(
                target, dataset, runs, final.model, found.comparison, found.sentence, begun.seconds
            )
            begun.save(result.as_dict())
            return result
        finally:
            if not begun.is_begun:  # Nothing was done, so nothing is left.
                begun.clear()


def _plain(value: Any) -> Any:
    """A parameter as auto.json keeps it. What frames hold is compared when they have been read."""
    if is_frame(value) or isinstance(value, Dataset):
        return f"a {type(value).__name__}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(each) for each in value]
    return str(value) if isinstance(value, Path) else value
