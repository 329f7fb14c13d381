"""How models learn: Cloze, next item, both at once, pairs; the batches and the losses of each."""

from bert4rec.tasks.cloze import ClozeTask
from bert4rec.tasks.joint import JointTask
from bert4rec.tasks.next_item import NextItemTask
from bert4rec.tasks.pairs import PairTask
from bert4rec.tasks.task import CountingTask

__all__ = ["ClozeTask", "CountingTask", "JointTask", "NextItemTask", "PairTask"]
