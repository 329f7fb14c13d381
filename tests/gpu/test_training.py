"""Training on a GPU: kernels and recorded steps change how fast it is, not what comes out."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bert4rec.data.dataset import Dataset
from bert4rec.data.histories import histories_before
from bert4rec.data.splits import leave_one_out
from bert4rec.errors import UsageError
from bert4rec.kernels import support
from bert4rec.models.model import make_scorer
from bert4rec.settings.config import RunConfig, make_config
from bert4rec.tasks import losses
from bert4rec.tasks import task as tasks
from bert4rec.tasks.task import Task, TaskInputs
from bert4rec.training import loop
from bert4rec.training.device import Placement, place
from bert4rec.training.launch import launch
from bert4rec.training.loop import Loop
from bert4rec.training.plan import Plan
from bert4rec.training.specs import MODELS
from bert4rec.world.world import World, WorldConfig
from tests.gpu.steps import STILL, TRANSFORMERS, assert_near, config_of, make_task, tiny_dataset

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
GPU = torch.device("cuda")


@pytest.fixture
def dataset() -> Dataset:
    return tiny_dataset()


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_steps_of_a_gpu_without_triton_are_recorded_and_replayed(
    model: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (support, losses, loop):
        monkeypatch.setattr(module, "has_triton", lambda: False)
    config = config_of(model)
    weights = trained(make_task(dataset, config, model, GPU), config, steps=6)
    assert all(each.isfinite().all() for each in weights.values())


def trained(task: Task, config: RunConfig, steps: int, checkpoint: Path | None = None) -> dict[str, Tensor]:
    assert config.training
    looped = Loop(task, config.training, device=GPU, seed=1)
    if checkpoint:
        looped.resume(checkpoint, "")
    looped.run_steps(steps)
    return {name: each.cpu() for name, each in task.model.state_dict().items()}


@pytest.mark.parametrize("model", sorted(MODELS.keys() - {"pop"}))
def test_replaying_recorded_steps_is_taking_them_one_by_one(
    model: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout included, which depends on the step alone. Sums of many threads may be rounded in another order."""
    config = config_of(model)
    replayed = trained(make_task(dataset, config, model, GPU), config, steps=12)
    monkeypatch.setattr(loop, "STEPS_BEFORE_CAPTURE", 100)
    assert_near(replayed, trained(make_task(dataset, config, model, GPU), config, steps=12), 1e-3)


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_replayed_steps_with_a_sampled_softmax_are_those_of_a_cpu(
    model: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are lent and put back inside the recording, and those that no step used are as they were."""
    config = config_of(model, *STILL, "objective.negatives=3", "training.batch_size=2")
    assert config.training
    on_cpu, on_gpu = (make_task(dataset, config, model, device) for device in (torch.device("cpu"), GPU))
    on_gpu.model.load_state_dict(on_cpu.model.state_dict())

    def same_block(step: int) -> tuple[int, Tensor]:
        first, rows = on_cpu.block(step)
        return first, rows.to(GPU)

    monkeypatch.setattr(on_gpu, "block", same_block)
    Loop(on_cpu, config.training, device=torch.device("cpu"), seed=1).run_steps(12)
    ours = trained(on_gpu, config, steps=12)
    # AdamW takes the sign of what is nearly nothing, which devices round differently.
    assert_near(ours, dict(on_cpu.model.state_dict()), 0.02)


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_a_training_that_is_resumed_ends_where_it_would_have(
    model: str, dataset: Dataset, tmp_path: Path
) -> None:
    """Not to the last bit: tokens add to the gradients of their items in any order."""
    config = config_of(model)
    assert config.training
    whole = trained(make_task(dataset, config, model, GPU), config, steps=12)
    first = Loop(make_task(dataset, config, model, GPU), config.training, device=GPU, seed=1)
    first.run(7, checkpoint=tmp_path / "kept.safetensors")
    resumed = trained(make_task(dataset, config, model, GPU), config, 12, tmp_path / "kept.safetensors")
    assert_near(resumed, whole, 1e-3)


@pytest.fixture
def cramped() -> Iterator[None]:
    """A GPU with room for half a gigabyte more."""
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    mine = torch.cuda.memory_reserved() + (1 << 29)
    torch.cuda.set_per_process_memory_fraction(mine / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("cramped")
def test_a_batch_too_large_is_told_with_the_size_that_fits(dataset: Dataset, tmp_path: Path) -> None:
    config = config_of("bert4rec", "training.batch_size=4194304")
    plan = Plan.for_dataset(dataset, "bert4rec", config, preset=None, seed=1, split=None)
    with pytest.raises(UsageError, match=r"has not enough memory for training.batch_size=4194304") as told:
        launch(dataset, tmp_path / "run", plan, progress=False)
    (size,) = re.findall(r"A batch of (\d+) fits", str(told.value))
    assert 1024 < int(size) < 4194304


def hits(model: str, placement: Placement, dataset: Dataset) -> float:
    """The share of users whose next item is among ten of a model that was trained for a moment."""
    config = make_config(
        model,
        {
            "model": {"dim": 32, "heads": 2, "max_length": 20},
            "training": {"batch_size": 128, "steps": 200, "warmup_steps": 30, "learning_rate": 5e-3},
        },
    )
    split = leave_one_out(dataset)
    inputs = TaskInputs(dataset, split.training_end("valid"), config, 1, placement.device, placement.dtype)
    task = MODELS[model].make_task(inputs)
    assert config.training
    Loop(task, config.training, device=placement.device, seed=1).run_steps(200)
    scorer, targets = make_scorer(task.model.eval(), placement.dtype), split.valid
    histories = histories_before(dataset, targets.users, targets.positions)
    scores = scorer(targets.users, histories).float().cpu()
    own = scores.gather(1, torch.from_numpy(dataset.sequences[targets.positions]).long()[:, None])
    return float(((scores > own).sum(dim=1) < 10).float().mean())


@pytest.mark.parametrize("model", ["bert4rec", "bert4rec+"])
def test_the_built_in_world_is_learned_as_well_as_on_a_cpu(model: str) -> None:
    world = World.generate(WorldConfig())
    dataset = Dataset.from_sequences(world.sequences() + np.int32(1), world.offsets)
    here, there = (hits(model, placement, dataset) for placement in (place("cpu"), place("cuda")))
    assert there == pytest.approx(here, rel=0.1)


def test_the_gpu_is_taken_if_there_is_one() -> None:
    assert place().device.type == "cuda"


def test_triton_can_be_loaded_ahead_for_the_gpu_that_is_taken() -> None:
    """A thread does it, in which an error would go unsaid."""
    from bert4rec.kernels.gpu.launch_triton import load_compiler

    load_compiler(place().device)


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_data_that_does_not_fit_on_the_card_makes_the_same_batches(
    dataset: Dataset, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(model)
    at_hand = make_task(dataset, config, model, GPU)
    monkeypatch.setattr(tasks, "SHARE_OF_CARD", 0)
    streamed = make_task(dataset, config, model, GPU)
    assert config.training
    # Recorded while the next block is read.
    Loop(streamed, config.training, device=GPU, seed=1).run_steps(loop.STEPS_BEFORE_CAPTURE + 5)
    for step in range(0, 400, 20):
        first, rows = at_hand.block(step)
        found, same = streamed.block(step)
        assert same.is_cuda
        assert found == first
        assert torch.equal(same, rows)
