"""Optional trackers: TensorBoard and MLflow, loaded only when used."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from bert4rec.errors import UsageError


class Tracker(Protocol):
    """Takes numbers as training goes on."""

    def __call__(self, name: str, value: float, step: int) -> None: ...


@contextmanager
def make_tracker(kind: Literal["tensorboard", "mlflow"] | None, folder: Path) -> Iterator[Tracker]:
    """A tracker of this kind; None gives one that does nothing."""
    if kind == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "`track=tensorboard` needs TensorBoard: pip install 'bert4rec[tensorboard]'."
            ) from error
        with SummaryWriter(str(folder / "tensorboard")) as writer:
            yield writer.add_scalar
    elif kind == "mlflow":
        try:
            import mlflow
        except ImportError as error:
            raise UsageError("`track=mlflow` needs MLflow: pip install 'bert4rec[mlflow]'.") from error
        with mlflow.start_run(run_name=folder.name):
            yield lambda name, value, step: mlflow.log_metric(name, value, step=step)
    else:
        yield lambda _name, _value, _step: None
