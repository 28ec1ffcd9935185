"""All of `polydraft.gpu` in plain PyTorch, for devices without Triton and as a test oracle.

Problem, sources: see the kernels, which compute the same numbers up to rounding.
Deviations from the kernels: (1) full rows of probabilities are written; (2) filters sort; (3) sums
are in float64 (float32 on devices without it).
Cost: some twenty reads and writes of all rows.
"""

from __future__ import annotations

import torch

from . import plain_verify
from .methods import Request, Verified
from .rows import Rows, blocks_of, wide
from .sampling import Sampling

BLOCK = 4096


def distributions(
    logits: torch.Tensor, shape: torch.Size, sampling: Sampling, block: int | None
) -> Rows:
    """See `polydraft.gpu.distributions`."""
    count, vocabulary = logits.shape
    if block is None:
        block = min(BLOCK, 1 << (vocabulary - 1).bit_length())
    x = logits.float()
    bad = x.isnan() | (x == torch.inf)
    x = x.masked_fill(bad, -torch.inf)
    tops = x.amax(-1)
    empty = tops == -torch.inf
    tops = torch.where(empty, torch.zeros_like(tops), tops)
    # The lowest token among equal ones, which `argmax` does not guarantee.
    y = torch.arange(vocabulary, device=x.device, dtype=torch.int32)
    others = torch.full_like(y, vocabulary)
    arguments = torch.where(x == tops[:, None], y, others).amin(-1)
    arguments = torch.where(empty, torch.zeros_like(arguments), arguments)
    rates = sampling.rates(shape, logits.device)
    greedy = rates == 0.0
    rates = torch.where(greedy, torch.ones_like(rates), rates)
    cuts = torch.where(greedy, tops, torch.full_like(tops, -torch.inf))
    lasts = torch.where(greedy, arguments, torch.full_like(arguments, vocabulary))
    status = (bad.any(-1) | empty).to(torch.int32)
    made = Rows(logits, shape, tops, cuts, lasts, rates, tops, tops, arguments, status, block,
                sampling)
    if any(sampling.filters):
        narrow(made, x)
    weights = made.weights().nan_to_num(0.0, 0.0, 0.0).to(wide(x.device))
    totals = weights.sum(-1)
    made.totals = torch.where(totals > 0.0, totals, torch.ones_like(totals))
    made.masses = blocks_of(weights, block).float()
    return made


def narrow(made: Rows, x: torch.Tensor) -> None:
    """Applies the filters to cuts and lasts, in order."""
    top_k, top_p, min_p = made.sampling.filters
    vocabulary, shape, device = made.vocabulary, made.shape, x.device
    order = torch.sort(torch.where(x == 0.0, torch.zeros_like(x), x), dim=-1, descending=True,
                       stable=True).indices

    def keep(count: torch.Tensor, on: torch.Tensor) -> None:
        """Keeps the first `count` tokens of the order."""
        position = (count - 1).clamp(0, vocabulary - 1)[:, None]
        token = order.gather(-1, position)
        cut = x.gather(-1, token)[:, 0]
        last = token[:, 0].to(torch.int32)
        # Temperature 0 or an earlier filter may already keep fewer.
        last = torch.where(cut == made.cuts, torch.minimum(last, made.lasts), last)
        on = on & (cut >= made.cuts)
        made.cuts = torch.where(on, cut, made.cuts)
        made.lasts = torch.where(on, last, made.lasts)

    if top_k:
        k = made.sampling.setting("top_k", shape, device).long()
        keep(k, (k > 0) & (k <= vocabulary))
    if top_p:
        p = made.sampling.setting("top_p", shape, device)
        dtype = wide(device)
        weights = made.weights().nan_to_num(0.0, 0.0, 0.0).to(dtype)
        upto = weights.gather(-1, order).cumsum(-1)
        reached = upto >= (p.to(dtype) * weights.sum(-1))[:, None]
        count = torch.where(reached.any(-1), reached.int().argmax(-1) + 1,
                            torch.full_like(order[:, 0], vocabulary))
        keep(count, p < 1.0)
    if min_p:
        share = made.sampling.setting("min_p", shape, device)
        floor = made.tops + torch.log(share) / made.rates
        higher = floor > made.cuts
        made.cuts = torch.where(higher, floor, made.cuts)
        made.lasts = torch.where(higher, torch.full_like(made.lasts, vocabulary), made.lasts)


def draw(given: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    """See `polydraft.gpu.draw`; uniforms are `[rows, n]`."""
    dtype = wide(given.logits.device)
    weights = given.weights().nan_to_num(0.0, 0.0, 0.0).to(dtype)
    tokens = plain_verify.pick(weights[:, None], uniforms.to(dtype))
    return tokens.masked_fill((given.status != 0)[:, None], -1)


def verify(request: Request) -> Verified:
    """See `polydraft.gpu.verify`."""
    return plain_verify.Verification(request).run()
