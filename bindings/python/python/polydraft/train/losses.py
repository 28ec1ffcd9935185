"""Losses: likeness to the target first, then acceptance.

With p the target's distribution on the head's vocabulary, not renormalised, and q the head's own:
1. `divergence`: sum p' log(p' / q), p' = p / sum p. Its gradient is nonzero wherever q differs, which suits an untrained head.
2. `rejection` of K i.i.d. drafts under the optimal rule: the maximum over sets S of tokens of Z(S)^K - P(S), where Z and P are
   the probabilities of S under q and p (Sun et al. 2023 for the bound, attained by the priority coupling). A head too small to
   match its target everywhere learns to match it where that increases acceptance.

The derivative of 2 is that of Z(S)^K at the best S, by the envelope theorem: with softmax K Z^(K-1) q (1[S] - Z). The best S
contains the tokens with the smallest p / q: for one draft those with p < q, otherwise found by sorting.

The output matrix is not trained. So gradients are computed together with the logits, some rows at a time, and no logits are
stored: a vocabulary of 16,384 would take 64 kB of memory for each token and step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A loss computes the gradient with respect to the logits from p and q, `[rows, vocabulary]`, in place of q.
Loss = Callable[[Tensor, Tensor], Tensor]

# Rows of a matrix product and of an elementwise block. On a CPU a block should fit a core's cache (V = 8,192: 2 MB in f32 for
# 16 rows of four buffers); a GPU should be fully occupied.
ROWS = {"cpu": (512, 16)}
DEFAULT_ROWS = (8192, 8192)
# Weight of each step of a draft relative to the previous one, about the probability of reaching it.
DECAY = 0.8


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return torch.sub(q, p * (1 / p.sum(1, keepdim=True).clamp_min(1e-20)), out=q)


def rejection(drafts: int) -> Loss:
    def one(p: Tensor, q: Tensor) -> Tensor:
        within = (p < q).to(q.dtype)
        z = (within * q).sum(1, keepdim=True)
        return q.mul_(within.sub_(z))

    def several(p: Tensor, q: Tensor) -> Tensor:
        within, z, _ = worst_set(p, q, drafts)
        return q.mul_((within - z) * (drafts * z ** (drafts - 1)))

    return one if drafts == 1 else several


def worst_set(p: Tensor, q: Tensor, drafts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for each row the set with the highest rejection: its indicator, Z, and Z^K - P."""
    order = (p / q.clamp_min(1e-30)).argsort(1)
    z, mass = q.gather(1, order).double().cumsum(1), p.gather(1, order).double().cumsum(1)
    value, end = (z**drafts - mass).max(1, keepdim=True)
    within = torch.zeros_like(q).scatter_(1, order, (torch.arange(q.shape[1], device=q.device) <= end).to(q.dtype))
    return within, z.gather(1, end).to(q.dtype), value.clamp_min(0)


def acceptance(p: Tensor, q: Tensor, drafts: int = 1) -> Tensor:
    """Returns each row's acceptance probability of `drafts` i.i.d. drafts under the optimal rule."""
    if drafts == 1:
        # q sums to 1 on these tokens.
        return torch.minimum(p, q).sum(1)
    return 1 - worst_set(p, q, drafts)[2][:, 0]


@dataclass
class Output:
    """The target's output matrix on the head's vocabulary, and the scale and softcap of the target's logits."""

    tokens: Tensor
    matrix: Tensor
    scale: float = 1.0
    softcap: float | None = None

    def target(self, logits: Tensor, log_sums: Tensor) -> Tensor:
        """Computes the target's distribution, not renormalised, from products with its normed states."""
        logits = logits.float()
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits.sub_(log_sums[:, None]).clamp_(max=0).exp_()


@dataclass
class Figures:
    """Sums over rows for each step of the draft."""

    rows: float = 0
    accepted: list[float] = field(default_factory=list)
    agreed: list[float] = field(default_factory=list)

    def means(self) -> dict[str, list[float]]:
        """Returns the acceptance of each step at temperatures 1 and 0."""
        rows = max(self.rows, 1)
        return {"acceptance": [x / rows for x in self.accepted], "greedy": [x / rows for x in self.agreed]}


class UnrolledLoss(torch.autograd.Function):
    """Loss of all steps, summed over rows. Computes only its gradient, and figures if requested."""

    @staticmethod
    def forward(
        ctx: Any, output: Output, last: Tensor, log_sums: Tensor, loss: Loss | None, figures: Figures | None, *normed: Tensor
    ) -> Tensor:
        dtype, matrix = output.matrix.dtype, output.matrix
        inputs = [last, *(step.to(dtype) for step in normed)]
        gradients = [torch.empty_like(step, dtype=dtype) for step in normed]
        if figures is not None and not figures.accepted:
            figures.accepted, figures.agreed = [0.0] * len(normed), [0.0] * len(normed)
        most, least = ROWS.get(last.device.type, DEFAULT_ROWS)
        products = matrix.new_empty(len(inputs), min(most, len(last)), len(matrix))
        for begin in range(0, len(last), most):
            some = slice(begin, min(begin + most, len(last)))
            made = products[:, : some.stop - begin]
            for states, out in zip(inputs, made):
                torch.mm(states[some], matrix.T, out=out)
            sums = log_sums[some]
            for start in range(0, len(sums), least):
                rows = slice(start, start + least)
                p = output.target(made[0, rows], sums[rows])
                if figures is not None:
                    figures.rows += len(p)
                    likeliest = p.argmax(1)
                for step in range(len(normed)):
                    logits = made[1 + step, rows]
                    q = logits.float().softmax(1)
                    if figures is not None:
                        figures.accepted[step] += acceptance(p, q).sum().item()
                        figures.agreed[step] += (q.argmax(1) == likeliest).sum().item()
                    if loss is not None:
                        logits.copy_(loss(p, q))
            if loss is not None:
                for step, gradient in enumerate(gradients):
                    gradient[some] = made[1 + step] @ matrix * DECAY**step
        ctx.gradients = gradients
        return last.new_zeros((), dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, None, None, *(gradient.float() * grad for gradient in ctx.gradients))


def add_figures(output: Output, last: Tensor, log_sums: Tensor, normed: list[Tensor], figures: Figures) -> None:
    """Adds to the figures without computing a gradient."""
    UnrolledLoss.apply(output, last, log_sums, None, figures, *normed)
