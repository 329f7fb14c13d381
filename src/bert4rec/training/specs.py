"""The one table of models: what each is called, how it is built, and how it learns."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bert4rec.models.bert4rec import BERT4Rec
from bert4rec.models.bpr_mf import BPRMF
from bert4rec.models.caser import Caser
from bert4rec.models.fpmc import FPMC
from bert4rec.models.gru4rec import GRU4Rec
from bert4rec.models.gru4rec_plus import GRU4RecPlus
from bert4rec.models.ncf import NCF
from bert4rec.models.pop import Pop
from bert4rec.models.sasrec import SASRec
from bert4rec.tasks.task import ClozeTask, CountingTask, NextItemTask, PairTask, TaskInputs


@dataclass(frozen=True)
class ModelSpec:
    """What is behind a model's name."""

    title: str
    """As the paper writes it."""
    network: type[nn.Module]
    task: Any
    """How it learns; what it can be told is in `config.SECTIONS`."""

    @property
    def is_trained(self) -> bool:
        return self.task is not CountingTask

    @property
    def knows_users(self) -> bool:
        """Whether it learns something of each user, and so can answer only for those it has met."""
        return self.task is PairTask

    @property
    def needs_users(self) -> bool:
        """Whether it answers only for users it was trained with, not for any history."""
        return self.task in (PairTask, CountingTask)

    def build(
        self, num_users: int, num_items: int, settings: Any, generator: torch.Generator | None = None
    ) -> nn.Module:
        sizes = (num_users, num_items) if self.knows_users else (num_items,)
        return self.network(*sizes, settings, generator)

    def make_task(self, ground: TaskInputs) -> Any:
        """A fresh model on the device, and what it is to learn."""
        generator = torch.Generator().manual_seed(ground.seed)
        sizes = ground.dataset.num_users, ground.dataset.num_items
        return self.task(self.build(*sizes, ground.config.model, generator).to(ground.device), ground)


MODELS = {
    "pop": ModelSpec("POP", Pop, CountingTask),
    "bpr-mf": ModelSpec("BPR-MF", BPRMF, PairTask),
    "ncf": ModelSpec("NCF", NCF, PairTask),
    "fpmc": ModelSpec("FPMC", FPMC, PairTask),
    "gru4rec": ModelSpec("GRU4Rec", GRU4Rec, NextItemTask),
    "gru4rec+": ModelSpec("GRU4Rec+", GRU4RecPlus, NextItemTask),
    "caser": ModelSpec("Caser", Caser, PairTask),
    "sasrec": ModelSpec("SASRec", SASRec, NextItemTask),
    "bert4rec": ModelSpec("BERT4Rec", BERT4Rec, ClozeTask),
}
"""In the order of the paper's Table 2."""
