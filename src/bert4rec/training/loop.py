"""The one training loop. Of a task it knows its batches and its loss, and nothing else.

Here, and nowhere else, live compilation and CUDA graphs, validation, early stopping and checkpoints. A batch is one
row of int32 numbers of fixed length, so on a GPU a whole step (forward, backward, clipping, update) is recorded once
and replayed; the host only copies the next row.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bert4rec.distributed.crew import ALONE, Crew
from bert4rec.errors import DataError
from bert4rec.evaluation.criterion import USUAL
from bert4rec.kernels.adamw import CURRENT, MOMENTS
from bert4rec.kernels.support import (
    EVERY_SEED,
    SEEDS_A_STEP,
    find_gradients,
    has_triton,
    training_step,
)
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.ready_steps import ReadySteps
from bert4rec.tasks.seeds import seed_of
from bert4rec.tasks.task import Task
from bert4rec.training.checkpoint import State, load_tensors, save_tensors
from bert4rec.training.clock import Clock
from bert4rec.training.optimizer import make_optimizer, schedule

STEPS_BEFORE_CAPTURE = 3
"""Steps run one by one before a CUDA graph is recorded, so that libraries have set themselves up."""
SECONDS_OF_TIMING = 0.5
"""Enough to know how long a step takes."""


@dataclass
class TrainingProgress:
    """How far a training has come. Kept in checkpoints."""

    step: int = 0
    best_step: int = 0
    best_value: float = float("-inf")
    stale: int = 0
    """Validations since the best one."""
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry a mark: step, loss, seconds, of a validation its value and seconds, and `Hooks.facts`."""
    metric: str = USUAL
    """What is validated, for whoever shows it."""
    restarts: list[dict[str, Any]] = field(default_factory=list)
    """How the attempts before this one ended. Each of them has halved the learning rate."""


@dataclass(frozen=True)
class Hooks:
    """What the loop calls while training runs."""

    validate: Callable[[], float] | None = None
    """The value to be maximised, of the model as it is now; None where there is nothing to choose. May raise
    `Interrupted`: it is called again when training is resumed."""
    report: Callable[[TrainingProgress, float, float], None] = lambda *_: None
    """Gets progress, loss and steps per second of training alone, about once a second and after every validation. It
    and `validate` may raise `CollapsedError`, which ends the training without a checkpoint."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked before every step; True writes a checkpoint and raises `Interrupted`."""
    facts: Callable[[], dict[str, Any]] = dict
    """What else is to be noted in the history at each mark."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop and has written a checkpoint."""


class Loop:
    """Trains one task. A run that is resumed from its checkpoint goes on as if nothing had happened."""

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        *,
        device: torch.device,
        seed: int,
        compile_step: bool = False,
        progress: TrainingProgress | None = None,
        crew: Crew = ALONE,
    ) -> None:
        """A training that begins; its `progress` may bring along what earlier attempts have left.

        With `compile_step` the loss is compiled where that pays: on a GPU, and if the model has no kernels. A `crew` of
        several processes has a loop each; that of the first one runs, the others take their steps when it does.
        """
        self.task, self.config, self.device, self._seed, self._crew = task, config, device, seed, crew
        self.progress = progress or TrainingProgress()
        self.best: dict[str, Tensor] = {}
        self._block: tuple[int, Tensor] = (0, torch.empty(0))
        self._ready = ReadySteps(task.width, device)
        wide = torch.float32 if device.type == "mps" else torch.float64
        self._loss_sum = torch.zeros((), dtype=wide, device=device)
        self._loss_steps = 0
        self._steps_here = 0
        self._optimizer = make_optimizer(task.model, config, self._ready.rate, crew.norm_of(task))
        self._plan_rates()
        # Steps of several processes wait for each other in between, so they are neither compiled nor recorded.
        self._is_recorded = device.type == "cuda" and crew.is_alone
        self.is_compiled = compile_step and self._is_recorded and not task.model.has_kernels
        self._loss = torch.compile(task.loss, dynamic=False) if self.is_compiled else task.loss
        self._graph: torch.cuda.CUDAGraph | None = None
        torch.manual_seed(seed)

    def run(
        self, last_step: int, hooks: Hooks = Hooks(), checkpoint: Path | None = None, tag: str = ""
    ) -> TrainingProgress:
        """Train until `last_step`, or until validation has not improved for long.

        Where there is a validation, the best weights are in `best`. `tag` is written into the checkpoint and
        must be the same when it is read.
        """
        clock = Clock(self.progress.seconds, self.progress.step)
        self.task.model.train()
        try:
            while True:
                # Before the step, for a resumed training may have been interrupted while it validated.
                at_mark = self._is_mark_due(last_step)
                if at_mark:
                    self._mark(hooks, clock)
                if at_mark or clock.is_time_to_report():
                    loss = self.progress.history[-1]["loss"] if at_mark else self._mean_loss()
                    speed, began = clock.steps_per_second(self.progress.step), time.perf_counter()
                    hooks.report(self.progress, loss, speed)
                    clock.leave_out(began)
                if clock.is_time_to_checkpoint(at_mark=at_mark):
                    self._checkpoint(checkpoint, tag, clock)
                if self.progress.step >= last_step or self.progress.stale >= self.config.patience:
                    break
                if hooks.should_stop():
                    raise Interrupted
                self.take_step()
        except Interrupted:
            self._checkpoint(checkpoint, tag, clock)
            raise
        finally:
            self.progress.seconds = clock.seconds()
        return self.progress

    @property
    def learning_rate(self) -> float:
        """The highest: half of what is configured after one restart, a quarter after two."""
        return self.config.learning_rate / 2.0 ** len(self.progress.restarts)

    @property
    def path(self) -> str:
        """How a GPU computes steps, and why not faster, for people; empty on a CPU."""
        if self.device.type == "cpu":
            return ""
        if self.is_compiled:
            means = "compiled code"
        elif not has_triton():
            means = "plain torch, because Triton is not installed"
        elif self.task.model.has_kernels:
            means = "own kernels"
        else:
            means = "plain torch, because it is not to be compiled"
        return f"The GPU computes steps by {means}."

    @property
    def is_warm(self) -> bool:
        """Whether steps take as long as they will: on a GPU, once they are compiled and recorded."""
        return not self._is_recorded or self._graph is not None

    def _is_mark_due(self, last_step: int) -> bool:
        step, history = self.progress.step, self.progress.history
        is_mark = step > 0 and (step % self.config.validate_every == 0 or step == last_step)
        return is_mark and not (history and history[-1]["step"] == step)

    def run_steps(self, last_step: int) -> None:
        """Train until `last_step` and do nothing else."""
        self.task.model.train()
        while self.progress.step < last_step:
            self.take_step()

    def time_step(self, most: int) -> float:
        """Seconds of a step, from at most so many passes of the next batch, and without a trace in what comes out.

        Compilation, which is needed anyway, is not timed; it counts as training all the same.
        """
        began, model = time.perf_counter(), self.task.model
        model.train()
        row = self._rows_from(self.progress.step)[0]
        passes: list[float] = []
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            if self.device.type == "cuda":
                self._loss(row).backward()
            while not passes or (len(passes) < most and sum(passes) < SECONDS_OF_TIMING):
                passes.append(self._time(lambda: self._loss(row).backward()))
        # The same update on a copy, whose first one only makes room for the moments.
        twin = copy.deepcopy(model)
        for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.grad, parameter.grad = parameter.grad, None
        optimizer = make_optimizer(twin, self.config, torch.zeros_like(self._ready.rate))
        update = [self._time(optimizer.step) for _ in range(2)][1]
        self.progress.seconds += time.perf_counter() - began
        return median(passes) + update

    def _time(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began

    def resume(self, checkpoint: Path, tag: str) -> None:
        """Take up everything where `checkpoint` left it."""
        tensors, state = load_tensors(checkpoint)
        if state.get("tag") != tag:
            raise DataError(f"{checkpoint} belongs to another run: its settings, data or stage differ.")
        if "progress" not in state:
            raise DataError(f"{checkpoint} holds weights alone; resuming needs a checkpoint.")
        with self._crew.order("go_on"):
            self.go_on(tensors, state)

    def go_on(self, tensors: dict[str, Tensor], state: State) -> None:
        """Take up what is in a checkpoint, which the first process has read."""
        tensors, state = self._crew.dealt(tensors, state)
        self.progress = TrainingProgress(**state["progress"])
        self._plan_rates()  # Earlier attempts may have ended.
        self.best = _named("best.", tensors)
        self.task.model.load_state_dict(_named("model.", tensors))
        self._loss_sum.copy_(tensors["loss_sum"])
        self._loss_steps = state["loss_steps"]
        if self.progress.step:  # Before its first step the optimiser has nothing to remember.
            for name, parameter in self.task.model.named_parameters():
                is_lent = f"optimizer.{CURRENT}.{name}" in tensors
                keys = ["step", *MOMENTS, *([CURRENT] if is_lent else [])]
                kept = {key: tensors[f"optimizer.{key}.{name}"].to(self.device) for key in keys}
                self._optimizer.go_on(parameter, kept)
        torch.set_rng_state(tensors["rng.cpu"])
        if self.device.type == "cuda" and "rng.cuda" in tensors:  # It may have begun on the CPU.
            torch.cuda.set_rng_state(tensors["rng.cuda"], self.device)

    def take_step(self) -> None:
        with self._crew.order("take_step"):
            self._take_step()

    def _take_step(self) -> None:
        if not self._ready.holds(self.progress.step):
            self._make_ready()
        if not self._steps_here:
            self._compile_kernels()
        self._crew.seed_step(self._seed, self.progress.step)
        if self._is_recorded:
            # So dropout by torch depends on the step alone, as that of kernels does by the seeds of the step.
            torch.cuda.manual_seed(seed_of(self._seed, self.progress.step))
        if self._is_recorded and self._steps_here >= STEPS_BEFORE_CAPTURE:
            self._replay()
        else:
            self._optimizer.zero_grad()
            self._update()
        self.progress.step += 1
        self._steps_here += 1
        self._loss_steps += 1

    def _compile_kernels(self) -> None:
        """All of a step at the same time: the first step would compile one after the other."""
        if self._is_recorded and self.task.model.has_kernels and has_triton():
            from bert4rec.kernels.gpu.launch_triton import compiling_ahead

            self._ready.show_first()
            with compiling_ahead(self.device):
                self._find_gradients()
                if self._optimizer.has_kernels:
                    self._optimizer.step()
            self._optimizer.zero_grad()

    def _rows_from(self, step: int) -> Tensor:
        """The batch of this step, and those that were made together with it and come later."""
        first, rows = self._block
        if not first <= step < first + len(rows):
            first, rows = self._block = self.task.block(step)
        return rows[step - first :]

    def _make_ready(self) -> None:
        """Put batches, learning rates and seeds where the next steps find them."""
        step = self.progress.step
        rows = self._rows_from(step)
        self._ready.make_room(len(self._block[1]))
        steps = torch.arange(step, step + len(rows), device=self.device).clamp_(max=self.config.steps)
        self._ready.fill(step, rows, self._rates[steps], self._seeds_from(step))
        if self._ready.holds(step + len(rows) - 1):
            self._block = step, rows.new_empty(0)  # All of it is there now, and need not be here.

    def _plan_rates(self) -> None:
        self._rates = schedule(self.config).to(self.device) * self.learning_rate
        self._optimizer.plan_rates(self._rates)

    def _seeds_from(self, step: int) -> Tensor:
        """For this step and all behind it in its block, those that a training that was not interrupted has."""
        first, rows = self._block
        generator = torch.Generator(self.device).manual_seed(seed_of(self._seed, first))
        shape = len(rows), SEEDS_A_STEP, 2
        seeds = torch.randint(*EVERY_SEED, shape, generator=generator, dtype=torch.int32, device=self.device)
        return seeds[step - first :]

    def _update(self) -> None:
        """One optimisation step on the next batch. Nothing here is read back, so it can be recorded."""
        self._ready.advance()
        self._loss_sum += self._find_gradients()
        self._optimizer.step()

    def _find_gradients(self) -> Tensor:
        with training_step(self._ready.seeds if self._is_recorded else None):
            loss = self._loss(self._ready.batch)
            find_gradients(loss)
            self._crew.share_gradients(self.task)
        return loss.detach()

    def _replay(self) -> None:
        if self._graph is None:
            # Gradients are made afresh inside the graph, in memory of its own.
            self._optimizer.zero_grad()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._update()
            self._optimizer.step_was_recorded()
        self._graph.replay()

    def _mark(self, hooks: Hooks, clock: Clock) -> None:
        """Validate, remember the best weights, and note how things stand."""
        entry: dict[str, Any] = {"step": self.progress.step, "loss": self._mean_loss()}
        self.catch_up()
        if hooks.validate:
            self.task.model.eval()
            began = time.perf_counter()
            entry["value"] = value = hooks.validate()
            entry["validation_seconds"] = round(clock.leave_out(began), 3)
            self.task.model.train()
            self.progress.stale += 1
            if value > self.progress.best_value:
                self.progress.best_value, self.progress.best_step = value, self.progress.step
                self.progress.stale = 0
                self.keep_best()
        entry["seconds"] = round(clock.seconds(), 3)
        self.progress.history.append(entry | hooks.facts())
        self._loss_sum.zero_()
        self._loss_steps = 0

    def catch_up(self) -> None:
        """Let weights be what they would be if every step had touched all of them."""
        with self._crew.order("catch_up"):
            self._optimizer.catch_up()

    def keep_best(self) -> None:
        """Remember the weights as they are."""
        with self._crew.order("keep_best"):
            self.best = {name: tensor.clone() for name, tensor in self.task.model.state_dict().items()}

    def weights(self) -> dict[str, Tensor]:
        """The best ones, or the last where there was nothing to choose from, of all processes together."""
        with self._crew.order("weights"):
            return self._crew.collected(self.best or self.task.model.state_dict())

    def _mean_loss(self) -> float:
        """Since the last mark. Waits for the device."""
        return float(self._loss_sum) / max(1, self._loss_steps)

    def _checkpoint(self, path: Path | None, tag: str, clock: Clock) -> None:
        self.progress.seconds = clock.seconds()
        if path is None:
            return
        began = time.perf_counter()
        state = {"tag": tag, "loss_steps": self._loss_steps, "progress": asdict(self.progress)}
        save_tensors(path, self.collect(), state)
        clock.note_checkpoint(began)

    def collect(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint, of all processes together."""
        tensors = {"rng.cpu": torch.get_rng_state(), "loss_sum": self._loss_sum}
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        tensors |= {f"model.{name}": tensor for name, tensor in self.task.model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for name, parameter in self.task.model.named_parameters():
            tensors |= {
                f"optimizer.{key}.{name}": kept for key, kept in self._optimizer.state[parameter].items()
            }
        with self._crew.order("collect"):
            return self._crew.collected(tensors)


def _named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
