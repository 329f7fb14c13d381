"""A trained run as it is, computed by torch: on a GPU in bfloat16, without padding, everything on the device."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bert4rec.data.histories import Histories
from bert4rec.errors import UsageError
from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.recommend.engine import Numbers, Scores, by_rows, by_tokens
from bert4rec.tasks.cloze import append_mask
from bert4rec.training.device import Placement
from bert4rec.training.run import Run, Weights
from bert4rec.training.specs import MODELS

_TOKENS_AT_ONCE = {"cpu": 2**12, "cuda": 2**20}
_ROWS_AT_ONCE = 32
"""On a processor: enough to make good use of each item's vector that is fetched, few enough for its caches."""
_SCORES_AT_ONCE = 2**29
"""On a GPU: what its memory holds with ease."""
_BLOCK = 64
"""Items whose best score is looked at before their own."""


class TorchEngine:
    """A model that turns histories into queries: BERT4Rec, SASRec, GRU4Rec."""

    def __init__(self, model: Any, placement: Placement) -> None:
        self.max_history = max_history_of(model)
        self._model, self._placement = model, placement
        rows, bias = (tensor.detach().float() for tensor in model.answers())
        self.rows, self.bias = rows.cpu().numpy(), bias.cpu().numpy()
        # Whole blocks: what fills up the last one is never recommended.
        missing = -len(bias) % _BLOCK
        self._rows = F.pad(rows, (0, 0, 0, missing))
        self._bias = F.pad(bias, (0, missing), value=-torch.inf)[:, None]

    @torch.inference_mode()
    def queries(self, histories: Histories) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._queries(histories).cpu().numpy()
        return found

    @torch.inference_mode()
    def top(self, histories: Histories, excluded: Histories, k: int) -> tuple[Numbers, Scores]:
        queries = self._queries(histories)
        on_gpu = self._placement.device.type == "cuda"
        rows_at_once = max(1, _SCORES_AT_ONCE // len(self._bias)) if on_gpu else _ROWS_AT_ONCE
        found = [self._best(queries[rows], excluded[rows], k) for rows in by_rows(len(queries), rows_at_once)]
        scores, places = (torch.cat(parts) for parts in zip(*found, strict=True))
        return (places.int() + 1).cpu().numpy(), scores.cpu().numpy()

    def _best(self, queries_BD: Tensor, excluded: Histories, k: int) -> tuple[Tensor, Tensor]:
        """Scores and places [B, k]. The k best items lie in the k blocks with the best items: few are sorted."""
        scores_VB = torch.addmm(self._bias, self._rows, queries_BD.T)
        _, items = excluded.flat()
        rows = torch.repeat_interleave(self._to_device(excluded.lengths), output_size=len(items))
        scores_VB[self._to_device(items).long() - 1, rows] = -torch.inf
        best_of_block = scores_VB.unflatten(0, (-1, _BLOCK)).amax(dim=1)
        blocks = torch.topk(best_of_block.T, min(k, len(best_of_block))).indices
        inside = torch.arange(_BLOCK, device=blocks.device)
        places = (blocks[:, :, None] * _BLOCK + inside).flatten(1)
        scores, chosen = torch.topk(scores_VB.T.gather(1, places), k)
        return scores, places.gather(1, chosen)

    @torch.inference_mode()
    def attention(self, history: Numbers) -> NDArray[np.float32] | None:
        if not isinstance(self._model, BERT4Rec):
            return None
        tokens = self._to_device(np.append(history, np.int32(self._model.mask_number)))
        maps = self._model.attention_maps(tokens[None])
        weights: NDArray[np.float32] = maps[0, :, :, -1].float().cpu().numpy()
        return weights

    def _queries(self, histories: Histories) -> Tensor:
        tokens = _TOKENS_AT_ONCE[self._placement.device.type]
        return torch.cat([self._encode(each) for each in by_tokens(histories, tokens)])

    def _encode(self, histories: Histories) -> Tensor:
        if not isinstance(self._model, BERT4Rec):
            padded = histories.padded(max(1, int(histories.lengths[0])))
            queries: Tensor = self._model.query(self._to_device(padded).long())
            return queries
        _, items = histories.flat()
        lengths = self._to_device(histories.lengths)
        end = lengths.cumsum(0)
        batch = append_mask(
            self._to_device(items),
            end - lengths,
            end,
            max_length=self._model.config.max_length,
            mask_number=self._model.mask_number,
        )
        hidden = self._model.encode(batch.tokens, batch.positions, batch.layout, self._placement.dtype)
        # In float32 from here on: in bfloat16 many items would tie.
        return self._model.project(hidden.float())

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._placement.device)


def max_history_of(model: Any) -> int:
    """How many items the model looks at. BERT4Rec keeps one place for [mask]."""
    return int(model.config.max_length) - isinstance(model, BERT4Rec)


def load_sequential(run: Run, weights: Weights, device: torch.device) -> Any:
    """A model that answers any history, not only for users it was trained with."""
    if MODELS[run.plan.model].needs_users:
        raise UsageError(f"{MODELS[run.plan.model].title} cannot answer for a history.")
    return run.load_model(weights, device)
