"""The loop on tasks so small that every step can be foretold, and on BERT4Rec where the promise is "the same"."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bert4rec.errors import DataError, NotFoundError
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.pop import Pop
from bert4rec.settings.networks import ModelConfig, PopConfig
from bert4rec.settings.objectives import TrainingConfig
from bert4rec.tasks.ready_steps import ReadySteps
from bert4rec.training import clock
from bert4rec.training.checkpoint import load_tensors, save_tensors
from bert4rec.training.loop import Hooks, Interrupted, Loop, TrainingProgress
from bert4rec.training.optimizer import make_optimizer
from tests.conftest import MakeDataset
from tests.training.tiny import CPU, after, make_task, random_histories, tiny_config


class Slope:
    """A matrix and a vector that are pushed downhill, equally hard at every step."""

    width = 1

    def __init__(self, steepness: float) -> None:
        self.steepness = steepness
        self.model = Pop(1, PopConfig())
        self.model.matrix = nn.Parameter(torch.ones(2, 2))
        self.model.vector = nn.Parameter(torch.ones(3))

    def block(self, step: int) -> tuple[int, Tensor]:
        return step, torch.zeros(1, 1, dtype=torch.int32)

    def loss(self, _batch: Tensor) -> Tensor:
        return self.steepness * sum((each.sum() for each in self.model.parameters()), torch.zeros(()))


def weights_along(task: Slope, config: TrainingConfig) -> list[dict[str, Tensor]]:
    """The weights before the first step and after each one."""
    seen = []

    def look() -> bool:
        seen.append({name: weight.detach().clone() for name, weight in task.model.named_parameters()})
        return False

    Loop(task, config, device=CPU, seed=1).run(config.steps, Hooks(should_stop=look))
    look()
    return seen


def rates_of(config: TrainingConfig) -> list[float]:
    """The learning rate of every step: on a steady slope AdamW moves by exactly that much."""
    vectors = torch.stack([weights["vector"][0] for weights in weights_along(Slope(1.0), config)])
    return (-vectors.diff()).tolist()


def test_the_learning_rate_rises_linearly_and_falls_to_zero() -> None:
    rates = rates_of(TrainingConfig(steps=10, warmup_steps=4, learning_rate=0.1))
    rise, fall = [0.25, 0.5, 0.75, 1.0], [6 / 6, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert rates == pytest.approx([0.1 * share for share in (*rise, *fall)], rel=1e-4)


def test_without_warmup_the_first_step_is_the_largest() -> None:
    rates = rates_of(TrainingConfig(steps=4, warmup_steps=0, learning_rate=0.1))
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025], rel=1e-4)


def test_decay_shrinks_matrices_and_leaves_vectors_alone() -> None:
    config = TrainingConfig(steps=2, warmup_steps=0, learning_rate=0.1, weight_decay=0.5)
    *_, last = weights_along(Slope(0.0), config)
    shrunk = (1 - 0.1 * 0.5) * (1 - 0.05 * 0.5)
    torch.testing.assert_close(last["matrix"], torch.full((2, 2), shrunk))
    assert torch.equal(last["vector"], torch.ones(3))


def test_of_bert4rec_tables_and_projections_decay_but_neither_biases_nor_norms() -> None:
    model = BERT4Rec(5, ModelConfig(dim=8, layers=1, max_length=4))
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.3), torch.zeros(()))
    decays = {name: optimizer.decay(parameter) for name, parameter in model.named_parameters()}
    assert {name for name, decay in decays.items() if decay == 0.3} == {
        "item_table.weight",
        "position_table.weight",
        "projection.weight",
        *(f"layers.0.{name}.weight" for name in ("query_key_value", "attention_output", "widen", "narrow")),
    }
    spared = {name for name, decay in decays.items() if decay == 0}
    assert len(spared) + 7 == len(decays)
    assert all(name.endswith("bias") or "norm" in name for name in spared)


@pytest.mark.parametrize(("steepness", "expected"), [(1000.0, 5.0), (1.0, 7**0.5)])
def test_only_gradients_longer_than_the_limit_are_scaled_down_to_it(
    tmp_path: Path, steepness: float, expected: float
) -> None:
    config = TrainingConfig(steps=1, clip_norm=5.0)
    Loop(Slope(steepness), config, device=CPU, seed=1).run(1, checkpoint=tmp_path / "resume")
    tensors, _ = load_tensors(tmp_path / "resume")
    # After one step AdamW remembers a tenth of the gradient it was given; there are seven numbers.
    given = [10 * tensors[f"optimizer.exp_avg.{name}"].flatten() for name in ("matrix", "vector")]
    assert torch.linalg.vector_norm(torch.cat(given)).item() == pytest.approx(expected, rel=1e-5)


def test_training_stops_when_patience_is_over_and_keeps_the_best_weights() -> None:
    values = iter([0.1, 0.3, 0.2, 0.3, 0.29, 0.9])
    task = Slope(1.0)
    config = TrainingConfig(steps=100, validate_every=2, patience=3)
    seen: dict[int, Tensor] = {}

    def validate() -> float:
        assert not task.model.training
        seen[loop.progress.step] = task.model.get_parameter("vector").detach().clone()
        return next(values)

    loop = Loop(task, config, device=CPU, seed=1)
    progress = loop.run(100, Hooks(validate=validate))
    assert (progress.step, progress.best_step, progress.best_value) == (10, 4, 0.3)
    assert [entry["value"] for entry in progress.history] == [0.1, 0.3, 0.2, 0.3, 0.29]
    assert torch.equal(loop.best["vector"], seen[4])
    assert not torch.equal(loop.best["vector"], seen[10])


def test_an_improvement_renews_patience() -> None:
    values = iter([0.1, 0.0, 0.2, 0.1, 0.3, 0.2, 0.2])
    config = TrainingConfig(steps=100, validate_every=1, patience=2)
    progress = Loop(Slope(1.0), config, device=CPU, seed=1).run(100, Hooks(validate=lambda: next(values)))
    assert (progress.step, progress.best_step) == (7, 5)


def test_the_speed_is_that_of_training_without_its_validations(monkeypatch: pytest.MonkeyPatch) -> None:
    now, speeds = [0.0], []

    def let_pass(seconds: float) -> bool:
        now[0] += seconds
        return False

    monkeypatch.setattr("bert4rec.training.loop.time.perf_counter", lambda: now[0])
    hooks = Hooks(
        validate=lambda: float(let_pass(100.0)),
        report=lambda _progress, _loss, speed: speeds.append(speed),
        should_stop=lambda: let_pass(0.25),
    )
    Loop(Slope(1.0), TrainingConfig(steps=4, validate_every=2), device=CPU, seed=1).run(4, hooks)
    assert speeds == pytest.approx([4.0, 4.0])


def test_the_last_step_is_validated_whatever_the_interval() -> None:
    config = TrainingConfig(steps=7, validate_every=5)
    progress = Loop(Slope(1.0), config, device=CPU, seed=1).run(7, Hooks(validate=lambda: 0.0))
    assert [entry["step"] for entry in progress.history] == [5, 7]


LAST_STEP = 11
LoopMaker = Callable[[], Loop]


@pytest.fixture
def make_loop(make_dataset: MakeDataset) -> LoopMaker:
    dataset = make_dataset(random_histories())

    def make() -> Loop:
        config = tiny_config()
        assert config.training
        return Loop(make_task(dataset, config), config.training, device=CPU, seed=1)

    return make


def hooks_of(loop: Loop, stop_after: int = 10**9) -> Hooks:
    """A validation that gets better and then worse, so that the best weights are not the last."""
    return Hooks(validate=lambda: -abs(6 - loop.progress.step), should_stop=after(stop_after))


def assert_same(one: Loop, other: Loop) -> None:
    for ours, theirs in (
        (one.task.model.state_dict(), other.task.model.state_dict()),
        (one.best, other.best),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert one.progress.best_step == other.progress.best_step
    without_times = [[{**entry, "seconds": None} for entry in loop.progress.history] for loop in (one, other)]
    assert without_times[0] == without_times[1]


@pytest.mark.parametrize("step", [0, 1, 3, 7, 10])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    make_loop: LoopMaker, tmp_path: Path, step: int
) -> None:
    unbroken = make_loop()
    unbroken.run(LAST_STEP, hooks_of(unbroken))
    first = make_loop()
    with pytest.raises(Interrupted):
        first.run(LAST_STEP, hooks_of(first, step), tmp_path / "resume", "tag")
    second = make_loop()
    second.resume(tmp_path / "resume", "tag")
    assert second.progress.step == step
    second.run(LAST_STEP, hooks_of(second))
    assert_same(second, unbroken)


def test_a_run_that_goes_on_within_a_block_takes_whole_blocks_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled, fill = [], ReadySteps.fill

    def noting(ready: ReadySteps, first: int, *others: Tensor) -> None:
        filled.append(first)
        fill(ready, first, *others)

    class OfFour(Slope):
        def block(self, step: int) -> tuple[int, Tensor]:
            return step - step % 4, torch.zeros(4, 1, dtype=torch.int32)

    monkeypatch.setattr(ReadySteps, "fill", noting)
    config, begun = TrainingConfig(steps=12, warmup_steps=0), TrainingProgress(step=3)
    Loop(OfFour(1.0), config, device=CPU, seed=1, progress=begun).run_steps(12)
    assert filled == [3, 4, 8]


def test_a_crash_loses_no_more_than_the_steps_since_the_last_checkpoint(
    make_loop: LoopMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    monkeypatch.setattr(clock, "LARGEST_SHARE_OF_CHECKPOINTS", float("inf"))
    unbroken = make_loop()
    unbroken.run(LAST_STEP, hooks_of(unbroken))
    first = make_loop()
    pull_the_plug = after(5)

    def crash() -> bool:
        if pull_the_plug():
            raise MemoryError
        return False

    with pytest.raises(MemoryError):
        first.run(LAST_STEP, replace(hooks_of(first), should_stop=crash), tmp_path / "resume", "tag")
    second = make_loop()
    second.resume(tmp_path / "resume", "tag")
    assert second.progress.step == 5
    second.run(LAST_STEP, hooks_of(second))
    assert_same(second, unbroken)


def test_a_slow_checkpoint_is_not_soon_followed_by_another(
    make_loop: LoopMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "LARGEST_SHARE_OF_CHECKPOINTS", 1e-9)
    loop = make_loop()
    loop.run(LAST_STEP, hooks_of(loop), tmp_path / "resume", "tag")
    kept = make_loop()
    kept.resume(tmp_path / "resume", "tag")
    assert kept.progress.step == loop.progress.history[0]["step"] < LAST_STEP


def test_a_finished_run_is_resumed_without_a_further_step(
    make_loop: LoopMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "LARGEST_SHARE_OF_CHECKPOINTS", float("inf"))
    first = make_loop()
    first.run(LAST_STEP, hooks_of(first), tmp_path / "resume", "tag")
    second = make_loop()
    second.resume(tmp_path / "resume", "tag")
    second.run(LAST_STEP, Hooks(should_stop=lambda: True))
    assert_same(second, first)


def test_bare_steps_train_the_same_weights(make_loop: LoopMaker) -> None:
    watched = make_loop()
    watched.run(LAST_STEP, hooks_of(watched))
    bare = make_loop()
    bare.run_steps(LAST_STEP)
    ours, theirs = watched.task.model.state_dict(), bare.task.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_checkpoint_of_another_run_is_refused_by_name(make_loop: LoopMaker, tmp_path: Path) -> None:
    loop = make_loop()
    loop.run(1, checkpoint=tmp_path / "resume", tag="one")
    with pytest.raises(DataError, match="resume belongs to another run"):
        make_loop().resume(tmp_path / "resume", "other")


def test_a_truncated_checkpoint_is_refused_by_name(make_loop: LoopMaker, tmp_path: Path) -> None:
    path = tmp_path / "resume"
    make_loop().run(1, checkpoint=path, tag="tag")
    content = path.read_bytes()
    for length in (0, 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match="resume is truncated or was not written by bert4rec"):
            make_loop().resume(path, "tag")


def test_a_foreign_checkpoint_is_refused_by_name(make_loop: LoopMaker, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("weights" * 100)
    save_file({"weight": torch.ones(3)}, tmp_path / "theirs")
    save_file({"weight": torch.ones(3)}, tmp_path / "odd", metadata={"state": "{"})
    for name in ("text", "theirs", "odd"):
        with pytest.raises(DataError, match=f"{name} is truncated or was not written by bert4rec"):
            make_loop().resume(tmp_path / name, "tag")
    with pytest.raises(NotFoundError, match="nowhere not found"):
        make_loop().resume(tmp_path / "nowhere", "tag")


def test_a_file_of_tensors_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    save_tensors(path, {"weight": torch.ones(3)}, {"step": 1})
    with pytest.raises(TypeError):
        save_tensors(path, {"weight": torch.zeros(3)}, {"step": object()})
    tensors, state = load_tensors(path)
    assert (tensors["weight"].tolist(), state) == ([1, 1, 1], {"step": 1})
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o755, 0o644), (0o700, 0o600)])
def test_whoever_may_read_the_folder_may_read_the_weights(
    tmp_path: Path, folder_mode: int, file_mode: int
) -> None:
    tmp_path.chmod(folder_mode)
    save_tensors(tmp_path / "weights", {"weight": torch.ones(3)})
    assert (tmp_path / "weights").stat().st_mode & 0o777 == file_mode


@pytest.mark.parametrize("step", [3, 9, LAST_STEP])
def test_interrupted_while_it_validates_it_validates_again_and_goes_on_as_if_nothing_had_happened(
    make_loop: LoopMaker, tmp_path: Path, step: int
) -> None:
    unbroken = make_loop()
    unbroken.run(LAST_STEP, hooks_of(unbroken))
    first, second = make_loop(), make_loop()

    def validate() -> float:
        if first.progress.step == step:
            raise Interrupted
        return hooks_of(first).validate()  # type: ignore[misc]

    with pytest.raises(Interrupted):
        first.run(LAST_STEP, Hooks(validate=validate), tmp_path / "resume", "tag")
    second.resume(tmp_path / "resume", "tag")
    assert second.progress.step == step
    second.run(LAST_STEP, hooks_of(second))
    assert_same(second, unbroken)
