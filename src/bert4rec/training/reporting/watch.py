"""Who watches a training: a callback, a live line in a notebook, a tracker."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, get_args

from bert4rec.errors import UsageError
from bert4rec.evaluation.criterion import USUAL
from bert4rec.machine import num_ranks
from bert4rec.progress import is_notebook, is_shown
from bert4rec.training.plan import Stage

if TYPE_CHECKING:
    from rich.status import Status

    from bert4rec.training.loop import TrainingProgress

log = logging.getLogger("bert4rec")
Track = Literal["tensorboard", "mlflow"]
TRACKERS: tuple[Track, ...] = get_args(Track)


@dataclass(frozen=True)
class Throughput:
    """How fast training is right now."""

    loss: float
    """Mean loss since the last mark."""
    samples_per_second: float
    seconds_left: float
    """Until the end of the run, if nothing ends early."""


class Listener(Protocol):
    """Watches a run: a live line, a log, a tracker."""

    def stage(self, stage: Stage, steps: int) -> None:
        """A stage begins, of at most so many steps."""
        ...

    def progress(self, stage: Stage, progress: "TrainingProgress", pace: Throughput) -> None:
        """About once a second, and after every validation."""
        ...

    def busy(self, what: str, seconds_left: float) -> None:
        """Something other than training has begun that may take minutes."""
        ...

    def say(self, text: str) -> None:
        """Something that the user should know."""
        ...

    def warn(self, text: str) -> None:
        """Something that makes the result doubtful, and what to do about it."""
        ...


class Tracker(Protocol):
    """Takes numbers as training goes on."""

    def __call__(self, name: str, value: float, step: int) -> None: ...


@dataclass(frozen=True)
class TrainingStatus:
    """How training stands, about once a second and at every validation."""

    stage: Stage | None
    """"selection", "refit" or "production"; None before training begins."""
    step: int
    steps: int
    """How many steps this stage has at most."""
    loss: float | None
    """Mean training loss since the last validation."""
    value: float | None
    """Of the last validation: the metric by which the best weights are chosen."""
    seconds_left: float | None
    """Of all that is still to come, if nothing ends early."""
    message: str | None
    """What has just begun or was just found, in a sentence; None in plain reports of progress."""
    metric: str = USUAL
    """What `value` is, such as NDCG@10 or NDCG@10:full."""

    def __str__(self) -> str:
        if self.message:
            return self.message
        parts = [f"{self.stage}: step {self.step:,} of {self.steps:,}"]
        parts += [f"loss {self.loss:.3f}"] if self.loss is not None else []
        parts += [f"{self.metric} {self.value:.4f}"] if self.value is not None else []
        parts += [f"{timedelta(seconds=round(self.seconds_left))} left"] if self.seconds_left else []
        return ", ".join(parts)


Callback = Callable[[TrainingStatus], object]
"""Hears how training stands. Training stops with a checkpoint if it returns something true or raises
KeyboardInterrupt."""


class Watch:
    """The listener of a run that the library starts: tells everybody else who listens.

    Without a `listener`, messages go to the logger "bert4rec", warnings as such. Ctrl-C becomes a request to stop
    with a checkpoint, unless the caller handles it already.
    """

    def __init__(
        self,
        *,
        callback: Callback | None,
        listener: Listener | None,
        tracker: Tracker,
        should_stop: Callable[[], bool] | None,
        progress: bool | None,
        metric: str,
    ) -> None:
        self._callback, self._listener, self._tracker = callback, listener, tracker
        self._ask, self._stopped = should_stop, False
        self._handles_ctrl_c = self._pressed = False
        self._progress, self._line = progress, None
        self._stage: Stage | None = None
        self._step, self._steps = 0, 0
        self._loss: float | None = None
        self._value: float | None = None
        self._left: float | None = None
        self._metric = metric

    _line: "Status | None"

    def __enter__(self) -> Self:
        if self._listener is None and is_shown(self._progress):
            from rich.console import Console

            self._line = Console(stderr=not is_notebook()).status("Getting ready …")
            self._line.start()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._handles_ctrl_c = True
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handles_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._line:
            self._line.stop()
        if (
            self._pressed and kind is None
        ):  # Too late to stop the training, but not what the caller does next.
            raise KeyboardInterrupt

    def _press(self, _signal: int, _frame: FrameType | None) -> None:
        """Stop between two steps; the second time at once."""
        # torchrun passes on what a terminal has sent to all processes already: twice is no haste.
        if self._pressed and num_ranks() == 1:
            raise KeyboardInterrupt
        self._pressed = True

    def should_stop(self) -> bool:
        """Whether the callback, the caller or Ctrl-C has asked to stop."""
        return self._pressed or self._stopped or (self._ask is not None and self._ask())

    def stage(self, stage: Stage, steps: int) -> None:
        """A stage begins."""
        self._stage, self._step, self._steps = stage, 0, steps
        self._loss = None
        if self._listener:
            self._listener.stage(stage, steps)
        self._tell()

    def progress(self, stage: Stage, progress: "TrainingProgress", pace: Throughput) -> None:
        """Some steps were taken, or a validation was made."""
        last = progress.history[-1] if progress.history else {}
        if last.get("step") == progress.step:
            for name in last.keys() & {"loss", "value"}:
                self._tracker(f"{stage}/{name}", last[name], progress.step)
        self._step, self._loss, self._left = progress.step, pace.loss, pace.seconds_left
        self._value = last.get("value", self._value)
        if self._listener:
            self._listener.progress(stage, progress, pace)
        self._tell()

    def busy(self, what: str, seconds_left: float) -> None:
        """Something other than training has begun that may take minutes."""
        self._left = seconds_left
        if self._listener:
            self._listener.busy(what, seconds_left)
        self._tell(what)

    def say(self, text: str) -> None:
        """Something was found that people should know."""
        if self._listener:
            self._listener.say(text)
        else:
            log.info(text)
        self._tell(text)

    def warn(self, text: str) -> None:
        """Something was found that makes the result doubtful."""
        if self._listener:
            self._listener.warn(text)
        else:
            log.warning(text)
        self._tell(f"Warning: {text}")

    def _tell(self, message: str | None = None) -> None:
        status = TrainingStatus(
            self._stage, self._step, self._steps, self._loss, self._value, self._left, message, self._metric
        )
        if self._line:
            self._line.update(str(status))
        if self._callback:
            try:
                self._stopped = bool(self._callback(status)) or self._stopped
            except KeyboardInterrupt:
                self._stopped = True


@contextmanager
def make_tracker(kind: Track | None, folder: Path) -> Iterator[Tracker]:
    """A tracker of this kind; None gives one that does nothing."""
    if kind == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "`track=\"tensorboard\"` requires TensorBoard: pip install 'bert4rec[tensorboard]'."
            ) from error
        with SummaryWriter(str(folder / "tensorboard")) as writer:
            yield writer.add_scalar
    elif kind == "mlflow":
        try:
            import mlflow
        except ImportError as error:
            raise UsageError("`track=\"mlflow\"` requires MLflow: pip install 'bert4rec[mlflow]'.") from error
        with mlflow.start_run(run_name=folder.name):
            yield lambda name, value, step: mlflow.log_metric(name, value, step=step)
    else:
        yield lambda _name, _value, _step: None
