"""A model of your own, in one file and one line: what fits the recent items, of which the newest weighs most."""

from dataclasses import dataclass

import torch

import bert4rec
from bert4rec.settings.networks import ShareAboveZero


@dataclass(frozen=True)
class RecencySettings(bert4rec.ModelSettings):
    dim: int = 32
    decay: ShareAboveZero = 0.5
    """Weight of an item, as a share of the weight of the next newer one."""


class Recency(bert4rec.SequenceEncoder):
    def __init__(self, num_items, settings, generator=None):
        super().__init__()
        self.max_length, self.decay = 20, settings.decay
        self.items, self.next_items = (torch.nn.Embedding(num_items + 1, settings.dim) for _ in range(2))
        self.bias = torch.nn.Parameter(torch.zeros(num_items))
        for table in (self.items, self.next_items):
            torch.nn.init.normal_(table.weight, std=0.1, generator=generator)

    def encode(self, tokens, positions, layout, dtype=None):
        vectors = self.items(layout.rectangle(tokens))  # [sequences, places, dim]
        place = torch.arange(vectors.shape[1], device=vectors.device)
        weights = (self.decay ** (place[:, None] - place).clamp(min=0)).tril()
        return layout.pick(weights @ vectors)

    def item_vectors(self):
        return self.next_items.weight, self.bias


bert4rec.register("recency", Recency, RecencySettings)
if __name__ == "__main__":
    print(bert4rec.train(bert4rec.prepare("synthetic"), model="recency", settings={"training.steps": 300}))
