"""Parts of which each process has some, put beside the whole."""

from datetime import timedelta
from threading import Thread

import pytest
from torch._C._distributed_c10d import HashStore

from bert4rec.distributed.divided_task import DividedTask
from bert4rec.distributed.meeting import meet
from bert4rec.errors import UsageError
from bert4rec.training.device import place
from bert4rec.training.memory import what_fits
from bert4rec.training.plan import Plan
from tests.conftest import MakeDataset
from tests.distributed.processes import torchrun
from tests.training.tiny import make_task, random_histories, tiny_config


def test_three_processes_have_the_loss_and_the_gradients_of_one() -> None:
    done = torchrun(3, "-m", "tests.distributed.check_softmax")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("model", "settings"),
    [("sasrec", ["objective.loss=binary"]), ("gru4rec+", ["objective.loss=cross-entropy"])],
)
def test_what_is_no_softmax_over_one_table_is_refused(
    make_dataset: MakeDataset, model: str, settings: list[str]
) -> None:
    task = make_task(make_dataset(random_histories()), tiny_config(*settings, model=model), model)
    with pytest.raises(UsageError, match=r"sasrec with objective\.loss=cross-entropy\. Train it without"):
        DividedTask(task, rank=0, ranks=2)


def test_several_processes_are_not_told_what_would_fit_one(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(random_histories())
    plan = Plan.for_dataset(dataset, "bert4rec", tiny_config(), preset=None, seed=1, split=None)
    told = what_fits(dataset, plan, place("cpu"), "it is full", processes=2)
    assert "batch_size=8 (it is full) with 2 processes. Lower training.batch_size, or start more" in told


def test_whoever_comes_again_meets_nobody_who_was_killed() -> None:
    """A store keeps what an earlier attempt has written; one machine counts restarts, another does not."""
    store, patience = HashStore(), timedelta(seconds=60)
    names = []
    for attempt in range(3):
        found: dict[int, tuple[str, bool]] = {}

        def come(rank: int, attempt: int, found: dict[int, tuple[str, bool]]) -> None:
            is_restarted = attempt > 0 and rank == 1
            found[rank] = meet(store, rank, 3, is_restarted=is_restarted, patience=patience)

        threads = [Thread(target=come, args=(rank, attempt, found)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ((name, is_restarted),) = set(found.values())
        names.append(name)
        assert is_restarted == (attempt > 0)
    assert len(set(names)) == 3
