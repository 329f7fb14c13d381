"""AdamW (Loshchilov and Hutter, 2019) with clipped gradients, in one pass over everything that is learned."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bert4rec.kernels.support import can_run, narrow_address
from bert4rec.kernels.used_rows import LentRows, forget_rows, lent_rows

Norm = Callable[[list[Tensor]], Tensor]
"""How long the gradients of these parameters are together."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
MOMENTS = "exp_avg", "exp_avg_sq"
ALIGNMENT = 16
"""Bytes at whose multiples the kernels expect tensors to begin."""


class ClippedAdamW:
    """Scales gradients down to `clip_norm`, all of them together, where they are longer.

    Matrices and tables decay, biases and norms do not. The learning rate is read from `rate`. The state of a parameter
    is that of `torch.optim.AdamW`, which would do the same; but its first use imports a compiler, which takes seconds.
    With a `norm` of its own, where parameters are parts of larger ones, kernels are left alone.

    Of a table whose rows were lent (`used_rows`), only these are updated, and so are their moments: a row that a step
    does not use keeps its content and its moments, and does not decay. The number of steps is one for all rows. That is
    the rule of `torch.optim.SparseAdam` and TensorFlow's LazyAdam.
    """

    def __init__(
        self,
        model: nn.Module,
        rate: Tensor,
        *,
        weight_decay: float,
        clip_norm: float,
        norm: Norm | None = None,
    ) -> None:
        self.parameters: list[Tensor] = list(model.parameters())
        self.state: dict[Tensor, dict[str, Tensor]] = {each: {} for each in self.parameters}
        self._rate, self._weight_decay, self._clip_norm = rate, weight_decay, clip_norm
        self._kernels, self._norm = _Kernels(rate), norm

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
            forget_rows(parameter)

    @torch.no_grad()
    def step(self) -> None:
        learned = self._learned()
        lent = {table: rows for table in self.parameters if (rows := lent_rows(table))}
        for parameter in self.parameters:
            if parameter.grad is not None or parameter in lent:
                self._begin(parameter)
        for table, some in lent.items():
            self.state[some.rows] = self._lend_state(table, some)
        if self.has_kernels:
            self._step_by_kernels(learned)
        elif learned:
            self._step_by_torch(learned)
        for table, some in lent.items():
            self._put_back(table, some)

    def step_was_recorded(self) -> None:
        """Call it before a recorded step is replayed: that step finds its gradients elsewhere than those before it.

        To copy where they are is not recorded, because every replay would do it again.
        """
        self._kernels.bring_addresses()

    @property
    def has_kernels(self) -> bool:
        """Whether kernels can update all that has gradients."""
        learned = self._learned()
        return (
            bool(learned)
            and self._norm is None
            and all(_suits(each) and _suits(each.grad) for each in learned)
        )

    def _learned(self) -> list[Tensor]:
        """All that has a gradient: parameters, and rows that were lent by one."""
        lent = [rows.rows for table in self.parameters if (rows := lent_rows(table))]
        return [each for each in self.parameters if each.grad is not None] + lent

    def _lend_state(self, table: Tensor, lent: LentRows) -> dict[str, Tensor]:
        state = self.state[table]
        return {"step": state["step"], **{key: lent.of(state[key]) for key in MOMENTS}}

    def _put_back(self, table: Tensor, lent: LentRows) -> None:
        state, of_rows = self.state[table], self.state.pop(lent.rows)
        state["step"] = of_rows["step"]
        lent.put_back(table, lent.rows)
        for key in MOMENTS:
            lent.put_back(state[key], of_rows[key])

    def decay(self, parameter: Tensor) -> float:
        """How much of itself it loses at each step, times the learning rate."""
        return self._weight_decay if parameter.dim() >= 2 else 0.0

    def _begin(self, parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state |= {key: torch.zeros_like(parameter) for key in MOMENTS}

    def _step_by_torch(self, learned: list[Tensor]) -> None:
        length = (self._norm or gradient_norm)(learned)
        # torch divides by it on its way, so that nothing is clipped in a pass of its own.
        scale = (length.float() / self._clip_norm).clamp(min=1)
        torch._foreach_add_([self.state[each]["step"] for each in learned], 1)
        for decay, dtype in {(self.decay(each), each.dtype) for each in learned}:
            some = [each for each in learned if (self.decay(each), each.dtype) == (decay, dtype)]
            states = [self.state[each] for each in some]
            torch._fused_adamw_(
                some,
                [each.grad for each in some if each.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                lr=self._rate,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
            )
        # For whoever holds copies of them: torch does not tell.
        torch.autograd.graph.increment_version(learned)

    def _step_by_kernels(self, learned: list[Tensor]) -> None:
        from bert4rec.kernels.gpu import adamw_triton as kernels

        # The number of steps is one for all.
        steps = self.state[learned[0]]["step"]
        for parameter in learned:
            self.state[parameter]["step"] = steps
        gradients = [_aligned(each.grad) for each in learned if each.grad is not None]
        lines = [
            [
                parameter.data_ptr(),
                gradient.data_ptr(),
                self.state[parameter]["exp_avg"].data_ptr(),
                self.state[parameter]["exp_avg_sq"].data_ptr(),
                narrow_address(parameter),
                parameter.numel(),
                int(self.decay(parameter) > 0),
            ]
            for parameter, gradient in zip(learned, gradients, strict=True)
        ]
        kernels.update(
            self._kernels.addresses(lines),
            *self._kernels.room([parameter.numel() for parameter in learned], kernels.CHUNK),
            steps,
            self._rate,
            clip_norm=self._clip_norm,
            moment_rates=(-math.log(BETAS[0]), -math.log(BETAS[1])),
            moment_shares=(1 - BETAS[0], 1 - BETAS[1]),
            epsilon=EPSILON,
            decay=self._weight_decay,
        )
        # Copies in bfloat16 were renewed.
        torch.autograd.graph.increment_version([each for each in learned if not narrow_address(each)])


def gradient_norm(learned: list[Tensor]) -> Tensor:
    """How long the gradients of these parameters are together."""
    length: Tensor = nn.utils.get_total_norm([each.grad for each in learned if each.grad is not None])
    return length


class _Kernels:
    """What the kernels need on the device, kept from step to step."""

    def __init__(self, rate: Tensor) -> None:
        self._device = rate.device
        self._lines: list[list[int]] = []
        self._addresses = torch.empty(0)
        self._sizes: list[int] = []
        self._room: tuple[Tensor, Tensor, Tensor] = (torch.empty(0),) * 3

    def addresses(self, lines: list[list[int]]) -> Tensor:
        """The lines on the device; where a step is being recorded, the place for them."""
        is_recorded = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if lines != self._lines:
            self._lines = lines
            if not is_recorded:
                self.bring_addresses()
        return self._addresses

    def bring_addresses(self) -> None:
        """Bring the newest lines to the device, to the same place as long as they are as many."""
        lines = torch.tensor(self._lines)
        if lines.shape == self._addresses.shape:
            self._addresses.copy_(lines)
        else:
            self._addresses = lines.to(self._device)

    def room(self, sizes: list[int], chunk: int) -> tuple[Tensor, Tensor, Tensor]:
        """All chunks of parameters of these sizes, as lines and beginnings; space for a sum each; for three factors."""
        if sizes != self._sizes:
            starts = [torch.arange(0, size, chunk) for size in sizes]
            chunks = torch.cat(
                [
                    torch.stack([torch.full_like(start, line), start], dim=1)
                    for line, start in enumerate(starts)
                ]
            )
            sums, factors = (torch.empty(size, device=self._device) for size in (len(chunks), 3))
            self._sizes, self._room = sizes, (chunks.to(self._device), sums, factors)
        return self._room


def _suits(x: Tensor | None) -> bool:
    return x is not None and can_run(x) and x.dtype == torch.float32 and x.is_contiguous()


def _aligned(gradient: Tensor) -> Tensor:
    return gradient if gradient.data_ptr() % ALIGNMENT == 0 else gradient.clone()
