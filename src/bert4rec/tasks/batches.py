"""Training batches without padding, all of one fixed shape, made in bulk on the device.

A *round* goes over all windows a whole number of times, or over a part of them where they are very many. It sorts
its samples by size into as many strata as a batch has samples, shuffles each stratum, and gives every batch one sample
of each: so all batches have nearly the same number of tokens, and a fixed shape (which a CUDA graph needs) wastes a
percent or two. What is left over is filled with dead tokens: sequences of padding that nothing attends to and that
carry no weight.

Everything is drawn from (seed, round, block): a batch depends on its step alone, so that a run can be resumed
at any step.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.data.dataset import PADDING
from bert4rec.errors import DataError
from bert4rec.kernels.support import is_on_gpu
from bert4rec.models.attention import PackedLayout
from bert4rec.tasks.excerpts import Excerpt, Items, RoundExcerpts, Sequences
from bert4rec.tasks.seeds import seed_of
from bert4rec.tasks.windows import Windows

MIN_STEPS_A_ROUND = 64
"""Small data goes over its windows several times in a round, so that batches can still be even."""
MOST_WINDOWS_A_ROUND = 2**21
"""Of more, several rounds together go over all windows, so that to draw one takes a second."""
ROUNDS_TRIED = 4
"""Rounds drawn in advance to see how large batches get."""


@dataclass(frozen=True)
class SequenceSamples:
    """Pieces of the flat sequences to be trained on; all fields have the same shape."""

    begin: Tensor
    length: Tensor
    num_targets: Tensor
    """How many of the sample's tokens are targets."""
    last_only: Tensor
    """bool: True where the last item is the only target."""

    def __getitem__(self, index: Tensor | slice) -> "SequenceSamples":
        return SequenceSamples(
            self.begin[index], self.length[index], self.num_targets[index], self.last_only[index]
        )


@dataclass(frozen=True)
class PackedBatch:
    """Sequences end to end, as `PackedLayout` describes them, with what is to be predicted at the wanted rows."""

    tokens: Tensor
    """[T] item numbers; [mask] where an item is masked."""
    positions: Tensor
    """[T] rows of the position table. The newest item has the last one, whatever the length."""
    targets: Tensor
    """[R] the item to be predicted at each wanted row; PADDING where the row is a filler without weight."""
    layout: PackedLayout
    negatives: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int32))
    """Items to compare the targets with, where the loss needs them."""


@dataclass(frozen=True)
class PlacedTokens:
    """K batches with every token in its place, before anything is chosen. Fields are [K, T] unless said."""

    items: Tensor
    """PADDING where a token is dead."""
    source: Tensor
    """Where in the flat sequences the token comes from; 0 where it is dead."""
    at_hand: Tensor
    """The flat sequences, or an excerpt of them: [all items]."""
    place: Tensor
    """Where in that the token comes from; 0 where it is dead."""
    is_alive: Tensor
    sequence: Tensor
    """The number of each token's sequence, counted through all K batches."""
    offset: Tensor
    """Place in its sequence."""
    to_end: Tensor
    """Tokens from here to the end of its sequence, this one included."""
    num_targets: Tensor
    """Of its sequence."""
    last_only: Tensor
    """Of its sequence."""
    first_row: Tensor
    """Number, in its batch, of the first row of its sequence."""
    num_rows: int
    """Rows of a batch."""


@dataclass(frozen=True)
class BatchTargets:
    """What K batches are to be trained on."""

    tokens: Tensor
    """[K, T] what the model sees."""
    rows: Tensor
    """[K, R] the tokens at which something is predicted. Dead rows point at a dead token."""
    targets: Tensor
    """[K, R] the right items; PADDING at dead rows."""
    negatives: Tensor
    """[K, S]"""


class TargetRule(Protocol):
    """What a model has to predict in training: masked items, or the next ones."""

    @property
    def causal(self) -> bool:
        """Whether tokens may see only what came before them."""
        ...

    def draw(self, begin: Tensor, length: Tensor, generator: torch.Generator) -> SequenceSamples:
        """One sample from each window."""
        ...

    def max_targets(self, length: int) -> int:
        """The most targets that a sample of this length may have."""
        ...

    def num_negatives(self, samples: int, rows: int) -> int:
        """How many a batch of this size needs."""
        ...

    def choose(self, placed: PlacedTokens, generator: torch.Generator) -> BatchTargets:
        """Decide at which tokens something is to be predicted, and what the model sees instead."""
        ...


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
    negatives: int
    causal: bool

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
            "negatives": self.negatives,
        }

    @property
    def width(self) -> int:
        return sum(self.fields.values())

    def read(self, row: Tensor) -> PackedBatch:
        """The batch in one row of a block. Views, no copies: new numbers in the row are a new batch."""
        part = dict(zip(self.fields, torch.split(row, list(self.fields.values())), strict=True))
        layout = PackedLayout(
            part["bounds"], self.max_length, part["rows"], part["row_bounds"], self.max_rows, self.causal
        )
        return PackedBatch(part["tokens"], part["positions"], part["targets"], layout, part["negatives"])

    def read_alive(self, row: Tensor) -> PackedBatch:
        """The same for training: where nothing needs a fixed shape, on a CPU, without what is dead.

        It stands behind everything else. Negatives are all there, for they may be those of the whole batch.
        """
        batch = self.read(row)
        if is_on_gpu(row):
            return batch
        bounds, row_bounds = (
            each[: self.samples + 1] for each in (batch.layout.bounds, batch.layout.row_bounds)
        )
        tokens, rows, longest = int(bounds[-1]), int(row_bounds[-1]), int(bounds.diff().max())
        layout = replace(
            batch.layout,
            bounds=bounds,
            max_length=longest,
            rows=batch.layout.rows[:rows],
            row_bounds=row_bounds,
        )
        return PackedBatch(
            batch.tokens[:tokens], batch.positions[:tokens], batch.targets[:rows], layout, batch.negatives
        )


class Batches:
    """The endless, repeatable stream of training batches of one run. Step s is always the same batch."""

    def __init__(
        self,
        sequences: Sequences,
        windows: Windows,
        rule: TargetRule,
        *,
        max_length: int,
        batch_size: int,
        seed: int,
        block_tokens: int = 1 << 21,
    ) -> None:
        """Batches are made on the device of `sequences`; of about `block_tokens` tokens at once."""
        assert len(windows), "call refuse_empty first"
        self.sequences, self.rule, self.seed = sequences, rule, seed
        self.begin = torch.as_tensor(windows.begin, device=sequences.device)
        self.length = torch.as_tensor(windows.length, device=sequences.device)
        self.repeats = -(-MIN_STEPS_A_ROUND * batch_size // len(windows))
        self.parts = max(1, len(windows) // max(MOST_WINDOWS_A_ROUND, MIN_STEPS_A_ROUND * batch_size))
        self.steps_per_round = len(windows) * self.repeats // self.parts // batch_size
        self.shape = self._measure(batch_size, max_length)
        # Negatives are drawn in bulk too, and may be many times the tokens.
        most = max(self.shape.tokens, self.shape.negatives // 4)
        self.block_steps = min(self.steps_per_round, max(1, block_tokens // most))
        self._round: tuple[int, SequenceSamples] | None = None
        self._order: tuple[int, Tensor] | None = None
        self._excerpts: RoundExcerpts | None = None

    def block(self, step: int) -> tuple[int, Tensor]:
        """The block that holds this step, and the step it begins with: int32 [steps, shape.width]."""
        number, within = divmod(step, self.steps_per_round)
        part = within // self.block_steps
        if self._round is None or self._round[0] != number:
            self._round = number, self._draw_round(self.shape.samples, self._generator(number), number)
            self._excerpts = None
        first = part * self.block_steps
        samples = self._round[1][slice(first, first + self.block_steps)]
        items = self._items_of_block(part, self._round[1])
        block = pack(items, samples, self.shape, self.rule, self._generator(number, part))
        if self._excerpts:
            self._excerpts.read_ahead(part + 1)
        return number * self.steps_per_round + first, block

    def _items_of_block(self, part: int, samples: SequenceSamples) -> Items:
        if isinstance(self.sequences, Tensor):
            return self.sequences
        if self._excerpts is None:
            self._excerpts = RoundExcerpts(self.sequences, samples.begin, samples.length, self.block_steps)
        return self._excerpts.block(part)

    def _draw_round(
        self, batch_size: int, generator: torch.Generator, number: int | None = None
    ) -> SequenceSamples:
        """One round's samples [steps, batch size], the largest of each batch first. Without `number`, for a trial."""
        device, total = self.length.device, self.steps_per_round * batch_size
        if self.parts == 1:
            # What does not fill a last batch is left out, at random.
            order = torch.randperm(len(self.length) * self.repeats, generator=generator, device=device)
            window = order[:total] % len(self.length)
        elif number is None:
            window = torch.randint(len(self.length), (total,), generator=generator, device=device)
        else:
            window = self._some_windows(number, total)
        samples = self.rule.draw(self.begin[window], self.length[window], generator)
        size = samples.num_targets * (1 + self.length.max()) + samples.length
        strata = torch.argsort(size, descending=True, stable=True).view(batch_size, self.steps_per_round)
        shuffle = torch.rand(strata.shape, generator=generator, device=device).argsort(dim=1)
        return samples[strata.gather(1, shuffle).T]

    def _some_windows(self, number: int, total: int) -> Tensor:
        """Those of one round, where it takes as many rounds as there are parts to go over all windows, in any order."""
        times_over, part = divmod(number, self.parts)
        if self._order is None or self._order[0] != times_over:
            generator = self._generator(-1, ROUNDS_TRIED + times_over)
            order = torch.randperm(len(self.length), generator=generator, device=self.length.device)
            self._order = times_over, order
        return self._order[1][part * total : (part + 1) * total]

    def _measure(self, batch_size: int, max_length: int) -> BatchShape:
        """A shape that batches fill almost to the brim. Six standard deviations: in practice none overflows."""
        rounds = [self._draw_round(batch_size, self._generator(-1, trial)) for trial in range(ROUNDS_TRIED)]
        longest, tokens = _brim([samples.length for samples in rounds])
        max_targets, rows = _brim([samples.num_targets for samples in rounds])
        longest = max(longest, int(self.length.max()))
        max_targets = max(max_targets, self.rule.max_targets(longest))
        assert longest <= max_length, f"a window of {longest} actions, but max_length is {max_length}"
        # One more: there is always a dead token, for dead rows to point at.
        tokens, rows = _round_up(max(tokens, longest) + 1), _round_up(max(rows, max_targets))
        if self.rule.causal:  # Every token is a row, the dead ones too.
            rows, max_targets = tokens, max_length
        dead = max(-(-tokens // max_length), -(-rows // max_targets))
        negatives = self.rule.num_negatives(batch_size, rows)
        causal = self.rule.causal
        return BatchShape(batch_size, dead, tokens, rows, max_length, max_targets, negatives, causal)

    def _generator(self, *stream: int) -> torch.Generator:
        seed = seed_of(self.seed, *(number + 1 for number in stream))
        return torch.Generator(self.sequences.device).manual_seed(seed)


def refuse_empty(num_samples: int, where: str) -> None:
    """Refuse histories that are all too short to learn anything from."""
    if not num_samples:
        raise DataError(
            f"{where}: nothing to train on. Expected histories with two actions or more before the validation items, "
            "found none. Prepare a log with longer histories, for example with `min_user_actions=5`."
        )


def pack(
    sequences: Items,
    samples: SequenceSamples,
    shape: BatchShape,
    rule: TargetRule,
    generator: torch.Generator,
) -> Tensor:
    """Place K batches of samples [K, B], choose their targets, and return int32 [K, shape.width].

    A sample that would not fit any more is left out; the smallest stand last, so one of those.
    """
    fits = (samples.length.cumsum(1) < shape.tokens) & (samples.num_targets.cumsum(1) <= shape.rows)
    lengths = _fill(samples.length * fits, shape.tokens, shape.max_length, shape.dead)
    num_targets = _fill(samples.num_targets * fits, shape.rows, shape.max_rows, shape.dead)
    bounds, row_bounds = (F.pad(sizes.cumsum(1), (1, 0)) for sizes in (lengths, num_targets))
    # Of each token there are many numbers, and they are what a GPU's memory holds most of.
    lengths, num_targets, bounds, row_bounds = (
        each.int() for each in (lengths, num_targets, bounds, row_bounds)
    )
    numbers = torch.arange(lengths.numel(), dtype=torch.int32, device=lengths.device)
    sequence = torch.repeat_interleave(numbers, lengths.flatten(), output_size=len(lengths) * shape.tokens)
    sequence = sequence.view(len(lengths), shape.tokens)
    offset = (
        torch.arange(shape.tokens, dtype=torch.int32, device=lengths.device)
        - bounds[:, :-1].flatten()[sequence]
    )
    is_alive = sequence % lengths.shape[1] < shape.samples
    source = torch.where(is_alive, F.pad(samples.begin, (0, shape.dead)).flatten()[sequence] + offset, 0)
    if isinstance(sequences, Excerpt):
        shift = F.pad(sequences.shift(samples.begin), (0, shape.dead)).flatten()[sequence]
        at_hand, place = sequences.items, torch.where(is_alive, source + shift, 0)
    else:
        at_hand, place = sequences, source
    placed = PlacedTokens(
        items=torch.where(is_alive, at_hand[place], PADDING),
        source=source,
        at_hand=at_hand,
        place=place,
        is_alive=is_alive,
        sequence=sequence,
        offset=offset,
        to_end=lengths.flatten()[sequence] - offset,
        num_targets=torch.where(is_alive, num_targets.flatten()[sequence], 0),
        last_only=F.pad(samples.last_only, (0, shape.dead)).flatten()[sequence],
        first_row=row_bounds[:, :-1].flatten()[sequence],
        num_rows=shape.rows,
    )
    chosen = rule.choose(placed, generator)
    positions = shape.max_length - placed.to_end
    # In the order of `BatchShape.fields`.
    parts = [chosen.tokens, positions, bounds, chosen.rows, row_bounds, chosen.targets, chosen.negatives]
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
