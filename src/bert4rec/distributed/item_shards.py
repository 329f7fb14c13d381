"""The items of a model divided among ranks: item i belongs to rank i modulo their number.

Numbers go by popularity, so every rank has as many popular items as any other. The bias of an item is where its vector
is. What is divided is an ordinary parameter of fewer rows, so that gradients and the optimiser's state are divided with
it and nobody else needs to know.
"""

import torch.distributed as dist
from torch import Tensor, nn

from bert4rec.models.model import TiedEncoder

TABLE, BIAS = "item_table.weight", "item_bias"
"""Names of what is divided."""


def is_divided(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of this name, such as `optimizer.exp_avg.item_bias`, has a row for each item."""
    return tensor.dim() > 0 and any(name == each or name.endswith(f".{each}") for each in (TABLE, BIAS))


def first_row(name: str, rank: int, ranks: int) -> int:
    """The first row of a rank; from there on, every so many-th is its own. The bias begins with item 1."""
    return (rank - 1) % ranks if name.endswith(BIAS) else rank


class ItemShards:
    """The item table and the bias of a model, of which this rank keeps its own rows."""

    def __init__(self, model: TiedEncoder, rank: int, ranks: int) -> None:
        self._model, self.rank, self.ranks = model, rank, ranks
        self.num_rows = {TABLE: len(model.item_table.weight), BIAS: len(model.item_bias)}
        self.table = nn.Parameter(self.own(TABLE, model.item_table.weight.detach()))
        bias = self.own(BIAS, model.item_bias.detach())
        self.bias = nn.Parameter(bias) if isinstance(model.item_bias, nn.Parameter) else bias
        self.divide()

    @property
    def parameters(self) -> list[Tensor]:
        return [each for each in (self.table, self.bias) if isinstance(each, nn.Parameter)]

    @property
    def is_in_use(self) -> bool:
        """Whether the model has its own rows at the moment."""
        return self._model.item_table.weight is self.table

    def own(self, name: str, whole: Tensor, rank: int | None = None) -> Tensor:
        """A copy of the rows that belong to this rank, or to another."""
        first = first_row(name, self.rank if rank is None else rank, self.ranks)
        return whole[first :: self.ranks].clone()

    def total(self, name: str) -> int:
        """Rows of all ranks together."""
        return self.num_rows[BIAS if name.endswith(BIAS) else TABLE]

    def divide(self) -> None:
        """Let the model have its own rows."""
        self._model.item_table.weight, self._model.item_bias = self.table, self.bias

    def lend(self, rows: Tensor) -> nn.Parameter:
        """Let the model look tokens up in these rows instead, and return what their gradients will be of."""
        self._model.item_table.weight = lent = nn.Parameter(rows)
        return lent

    def make_room(self) -> None:
        """Let the model have a table with room for the rows of all ranks, in which nothing stands yet.

        The bias, which is small, is put together: that of some models is not among their weights.
        """
        table = self.table.detach().new_empty(self.total(TABLE), self.table.shape[1])
        bias = self.bias.detach().new_empty(self.total(BIAS))
        self._model.item_table.weight = nn.Parameter(table)
        self._fill(BIAS, bias, self.bias.detach())
        self._model.item_bias = nn.Parameter(bias) if isinstance(self.bias, nn.Parameter) else bias

    def unite(self) -> None:
        """Let the model have the rows of all ranks. Meanwhile there is room for those of one more."""
        self.make_room()
        self._fill(TABLE, self._model.item_table.weight.detach(), self.table.detach())

    def _fill(self, name: str, whole: Tensor, own: Tensor) -> None:
        for rank in range(self.ranks):
            rows = whole[first_row(name, rank, self.ranks) :: self.ranks]
            theirs = own if rank == self.rank else own.new_empty(rows.shape)
            dist.broadcast(theirs, rank)
            rows.copy_(theirs)
