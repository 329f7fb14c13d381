import sys
from pathlib import Path
from types import ModuleType

import pytest

from bert4rec.errors import UsageError
from bert4rec.training.reporting.watch import make_tracker


class Recorder:
    """Stands in for TensorBoard's writer and for MLflow, neither of which need be installed."""

    def __init__(self, *_: object, **__: object) -> None:
        self.numbers: list[tuple[str, float, int]] = []

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None: ...

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.numbers.append((name, value, step))


def test_a_tracker_passes_numbers_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    tensorboard, mlflow = ModuleType("torch.utils.tensorboard"), ModuleType("mlflow")
    monkeypatch.setattr(tensorboard, "SummaryWriter", lambda _folder: recorder, raising=False)
    monkeypatch.setattr(mlflow, "start_run", lambda run_name: recorder, raising=False)
    monkeypatch.setattr(mlflow, "log_metric", recorder.add_scalar, raising=False)
    for module in (tensorboard, mlflow):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for kind in ("tensorboard", "mlflow", None):
        with make_tracker(kind, tmp_path) as track:
            track("selection/loss", 0.5, 3)
    assert recorder.numbers == [("selection/loss", 0.5, 3)] * 2


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_tracker_that_is_not_installed_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for module in ("torch.utils.tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(UsageError, match=rf"pip install 'bert4rec\[{kind}\]'"),
        make_tracker(kind, tmp_path),  # type: ignore[arg-type]
    ):
        pass
