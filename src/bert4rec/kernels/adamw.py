"""AdamW (Loshchilov and Hutter, 2019) with clipped gradients, in one pass over everything that is learned."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bert4rec.kernels.support import can_run, narrow_address
from bert4rec.kernels.used_rows import LentRows, Moments, forget_rows, lent_rows, when_lent

Norm = Callable[[list[Tensor]], Tensor]
"""How long the gradients of these parameters are together."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
MOMENTS = "exp_avg", "exp_avg_sq"
CURRENT = "current"
"""Of each row of a lent table: the step up to which it is updated."""
ROWS_AT_ONCE = 1 << 18
"""When all rows of a table are brought up to date."""
LASTING = 20
"""Steps after which a row without a gradient has nearly come to rest."""
ALIGNMENT = 16
"""Bytes at whose multiples the kernels expect tensors to begin."""


class ClippedAdamW:
    """Scales gradients down to `clip_norm`, all of them together, where they are longer.

    Matrices and tables decay, biases and norms do not. The learning rate is read from `rate`. The state of a parameter
    is that of `torch.optim.AdamW`, which would do the same; but its first use imports a compiler, which takes seconds.
    With a `norm` of its own, where parameters are parts of larger ones, kernels are left alone.

    Of a table whose rows were lent (`used_rows`), only these are updated, and so are their moments. What a row misses,
    steps with a gradient of 0, is made up for when it is lent again (`caught_up`), and of all rows by `catch_up`; for
    that, `plan_rates` must have told the learning rates of all steps. So a row that is seldom used goes as far as by
    `torch.optim.AdamW`. By the rule of SparseAdam and LazyAdam, which leave it where it is in between, one that is used
    every hundred steps would go a tenth as far.
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
        for parameter in self.parameters:
            when_lent(parameter, None)

    def plan_rates(self, rates: Tensor) -> None:
        """The learning rate of every step, the first one's first."""
        self._rates = rates
        kept = torch.log1p(-rates.cpu().double() * self._weight_decay).cumsum(0)
        self._log_kept = nn.functional.pad(kept, (1, 0)).to(rates)
        """How much of itself a row has kept after so many steps, as a logarithm."""

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
                self._begin(parameter, is_lent=parameter in lent)
            is_by_rows = CURRENT in self.state[parameter]
            assert parameter.grad is None or not is_by_rows, "a table is learned as a whole or by its rows"
        for table, some in lent.items():
            self.state[some.rows] = self._lend_state(table, some)
        if self.has_kernels:
            self._step_by_kernels(learned)
        elif learned:
            self._step_by_torch(learned)
        for table, some in lent.items():
            self._put_back(table, some)

    def go_on(self, parameter: Tensor, kept: dict[str, Tensor]) -> None:
        """Take up what was remembered of a parameter."""
        self.state[parameter] = kept
        when_lent(parameter, self._caught_up if CURRENT in kept else None)

    @torch.no_grad()
    def catch_up(self) -> None:
        """Bring all rows of all tables up to date."""
        for table, state in self.state.items():
            if CURRENT not in state:
                continue
            for start in range(0, len(table), ROWS_AT_ONCE):
                some = slice(start, start + ROWS_AT_ONCE)
                table[some], moments = self._caught_up(table, some, table.detach()[some])
                for key in MOMENTS:
                    state[key][some] = moments[key]
            state[CURRENT].copy_(state["step"])

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
        """All that has a gradient, in the order of the parameters, and rows that were lent by one in its place."""
        learned = list[Tensor]()
        for parameter in self.parameters:
            if parameter.grad is not None:
                learned.append(parameter)
            if lent := lent_rows(parameter):
                learned.append(lent.rows)
        return learned

    def _lend_state(self, table: Tensor, lent: LentRows) -> dict[str, Tensor]:
        state = self.state[table]
        moments = lent.moments or {key: state[key][lent.distinct.numbers] for key in MOMENTS}
        return {"step": state["step"], **moments}

    def _put_back(self, table: Tensor, lent: LentRows) -> None:
        state, of_rows = self.state[table], self.state.pop(lent.rows)
        state["step"] = of_rows["step"]
        lent.put_back(table, lent.rows)
        for key in MOMENTS:
            lent.put_back(state[key], of_rows[key])
        state[CURRENT][lent.distinct.numbers] = state["step"].to(state[CURRENT].dtype)

    def _caught_up(self, table: Tensor, numbers: Tensor | slice, rows: Tensor) -> tuple[Tensor, Moments]:
        state, decay, steps = self.state[table], self.decay(table), len(self._rates)
        moments = {key: state[key][numbers] for key in MOMENTS}
        step, done = state["step"].long(), state[CURRENT][numbers].long()
        middle = done + ((step - done).clamp(max=LASTING) - 1) // 2
        rate = self._rates[middle.clamp(0, steps - 1)]
        log_kept = self._log_kept[step.clamp(max=steps)] - self._log_kept[done.clamp(max=steps)]
        kept = log_kept.exp() if decay else torch.ones_like(log_kept)
        return caught_up(rows, moments, done, step - done, rate, kept, decay)

    def decay(self, parameter: Tensor) -> float:
        """How much of itself it loses at each step, times the learning rate."""
        return self._weight_decay if parameter.dim() >= 2 else 0.0

    def _begin(self, parameter: Tensor, *, is_lent: bool) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state |= {key: torch.zeros_like(parameter) for key in MOMENTS}
        if is_lent and CURRENT not in state:
            state[CURRENT] = state["step"].int().repeat(len(parameter))
            when_lent(parameter, self._caught_up)

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


def caught_up(
    rows: Tensor, moments: Moments, done: Tensor, missed: Tensor, rate: Tensor, kept: Tensor, decay: float
) -> tuple[Tensor, Moments]:
    """Rows [K, ...] and their moments after so many steps [K] behind the first `done`, in which their gradient was 0.

    The first moment falls from step to step, and the root of the second one more slowly, so the steps of a row are a
    geometric series, of which hardly anything is left after twenty. So the learning rate is taken from the middle of
    these, and what corrects the moments of a training that has just begun from the first of them. `kept` is how much
    of itself a row keeps in all of these steps.
    """
    like_rows = -1, *[1] * (rows.dim() - 1)
    done, missed, rate, kept = (each.view(like_rows) for each in (done, missed, rate, kept))
    first, second = (moments[key] for key in MOMENTS)
    ratio = BETAS[0] / BETAS[1] ** 0.5 / (1 - rate * decay)
    length = rate * ratio / (1 - ratio) * -torch.expm1(missed * ratio.log())
    of_first, of_second = (-torch.expm1((done + 1) * math.log(beta)) for beta in BETAS)
    direction = first / of_first / ((second / of_second).sqrt() + EPSILON)
    lasting = (torch.exp(missed * math.log(beta)) for beta in BETAS)
    lasted = {key: moments[key] * share for key, share in zip(MOMENTS, lasting, strict=True)}
    return (rows - length * direction) * kept, lasted


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
