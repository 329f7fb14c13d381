"""A step by kernels is that of a CPU: on a GPU, or where there is none, with a CPU that plays its part."""

import numpy as np
import pytest
import torch

from bert4rec.data.histories import Histories
from bert4rec.kernels import support
from bert4rec.models.model import make_scorer
from bert4rec.tasks import losses
from bert4rec.training.loop import Loop
from tests.gpu import WHERE_KERNELS_RUN
from tests.gpu.conftest import HALF, GpuRole
from tests.gpu.steps import STILL, TRANSFORMERS, assert_near, config_of, learned, make_task, tiny_dataset

pytestmark = [
    *WHERE_KERNELS_RUN,
    # Of what is not used, by the interpreter.
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
]
CPU = torch.device("cpu")
ROUNDED = {None: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
"""How far gradients may be off, by the dtype that they are computed in."""


ODD_WIDTH = "model.dim=30 model.heads=3"
STEPS = [
    *((model, "model.heads=2", HALF) for model in TRANSFORMERS),
    *((model, ODD_WIDTH, None) for model in TRANSFORMERS),
    *((model, "objective.negatives=7", None) for model in TRANSFORMERS),
    ("bert4rec+", ODD_WIDTH, HALF),
    ("sasrec", "model.dim=136 model.heads=1", HALF),
]


@pytest.mark.parametrize(("model", "settings", "dtype"), STEPS)
def test_a_step_is_that_of_a_cpu(model: str, settings: str, dtype: torch.dtype | None, gpu: GpuRole) -> None:
    """Also with odd widths of heads, where the softmax writes its logits, and with a sampled softmax."""
    dataset, config = tiny_dataset(), config_of(model, *STILL, *settings.split())
    on_cpu = make_task(dataset, config, model, CPU)
    with gpu:
        on_gpu = make_task(dataset, config, model, gpu.device, dtype)
        on_gpu.model.load_state_dict(on_cpu.model.state_dict())
        row = on_gpu.block(0)[1][0]
        ours = learned(on_gpu, row, scale=1024 if dtype == torch.float16 else 1)
    assert_near(ours, learned(on_cpu, row.cpu()), ROUNDED[dtype])


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_a_gpu_without_triton_computes_the_same(
    model: str, gpu: GpuRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (support, losses):
        monkeypatch.setattr(module, "has_triton", lambda: False)
    dataset, config = tiny_dataset(), config_of(model, *STILL)
    on_cpu = make_task(dataset, config, model, CPU)
    with gpu:
        on_gpu = make_task(dataset, config, model, gpu.device)
        on_gpu.model.load_state_dict(on_cpu.model.state_dict())
        row = on_gpu.block(0)[1][0]
        ours = learned(on_gpu, row)
    assert_near(ours, learned(on_cpu, row.cpu()), 1e-4)


def test_heads_too_wide_for_the_memory_of_a_small_gpu_are_left_to_torch(small_gpu: GpuRole) -> None:
    dataset, config = tiny_dataset(), config_of("bert4rec+", *STILL, "model.dim=264", "model.heads=1")
    on_cpu = make_task(dataset, config, "bert4rec+", CPU)
    with small_gpu:
        on_gpu = make_task(dataset, config, "bert4rec+", small_gpu.device)
        on_gpu.model.load_state_dict(on_cpu.model.state_dict())
        row = on_gpu.block(0)[1][0]
        ours = learned(on_gpu, row)
    assert_near(ours, learned(on_cpu, row.cpu()), 1e-4)


@pytest.mark.parametrize("settings", ["", "objective.negatives=3"])
def test_a_few_steps_lead_where_those_of_a_cpu_do(
    settings: str, gpu: GpuRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping and AdamW included; with a sampled softmax, of rows that were lent."""
    model, dataset = "bert4rec+", tiny_dataset()
    config = config_of(model, *STILL, *settings.split())
    assert config.training
    on_cpu = make_task(dataset, config, model, CPU)
    begun = {name: each.clone() for name, each in on_cpu.model.state_dict().items()}
    with gpu:
        on_gpu = make_task(dataset, config, model, gpu.device)
        on_gpu.model.load_state_dict(begun)
        first, rows = on_gpu.block(0)
        Loop(on_gpu, config.training, device=gpu.device, seed=1).run_steps(2)
    monkeypatch.setattr(on_cpu, "block", lambda _: (first, rows.cpu()))
    Loop(on_cpu, config.training, device=CPU, seed=1).run_steps(2)
    ours, right = (
        {name: each.cpu() - begun[name] for name, each in task.model.state_dict().items()}
        for task in (on_gpu, on_cpu)
    )
    # AdamW takes the sign of what is nearly nothing, which devices round differently.
    assert_near(ours, right, 0.02)


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_scores_are_those_of_a_cpu(model: str, gpu: GpuRole) -> None:
    dataset, config = tiny_dataset(), config_of(model)
    histories = Histories.from_lists([[3, 1, 2], [4], [5, 6, 7, 8, 9, 1, 2, 3, 4]])
    on_cpu = make_task(dataset, config, model, CPU).model.eval()
    right = make_scorer(on_cpu, None)(np.arange(3), histories)
    with gpu:
        on_gpu = make_task(dataset, config, model, gpu.device, HALF).model.eval()
        on_gpu.load_state_dict(on_cpu.state_dict())
        ours = make_scorer(on_gpu, HALF)(np.arange(3), histories)
    assert_near({"scores": ours[:, 1:-1].float().cpu()}, {"scores": right[:, 1:-1]}, 0.01)
