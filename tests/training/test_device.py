import pytest
import torch

from bert4rec.errors import UsageError
from bert4rec.training.device import Placement, first_that_works, place
from bert4rec.training.trial import try_to_train


def test_the_cpu_is_always_there_and_works_in_full_precision() -> None:
    placement = place("cpu")
    assert (placement.device.type, placement.dtype) == ("cpu", None)


@pytest.mark.parametrize(("threads", "told"), [(1, ", 1 thread"), (2, ", 2 threads")])
def test_the_name_of_a_processor_tells_its_threads(
    threads: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert place("cpu").name.endswith(told)


def test_auto_takes_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert place("auto") == place("cpu")
    with pytest.raises(UsageError, match=r'`device="cuda"`: no GPU found. Use `device="cpu"`'):
        place("cuda")


@pytest.mark.parametrize("name", ["gpu", "", "meta"])
def test_an_unknown_device_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(UsageError, match="`device` must be auto, cpu"):
        place(name)


def test_a_device_that_cannot_train_is_left_for_one_that_can(caplog: pytest.LogCaptureFixture) -> None:
    """`meta` has no numbers at all: as good as a GPU that lacks what training needs."""
    here = Placement(torch.device("cpu"), None)
    assert first_that_works([Placement(torch.device("meta"), None), here, here]) == here
    assert first_that_works([Placement(torch.device("meta"), None), here]) == here
    told = caplog.messages[-1]
    assert told.startswith("Training does not work on meta in float32 (")
    assert told.endswith("). It is done on the CPU in float32.")
    try_to_train(here)
