"""How models learn: Cloze, next item, pairs; the batches and the losses of each."""

from bert4rec.tasks.cloze import ClozeTask
from bert4rec.tasks.next_item import NextItemTask
from bert4rec.tasks.pairs import PairTask
from bert4rec.tasks.task import CountingTask

__all__ = ["ClozeTask", "CountingTask", "NextItemTask", "PairTask"]
