"""Training batches without padding, all of one fixed shape, made in bulk on the device.

A *round* goes over all windows a whole number of times. It sorts its samples by size into as many strata as a
batch has samples, shuffles each stratum, and gives every batch one sample of each: so all batches have nearly
the same number of tokens, and a fixed shape (which a CUDA graph needs) wastes a percent or two. What is left
over is filled with dead tokens: sequences of padding that nothing attends to and that carry no weight.

Everything is drawn from (seed, round, block): a batch depends on its step alone, so that a run can be resumed
at any step.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.models.attention import Packed
from bert4rec.training.cloze import Batch, Cloze, Samples, draw_samples, shuffle_inside
from bert4rec.training.windows import Windows

MIN_STEPS_A_ROUND = 64
"""Small data goes over its windows several times in a round, so that batches can still be even."""
ROUNDS_TRIED = 4
"""Rounds drawn in advance to see how large batches get."""


@dataclass(frozen=True)
class BatchShape:
    """The fixed size of every batch."""

    samples: int
    dead: int
    """Sequences that may be needed to hold the dead tokens and rows."""
    tokens: int
    rows: int
    max_length: int
    max_rows: int

    @property
    def fields(self) -> dict[str, int]:
        """A batch is one row of numbers: the names and sizes of its parts, in order."""
        bounds = self.samples + self.dead + 1
        return {
            "tokens": self.tokens,
            "positions": self.tokens,
            "bounds": bounds,
            "rows": self.rows,
            "row_bounds": bounds,
            "targets": self.rows,
        }

    @property
    def width(self) -> int:
        return sum(self.fields.values())

    def read(self, row: Tensor) -> Batch:
        """The batch in one row of a block. Views, no copies: new numbers in the row are a new batch."""
        part = dict(zip(self.fields, torch.split(row, list(self.fields.values())), strict=True))
        layout = Packed(part["bounds"], self.max_length, part["rows"], part["row_bounds"], self.max_rows)
        return Batch(part["tokens"], part["positions"], part["targets"], layout)


class Batches:
    """The endless, repeatable stream of training batches of one run. Step s is always the same batch."""

    def __init__(
        self,
        sequences: Tensor,
        windows: Windows,
        cloze: Cloze,
        *,
        max_length: int,
        mask_number: int,
        batch_size: int,
        seed: int,
        block_tokens: int = 1 << 21,
    ) -> None:
        """`sequences` decides the device. `block_tokens` is about how many tokens are prepared at once."""
        assert len(windows), "there is nothing to train on"
        self.sequences, self.cloze, self.mask_number, self.seed = sequences, cloze, mask_number, seed
        self.begin = torch.as_tensor(windows.begin, device=sequences.device)
        self.length = torch.as_tensor(windows.length, device=sequences.device)
        self.repeats = -(-MIN_STEPS_A_ROUND * batch_size // len(windows))
        self.steps_per_round = len(windows) * self.repeats // batch_size
        self.shape = self._measure(batch_size, max_length)
        self.block_steps = min(self.steps_per_round, max(1, block_tokens // self.shape.tokens))
        self._round: tuple[int, Samples] | None = None

    def block(self, step: int) -> tuple[int, Tensor]:
        """The block that holds this step, and the step it begins with: int32 [steps, shape.width]."""
        number, within = divmod(step, self.steps_per_round)
        part = within // self.block_steps
        if self._round is None or self._round[0] != number:
            self._round = number, self._draw_round(self.shape.samples, self._generator(number))
        first = part * self.block_steps
        samples = self._round[1][slice(first, first + self.block_steps)]
        block = pack(self.sequences, samples, self.shape, self.mask_number, self._generator(number, part))
        return number * self.steps_per_round + first, block

    def _draw_round(self, batch_size: int, generator: torch.Generator) -> Samples:
        """One round's samples [steps, batch size], the largest of each batch first."""
        device, total = self.length.device, self.steps_per_round * batch_size
        # What does not fill a last batch is left out, at random.
        order = torch.randperm(len(self.length) * self.repeats, generator=generator, device=device)
        window = order[:total] % len(self.length)
        samples = draw_samples(self.begin[window], self.length[window], self.cloze, generator)
        size = samples.num_hidden * (1 + self.length.max()) + samples.length
        strata = torch.argsort(size, descending=True, stable=True).view(batch_size, self.steps_per_round)
        shuffle = torch.rand(strata.shape, generator=generator, device=device).argsort(dim=1)
        return samples[strata.gather(1, shuffle).T]

    def _measure(self, batch_size: int, max_length: int) -> BatchShape:
        """A shape that batches fill almost to the brim. Six standard deviations: in practice none overflows."""
        rounds = [self._draw_round(batch_size, self._generator(-1, trial)) for trial in range(ROUNDS_TRIED)]
        longest, tokens = _brim([samples.length for samples in rounds])
        most_hidden, rows = _brim([samples.num_hidden for samples in rounds])
        longest = max(longest, int(self.length.max()))
        most_hidden = max(most_hidden, round(longest * self.cloze.mask_probability))
        assert longest <= max_length, f"a window of {longest} actions, but max_length is {max_length}"
        # One more: there is always a dead token, for dead rows to point at.
        tokens, rows = _round_up(max(tokens, longest) + 1), _round_up(max(rows, most_hidden))
        dead = max(-(-tokens // max_length), -(-rows // most_hidden))
        return BatchShape(batch_size, dead, tokens, rows, max_length, most_hidden)

    def _generator(self, *stream: int) -> torch.Generator:
        entropy = np.random.SeedSequence([self.seed, *(number + 1 for number in stream)])
        seed = int(entropy.generate_state(1, np.uint64)[0] >> 1)
        return torch.Generator(self.sequences.device).manual_seed(seed)


def pack(
    sequences: Tensor, samples: Samples, shape: BatchShape, mask_number: int, generator: torch.Generator
) -> Tensor:
    """Lay out K batches of samples [K, B], hide items, and return int32 [K, shape.width].

    A sample that would not fit any more is left out; the smallest stand last, so one of those.
    """
    fits = (samples.length.cumsum(1) < shape.tokens) & (samples.num_hidden.cumsum(1) <= shape.rows)
    length, num_hidden = samples.length * fits, samples.num_hidden * fits
    lengths = _fill(length, shape.tokens, shape.max_length, shape.dead)
    bounds = F.pad(lengths.cumsum(1), (1, 0))
    row_bounds = F.pad(_fill(num_hidden, shape.rows, shape.max_rows, shape.dead).cumsum(1), (1, 0))

    # [K, T]: the number of each token's sequence, counted through all K batches, and its place there.
    numbers = torch.arange(lengths.numel(), device=lengths.device)
    sequence = torch.repeat_interleave(numbers, lengths.flatten(), output_size=len(lengths) * shape.tokens)
    sequence = sequence.view(len(lengths), shape.tokens)
    offset = torch.arange(shape.tokens, device=lengths.device) - bounds[:, :-1].flatten()[sequence]
    to_end = lengths.flatten()[sequence] - offset
    begin, num_hidden, last_only = (
        F.pad(field, (0, shape.dead)).flatten()[sequence]
        for field in (samples.begin, num_hidden, samples.last_only)
    )
    is_alive = sequence % lengths.shape[1] < shape.samples
    items = torch.where(is_alive, sequences[torch.where(is_alive, begin + offset, 0)], PADDING)

    # Shuffled inside their sequences, tokens of low rank are hidden. Where a token went, one of the same
    # sequence came from: so the i-th token's sequence and offset are the sequence and rank of the i-th shuffled.
    shuffled = shuffle_inside(sequence, last_only & (to_end == 1), generator)
    shuffled_items = items.gather(1, shuffled)
    is_hidden = offset < num_hidden
    # One column more, for what is not hidden. Dead rows point at the last token, which is dead.
    slot = torch.where(is_hidden, row_bounds[:, :-1].flatten()[sequence] + offset, shape.rows)
    rows = slot.new_full((len(lengths), shape.rows + 1), shape.tokens - 1).scatter_(1, slot, shuffled)
    targets = items.new_full(rows.shape, PADDING).scatter_(1, slot, shuffled_items)
    tokens = items.scatter(1, shuffled, torch.where(is_hidden, mask_number, shuffled_items))
    positions = shape.max_length - to_end
    parts = [tokens, positions, bounds, rows[:, :-1], row_bounds, targets[:, :-1]]  # as in `fields`
    return torch.cat([part.int() for part in parts], dim=1)


def _fill(sizes: Tensor, total: int, limit: int, dead: int) -> Tensor:
    """Add `dead` sequences of at most `limit` to each row of sizes, so that it sums to `total`."""
    missing = total - sizes.sum(1, keepdim=True)
    full = limit * torch.arange(dead, device=sizes.device)
    return torch.cat([sizes, (missing - full).clamp(0, limit)], dim=1)


def _brim(sizes: list[Tensor]) -> tuple[int, int]:
    """The largest single size, and a sum over a batch that is as good as never exceeded."""
    sums = torch.cat(sizes).sum(1).double()
    return int(max(size.max() for size in sizes)), int(torch.ceil(sums.mean() + 6 * sums.std()))


def _round_up(number: int, multiple: int = 8) -> int:
    return -(-number // multiple) * multiple
