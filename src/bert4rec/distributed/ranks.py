"""The processes that `torchrun` has started: who leads, how the others hear of it, and how all of them end."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from bert4rec.distributed.crew import Crew, Tensors
from bert4rec.distributed.divided_task import DividedTask
from bert4rec.distributed.item_shards import ItemShards, first_row, is_divided
from bert4rec.distributed.meeting import meet
from bert4rec.errors import Bert4RecError, UsageError
from bert4rec.evaluation.protocol import DivergedError
from bert4rec.kernels.adamw import Norm
from bert4rec.machine import is_restarted, local_ranks
from bert4rec.models.model import SequentialModel
from bert4rec.tasks.seeds import seed_of
from bert4rec.tasks.task import Task

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others, who may be counting, writing or ranking. One that has ended is noticed at once,
one whose machine has vanished after this time."""
SIGNS_OF_LOSS = ("connection", "socket", "timed out", "timeout", "nccl", "gloo", "peer")
STEP, TASK, END = "take_step", "task", "end"
Each = TypeVar("Each")
_have_parted: list[bool] = []
"""Whether this process has trained together with others, who have ended since."""


class LostRankError(Bert4RecError):
    """Another process has ended, or cannot be reached any more."""


class DroppedError(Exception):
    """What all ranks were doing is given up, because of one of the others."""


class Ranks(Crew):
    """All processes, as one of them sees them. Item tables are divided, and batches, validations and tests as well."""

    is_alone = False

    def __init__(self, store: Store, *, is_restarted: bool) -> None:
        """`store` is torchrun's, which it keeps for all its attempts."""
        self._store, self.is_restarted = store, is_restarted
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0
        self._is_in_step = True
        self._tasks: list[DividedTask] = []
        """The one that is trained at the moment."""

    @contextmanager
    def order(self, name: str, **arguments: Any) -> Iterator[None]:
        # Whoever leaves in between does not know what the others are waiting for.
        self._is_in_step = False
        if self.leads:
            self._send(name, arguments)
        if name == TASK:
            self._tasks = []  # A GPU may not have room for both.
        yield
        self._is_in_step = True

    def orders(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the leading process asks the others to do, until all is over. If it has failed, so do they."""
        while True:
            name, arguments = self._receive()
            if name == END:
                if arguments["exit_code"]:
                    self.leave(arguments["exit_code"])
                return
            yield name, arguments

    def end(self, exit_code: int) -> None:
        """Tell the others that it is over. Those who cannot be told lose the connection."""
        if self.leads and self._is_in_step:
            with suppress(RuntimeError):
                self._send(END, {"exit_code": exit_code})

    def leave(self, exit_code: int) -> NoReturn:
        """End this process, which follows, as the first one does and after it.

        The first one says why, and torchrun would end it as soon as another has failed. A machine whose processes all
        end well would wait for those that start again.
        """
        with suppress(RuntimeError):
            dist.recv(torch.empty(1), 0)  # Nothing is sent any more: the connection ends with the process.
        raise SystemExit(exit_code)

    def note_begun(self, folder: Path) -> None:
        self._store.set(f"begun/{folder}", "")

    def has_begun(self, folder: Path) -> bool:
        return self.is_restarted and self._store.check([f"begun/{folder}"])

    def agree(self, facts: Mapping[str, str], error: Bert4RecError | None) -> None:
        """Refuse to go on, on all ranks and with the same words, unless all have the same facts and none has an error.

        `facts` are what to call each of them in a sentence, and what it is here.
        """
        self._is_in_step = False  # Whoever is refused waits for no order.
        found: list[tuple[Bert4RecError | None, Mapping[str, str]]] = [(None, {})] * self.size
        dist.all_gather_object(found, (error, dict(facts)))
        for each, _ in found:
            if each is not None:
                raise each
        first = found[0][1]
        for rank, (_, others) in enumerate(found):
            for name, value in first.items():
                if others[name] != value:
                    raise UsageError(
                        f"All processes must be started alike, but {name} of rank {rank} is {others[name]}, not "
                        f"{value} as of rank 0. Start the same command with the same data everywhere."
                    )
        self._is_in_step = True

    def divided(self, task: Task) -> Task:
        self._tasks = [DividedTask(task, self.rank, self.size)]
        return self._tasks[0]

    def seed_step(self, seed: int, step: int) -> None:
        torch.manual_seed(seed_of(seed, self.rank, step))

    def share_gradients(self, task: Task) -> None:
        assert isinstance(task, DividedTask)
        task.share_gradients()

    def norm_of(self, task: Task) -> Norm | None:
        assert isinstance(task, DividedTask)
        return task.norm

    def collected(self, tensors: Tensors) -> Tensors:
        """Parameter by parameter through the host's memory, so that no device needs room for more than its part."""
        return {name: self._collected(name, tensor) for name, tensor in tensors.items()}

    def _collected(self, name: str, own: Tensor) -> Tensor:
        if not is_divided(name, own):
            return own
        own = own.detach().cpu().contiguous()
        if not self.leads:
            dist.send(own, 0)
            return own
        whole = own.new_empty(self._shards.total(name), *own.shape[1:])
        for rank in range(self.size):
            rows = whole[first_row(name, rank, self.size) :: self.size]
            theirs = own if rank == 0 else torch.empty_like(rows, memory_format=torch.contiguous_format)
            if rank:
                dist.recv(theirs, rank)
            rows.copy_(theirs)
        return whole

    def dealt(self, tensors: Tensors, state: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
        shapes = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()]
        shapes, state = self._told([shapes, state])
        dealt = {}
        for name, dtype, shape in shapes:
            whole = tensors.get(name, torch.empty(0, dtype=getattr(torch, dtype.removeprefix("torch."))))
            dealt[name] = self._dealt(name, whole, shape)
        return dealt, state

    def _dealt(self, name: str, whole: Tensor, shape: list[int]) -> Tensor:
        if not (shape and is_divided(name, torch.empty(1))):
            return self._broadcast(whole if self.leads else whole.new_empty(shape))
        if self.leads:
            for rank in range(1, self.size):
                dist.send(self._shards.own(name, whole, rank), rank)
            return self._shards.own(name, whole)
        rows = len(range(first_row(name, self.rank, self.size), shape[0], self.size))
        own = whole.new_empty(rows, *shape[1:])
        dist.recv(own, 0)
        return own

    def set_weights(self, model: SequentialModel, weights: Mapping[str, Tensor]) -> None:
        self._shards.make_room()
        for name, tensor in model.state_dict().items():  # One at a time: they may be large.
            sent = weights[name].cpu() if self.leads else torch.empty_like(tensor, device="cpu")
            tensor.copy_(self._broadcast(sent))

    @contextmanager
    def judging(self, model: SequentialModel) -> Iterator[None]:  # noqa: ARG002
        """The item table of a model that is being trained is put together for as long."""
        is_training = self._shards.is_in_use
        if is_training:
            self._shards.unite()
        self._has_told = False
        try:
            yield
        except (DivergedError, KeyboardInterrupt) as error:
            # The second Ctrl-C is not polite: it does not wait for anybody.
            if not self._has_told and type(error) is not KeyboardInterrupt:
                self._all_found(str(error) or "stopped", [])
                self._is_in_step = True
            raise
        finally:
            if is_training:
                self._shards.divide()

    def share(self, batches: Iterator[Each]) -> Iterator[Each]:
        return islice(batches, self.rank, None, self.size)

    def add_up(self, ranks: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        return [
            np.sum(each, axis=0, dtype=np.int32) for each in zip(*self._all_found("", ranks), strict=True)
        ]

    def join_lists(self, lists: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.concatenate([each for (each,) in self._all_found("", [lists])])

    def _all_found(
        self, error: str, arrays: Sequence[NDArray[np.int32]]
    ) -> list[Sequence[NDArray[np.int32]]]:
        """What each rank has found; an error of one is raised on the others, too."""
        found: list[tuple[str, Sequence[NDArray[np.int32]]]] = [("", [])] * self.size
        self._has_told = True
        dist.all_gather_object(found, (error, list(arrays)))
        errors = [told for told, _ in found if told]
        if errors and not error:
            self._is_in_step = True
            raise DivergedError(errors[0]) if self.leads else DroppedError(errors[0])
        return [each for _, each in found]

    @property
    def _shards(self) -> ItemShards:
        return self._tasks[0].shards

    def _send(self, name: str, arguments: dict[str, Any]) -> None:
        text = b"" if name == STEP else json.dumps([name, arguments]).encode()
        self._broadcast(torch.tensor([len(text)]))
        if text:
            self._broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8))

    def _receive(self) -> tuple[str, dict[str, Any]]:
        size = int(self._broadcast(torch.zeros(1, dtype=torch.int64)))
        if not size:
            return STEP, {}
        name, arguments = json.loads(bytes(self._broadcast(torch.empty(size, dtype=torch.uint8)).tolist()))
        return name, arguments

    def _told(self, value: Any) -> Any:
        """What the leading process says, fit for JSON."""
        told = [json.dumps(value)]
        dist.broadcast_object_list(told, 0)
        return json.loads(told[0])

    @staticmethod
    def _broadcast(tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        dist.broadcast(tensor, 0)
        return tensor


def device_of_rank(device: str) -> str:
    """The device that this process is to use, by its number on this machine."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    if device != "cuda":
        raise UsageError(
            f'`device="{device}"` cannot be used by several processes. Use auto, cpu or cuda: each takes a GPU of its '
            "own."
        )
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_ranks() > there:
        raise UsageError(
            f"There are {local_ranks()} processes on this machine but {there} GPUs. Start as many as there are GPUs, "
            'or use `device="cpu"`.'
        )
    torch.cuda.set_device(number)
    return f"cuda:{number}"


@contextmanager
def joined() -> Iterator[Ranks]:
    """All processes that `torchrun` has started, from here to the end of the block.

    They can come together once: the others end with their part of it.
    """
    if _have_parted:
        raise UsageError(
            "The processes that torchrun started have trained together already, and the others have ended. Start "
            "another torchrun for the next training."
        )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        name, was_restarted = meet(store, rank, size, is_restarted=is_restarted(), patience=PATIENCE)
        own = PrefixStore(name, store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise LostRankError(f"The processes could not find each other ({_first_line(error)}).") from error
    ranks = Ranks(store, is_restarted=was_restarted)
    try:
        yield ranks
    except BaseException as error:
        # The group is left as it is: to take it apart, NCCL may wait for a process that is no more.
        ranks.end(_exit_code(error))
        is_lost = isinstance(error, RuntimeError) and any(
            sign in str(error).lower() for sign in SIGNS_OF_LOSS
        )
        if not is_lost:
            raise
        if not ranks.leads:  # The first one says it for all of them, unless it is the one that was killed.
            raise SystemExit(1) from error
        raise LostRankError(
            "The connection to another process is lost: it has failed or was killed. What is on disk is whole; start "
            f"again with `resume=True`, unless torchrun does ({_first_line(error)})."
        ) from error
    else:
        ranks.end(0)
        dist.destroy_process_group()
    finally:
        _have_parted.append(True)


def _exit_code(error: BaseException) -> int:
    """That of a command which ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.exit_code if isinstance(error, Bert4RecError) else 1


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
