"""Losses that compare what was chosen with a few items that were not, instead of with the whole catalogue.

Shapes: R rows, S items drawn for the whole batch; B samples, T targets each, n items to compare each of those with.
Every loss is a mean over the targets that count.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING

# Users and items in pairs (BPR-MF, FPMC, NCF, Caser).


def pairwise(chosen_BT: Tensor, unchosen_BTn: Tensor, counts_BT: Tensor) -> Tensor:
    """BPR: -log σ(chosen - unchosen), a mean over the unchosen."""
    losses = -F.logsigmoid(chosen_BT[..., None] - unchosen_BTn).mean(dim=-1)
    return _mean(losses, counts_BT)


def pointwise(chosen_BT: Tensor, unchosen_BTn: Tensor, counts_BT: Tensor) -> Tensor:
    """Binary cross-entropy: chosen items are 1, the others 0, and all weigh the same."""
    losses = -F.logsigmoid(chosen_BT) - F.logsigmoid(-unchosen_BTn).sum(dim=-1)
    return _mean(losses, counts_BT) / (1 + unchosen_BTn.shape[-1])


# Next-item prediction (SASRec, GRU4Rec, GRU4Rec+).


def binary(hidden_RD: Tensor, table: Tensor, bias: Tensor, targets_R: Tensor, negatives_R: Tensor) -> Tensor:
    """SASRec's own: each target against one item that the user did not choose."""
    right, wrong = (_scores_of(hidden_RD, table, bias, items) for items in (targets_R, negatives_R))
    return _mean(-F.logsigmoid(right) - F.logsigmoid(-wrong), targets_R != PADDING)


def shared(
    name: str,
    hidden_RD: Tensor,
    table: Tensor,
    bias: Tensor,
    targets_R: Tensor,
    negatives_S: Tensor,
    penalty: float = 0.0,
) -> Tensor:
    """One of GRU4Rec's losses: each target against the same drawn items, less the target itself."""
    right_R1 = _scores_of(hidden_RD, table, bias, targets_R)[:, None]
    wrong_RS = (hidden_RD @ table[negatives_S].to(hidden_RD.dtype).T).float() + _bias_of(bias, negatives_S)
    counts_RS = (negatives_S != PADDING) & (negatives_S != targets_R[:, None])
    losses = _SHARED[name](right_R1, wrong_RS, counts_RS.to(wrong_RS.dtype), penalty)
    return _mean(losses, targets_R != PADDING)


def top1(right_R1: Tensor, wrong_RS: Tensor, counts_RS: Tensor, _penalty: float) -> Tensor:
    """How often others score higher, and a pull of their scores towards 0."""
    losses = (wrong_RS - right_R1).sigmoid() + wrong_RS.square().sigmoid()
    return (losses * counts_RS).sum(1) / counts_RS.sum(1).clamp(min=1)


def bpr(right_R1: Tensor, wrong_RS: Tensor, counts_RS: Tensor, _penalty: float) -> Tensor:
    losses = -F.logsigmoid(right_R1 - wrong_RS)
    return (losses * counts_RS).sum(1) / counts_RS.sum(1).clamp(min=1)


def top1_max(right_R1: Tensor, wrong_RS: Tensor, counts_RS: Tensor, _penalty: float) -> Tensor:
    """TOP1 weighted by the softmax of the others' scores: the hardest count most."""
    losses = (wrong_RS - right_R1).sigmoid() + wrong_RS.square().sigmoid()
    return (losses * _softmax(wrong_RS, counts_RS)).sum(1)


def bpr_max(right_R1: Tensor, wrong_RS: Tensor, counts_RS: Tensor, penalty: float) -> Tensor:
    """The chance to be above the hardest of the others, and a penalty on high scores of those."""
    weights = _softmax(wrong_RS, counts_RS)
    above = (weights * (right_R1 - wrong_RS).sigmoid()).sum(1)
    # Where nothing was drawn but the target itself, there is nothing to be above.
    loss = -torch.where(counts_RS.any(1), above, 1.0).clamp(min=1e-24).log()
    return loss + penalty * (weights * wrong_RS.square()).sum(1)


_SHARED = {"top1": top1, "bpr": bpr, "top1-max": top1_max, "bpr-max": bpr_max}


def _softmax(scores_RS: Tensor, counts_RS: Tensor) -> Tensor:
    """Over those that count; all zeros where none does."""
    return scores_RS.masked_fill(counts_RS == 0, -1e30).softmax(dim=1) * counts_RS


def _scores_of(hidden_RD: Tensor, table: Tensor, bias: Tensor, items_R: Tensor) -> Tensor:
    return (hidden_RD * table[items_R]).sum(-1).float() + _bias_of(bias, items_R)


def _bias_of(bias: Tensor, items: Tensor) -> Tensor:
    return F.pad(bias, (1, 1))[items]


def _mean(losses: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts, losses, 0).sum() / counts.sum().clamp(min=1)
