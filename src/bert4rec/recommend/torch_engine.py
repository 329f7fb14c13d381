"""A trained run as it is, computed by torch: on a GPU in bfloat16, without padding, everything on the device."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.histories import Histories
from bert4rec.models.history_batch import HistoryBatch, PackedHistories, PaddedHistories, send
from bert4rec.models.model import SequentialModel
from bert4rec.recommend.engine import Numbers, Scores, by_rows, by_tokens
from bert4rec.recommend.rules.subset import Subset
from bert4rec.training.device import Placement

_TOKENS_AT_ONCE = {"cpu": 2**12, "mps": 2**16, "cuda": 2**20}
_ROWS_AT_ONCE = 32
"""On a processor: enough to make good use of each item's vector that is fetched, few enough for its caches."""
_SCORES_AT_ONCE = {"cpu": 2**26, "mps": 2**26, "cuda": 2**29}
"""What memory holds with ease, however large the catalogue: 2 GiB on a GPU, 256 MiB elsewhere."""
_BLOCK = 64
"""Items whose best score is looked at before their own."""


class TorchEngine:
    """Any model that answers for a history, not only for users it was trained with."""

    def __init__(self, model: SequentialModel, placement: Placement, untrained: Sequence[int] = ()) -> None:
        """`untrained`: numbers of items that are never recommended."""
        self.max_history = model.max_history
        self._model, self._placement = model, placement
        table, bias = (tensor.detach().float() for tensor in model.item_vectors())
        rows = table[1 : len(bias) + 1]
        bias = bias.clone()
        bias[[number - 1 for number in untrained]] = -torch.inf
        self.rows, self.bias = rows.cpu().numpy(), bias.cpu().numpy()
        self._rows = F.pad(rows, (0, 0, 0, -len(bias) % _BLOCK))
        self._bias = self._in_blocks(bias)

    def _in_blocks(self, bias: Tensor) -> Tensor:
        """[V, 1], in whole blocks: what fills up the last one is never recommended."""
        filled = F.pad(bias, (0, -len(bias) % _BLOCK), value=-torch.inf)
        return filled.to(self._placement.device)[:, None]

    @torch.inference_mode()
    def queries(self, histories: Histories) -> NDArray[np.float32]:
        packed = PackedHistories(histories, self._placement.device)
        found: NDArray[np.float32] = self._queries(packed).cpu().numpy()
        return found

    @torch.inference_mode()
    def top(
        self, histories: Histories, excluded: Histories, k: int, subset: Subset | None = None
    ) -> tuple[Numbers, Scores]:
        bias = self._bias if subset is None else self._in_blocks(torch.from_numpy(subset.bias(self.bias)))
        packed, struck = send(histories, excluded, self._placement.device)
        queries = self._queries(packed)
        kind = self._placement.device.type
        fitting = max(1, _SCORES_AT_ONCE[kind] // len(self._bias))
        rows_at_once = fitting if kind == "cuda" else min(_ROWS_AT_ONCE, fitting)
        found = [
            self._best(queries[rows], struck[rows], k, bias) for rows in by_rows(len(queries), rows_at_once)
        ]
        scores, places = (torch.cat(parts) for parts in zip(*found, strict=True))
        return (places.int() + 1).cpu().numpy(), scores.cpu().numpy()

    def _best(
        self, queries_BD: Tensor, excluded: PackedHistories, k: int, bias_V1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores and places [B, k]. The k best items lie in the k blocks with the best items: few are sorted."""
        scores_VB = torch.addmm(bias_V1, self._rows, queries_BD.T)
        rows, items = excluded.flat()
        scores_VB[items.long() - 1, rows] = -torch.inf
        best_of_block = scores_VB.unflatten(0, (-1, _BLOCK)).amax(dim=1)
        blocks = torch.topk(best_of_block.T, min(k, len(best_of_block))).indices
        inside = torch.arange(_BLOCK, device=blocks.device)
        places = (blocks[:, :, None] * _BLOCK + inside).flatten(1)
        scores, chosen = torch.topk(scores_VB.T.gather(1, places), k)
        return scores, places.gather(1, chosen)

    @torch.inference_mode()
    def attention(self, history: Numbers) -> NDArray[np.float32] | None:
        items = torch.from_numpy(np.ascontiguousarray(history)).to(self._placement.device)
        weights = self._model.attention(PaddedHistories(items[None]))
        return None if weights is None else weights[0].float().cpu().numpy()

    def _queries(self, histories: PackedHistories) -> Tensor:
        dtype = self._placement.dtype
        parts = by_tokens(histories.histories, _TOKENS_AT_ONCE[self._placement.device.type])
        batches = (_batch(replace(histories, histories=each)) for each in parts)
        return torch.cat([self._model.queries(each, dtype=dtype) for each in batches]).float()


def _batch(histories: PackedHistories) -> HistoryBatch:
    if len(histories) > 1:
        return histories
    # One history needs no padding, and a rectangle takes fewer steps to make: it is answered a tenth sooner.
    return PaddedHistories(histories.newest(max(1, int(histories.histories.lengths[0]))))
