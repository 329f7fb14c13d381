"""Whether an exported model is as good as the run it came from, judged on the validation items.

Those are judged with the weights that never saw them, so it is the selected model that is exported here and
compared; the final one, which is served, differs from it in its weights alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import Histories
from bert4rec.data.splits import Targets, make_split
from bert4rec.errors import UsageError
from bert4rec.evaluation.judge import metrics_of, rows_per_batch
from bert4rec.evaluation.protocol import Scorer, rank_targets
from bert4rec.export.exporter import export_model
from bert4rec.recommend.catalogue import Catalogue
from bert4rec.recommend.engine import Engine
from bert4rec.recommend.onnx_engine import OnnxEngine, read_model
from bert4rec.training.device import Placement
from bert4rec.training.run import Run

METRIC = "NDCG@10"
MOST_USERS = 10_000
"""More would take minutes and tell no more: both models are judged on the same ones."""
TOLERANCE = 0.01
"""The share of the metric that an export may lose."""


@dataclass(frozen=True)
class ExportCheck:
    """The metric on the validation items under each protocol, before and after the export."""

    users: int
    before: dict[str, float]
    after: dict[str, float]

    @property
    def is_good(self) -> bool:
        return all(self.after[name] >= (1 - TOLERANCE) * self.before[name] for name in self.before)


def compare_export(run: Run, dataset: Dataset, *, int8: bool) -> ExportCheck:
    """Export the selected model to a folder that is thrown away, and judge both."""
    cpu = Placement(torch.device("cpu"), None)
    targets = make_split(dataset, run.plan.split).valid
    some = np.linspace(0, len(targets) - 1, min(len(targets), MOST_USERS)).astype(np.int64)
    targets = Targets(targets.users[some], targets.positions[some])
    with TemporaryDirectory(prefix="bert4rec-") as scratch:
        folder = Path(scratch) / "model"
        model = run.load_model("selection", cpu.device)
        catalogue = Catalogue.read_table(run.path / "items.parquet")
        export_model(model, catalogue, folder, name="", int8=int8, with_attention=False)
        engine = OnnxEngine(folder, read_model(folder), threads=torch.get_num_threads())
        before = _judge(run.scorer("selection", cpu), dataset, targets)
        after = _judge(_scorer(engine), dataset, targets)
    return ExportCheck(len(targets), before, after)


def refuse_worse(
    run: Run, dataset: Dataset, *, int8: bool, callback: Callable[[ExportCheck], object] | None
) -> None:
    """Compare both, and raise an error if the export is worse; `callback` hears how they compare."""
    check = compare_export(run, dataset, int8=int8)
    if callback:
        callback(check)
    if not check.is_good:
        advice = " Try `int8=False`." if int8 else ""
        raise UsageError(f"The export loses too much and was not written.{advice}")


def _judge(scorer: Scorer, dataset: Dataset, targets: Targets) -> dict[str, float]:
    rows = rows_per_batch(dataset.num_items, "cpu")
    ranks = rank_targets(scorer, dataset, targets, negatives=dataset.negatives(), batch_size=rows)
    return {protocol: metrics[METRIC] for protocol, metrics in metrics_of(ranks).items()}


def _scorer(engine: Engine) -> Scorer:
    def scores(_users: NDArray[np.int64], histories: Histories) -> NDArray[np.float32]:
        queries = engine.queries(histories.newest(engine.max_history))
        return np.pad(queries @ engine.rows.T + engine.bias, ((0, 0), (1, 0)), constant_values=-np.inf)

    return scores
