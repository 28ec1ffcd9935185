"""Verification in plain PyTorch: see `kernels.paths`, `kernels.rejection`, `kernels.finish`."""

from __future__ import annotations

import torch

from . import plain_shares
from .methods import Method, Request, Trace, Verified
from .rows import blocks_of, wide


def pick(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverts the cumulative weights at `uniforms`; never returns an index of weight 0.

    `weights` is `[..., n]`; `uniforms` broadcasts with its leading dimensions.
    """
    upto = weights.cumsum(-1)
    wanted = (uniforms * upto[..., -1])[..., None]
    able = (weights > 0.0) & (upto > wanted)
    n = torch.arange(weights.shape[-1], device=weights.device)
    last = torch.where(weights > 0.0, n, torch.zeros_like(n)).amax(-1, keepdim=True)
    return torch.where(able, n, torch.maximum(last, torch.zeros_like(able, dtype=n.dtype))).amin(-1)


class Verification:
    """One call of `verify`."""

    def __init__(self, request: Request) -> None:
        self.request, self.method = request, request.method
        b, k, l = self.size = request.batch, request.paths, request.length
        dtype = wide(request.target.logits.device)
        self.uniforms = request.uniforms.to(dtype)
        tokens = self.tokens = request.tokens.long()
        vocabulary = request.target.vocabulary
        self.legal = (tokens >= 0) & (tokens < vocabulary)
        self.safe = tokens.clamp(0, vocabulary - 1)

        def dense(rows) -> torch.Tensor:
            w = rows.weights().nan_to_num(0.0, 0.0, 0.0).to(dtype)
            total = w.sum(-1, keepdim=True)
            return w / torch.where(total > 0.0, total, torch.ones_like(total))

        self.draft, self.target = dense(request.draft), dense(request.target)
        equal = (tokens[:, :, None] == tokens[:, None]).long().cumprod(-1).bool()
        # [B, K, K, L + 1]: whether two paths share their first l tokens.
        self.same = torch.cat([torch.ones_like(equal[..., :1]), equal], -1)
        self.count = self.same.sum(2)
        self.first = self.same.int().argmax(2)
        batch = torch.arange(b, device=tokens.device)[:, None, None]
        level = torch.arange(l + 1, device=tokens.device)
        inner = torch.where(level == 0, torch.zeros_like(level), self.first * l + level)
        self.target_rows = batch * (1 + k * l) + inner
        self.draft_rows = (batch * k * l + self.first * l + level)[..., :l]
        self.q = self.at_tokens(self.draft, self.draft_rows) * self.legal
        self.p = self.at_tokens(self.target, self.target_rows[..., :l]) * self.legal
        self.ratios = self.p / torch.where(self.q > 0.0, self.q, torch.ones_like(self.q))
        self.trace = Trace()
        self.coins = self.uniforms[:, self.method.coins(k, l):]

    def at_tokens(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Returns the probability of each drafted token in its row."""
        return rows[index.flatten(), self.safe.flatten()].view_as(self.safe)

    def status(self) -> torch.Tensor:
        """Returns each sequence's `Verified.status`."""
        l = self.size[2]
        wrong = self.request.target.status[self.target_rows].amax(-1)
        wrong = torch.maximum(wrong, self.request.draft.status[self.draft_rows].amax(-1))
        bad = self.request.draft.status[self.draft_rows] != 0
        bad = bad | (self.request.target.status[self.target_rows[..., :l]] != 0)
        bad = bad | (self.request.target.status[self.target_rows[..., 1:]] != 0)
        unlikely = ((self.q <= 0.0) & ~bad).any(-1)
        return ((wrong != 0).any(-1) | (unlikely.any(-1).int() * 2)).int() | (
            (wrong != 0).any(-1).int())

    def run(self) -> Verified:
        """Runs the verification."""
        b, k, l = self.size
        walks = self.method not in (Method.BLOCK, Method.NESTED_PRIORITY)
        prepare = {
            Method.TOKEN: self.token, Method.BLOCK: self.block,
            Method.WALK_PRIORITY: self.walk_priority, Method.NESTED_PRIORITY: self.nested,
            Method.SPECINFER: self.specinfer, Method.SPECTR: self.spectr,
        }
        path = prepare[self.method]()
        length = torch.zeros(b, dtype=torch.long, device=path.device)
        if walks:
            path, length = self.walk()
        if self.request.forced is not None:
            path = self.request.forced[:, 0].long()
            length = self.request.forced[:, 1].long()
        rows = torch.arange(b, device=path.device)
        if walks:
            level = length.clamp_max(l - 1)
            left = self.residual(path, level, torch.ones_like(self.q[:, 0, 0]))[:, None]
        else:
            weights, weight = [], torch.ones_like(self.q[:, 0, 0])
            for i in range(l):
                weights.append(weight)
                weight = (weight * self.ratios[rows, path, i]).clamp_max(1.0)
            weights.append(weight)
            levels = [torch.full_like(path, i) for i in range(l)]
            left = torch.stack([self.residual(path, i, w) for i, w in zip(levels, weights)], 1)
            chances = torch.zeros(b, l, dtype=left.dtype, device=left.device)
            decided = torch.zeros_like(length)
            for i in range(1, l + 1):
                w, chance = weights[i], weights[i]
                if i < l:
                    rest = left[:, i].sum(-1)
                    sure = (w <= 0.0) | (w >= 1.0)
                    chance = torch.where(sure, w, rest / torch.where(sure, w + 1, rest + 1 - w))
                chances[:, i - 1] = chance
                decided = torch.where(self.coins[:, i - 1] < chance, i, decided)
            self.trace.chances = chances
            if self.request.forced is None:
                length = decided
        at = torch.zeros_like(length) if walks else length.clamp_max(l - 1)
        over = left[rows, at] * (length < l)[:, None]
        leaf = self.target[self.target_rows[rows, path, length]]
        plain = over.sum(-1, keepdim=True) <= 0.0
        token = pick(torch.where(plain, leaf, over), self.coins[:, l])
        self.trace.left, self.trace.ratios = left, self.ratios
        if self.method.pooled:
            self.trace.gains, self.trace.tails = self.gains, self.tails
        return self.write(path, length, token)

    def write(self, path: torch.Tensor, length: torch.Tensor, token: torch.Tensor) -> Verified:
        """Returns the result, with rejected sequences marked."""
        b, _, l = self.size
        status = self.status()
        refused = status != 0
        none = torch.full_like(path, -1)
        rows = torch.arange(b, device=path.device)
        length = torch.where(refused, torch.zeros_like(length), length)
        token = torch.where(refused, none, token)
        at = torch.arange(l + 1, device=path.device)
        accepted = torch.cat([self.tokens[rows, path], none[:, None]], -1)
        tokens = torch.where(at < length[:, None], accepted, none[:, None])
        tokens = torch.where(at == length[:, None], token[:, None], tokens)
        path = torch.where(refused, none, path)
        trace = self.trace if self.request.trace else None
        if trace is not None:
            trace.left = blocks_of(trace.left, self.request.target.block)
        return Verified(path.int(), length.int(), token, tokens, status, trace)

    def walk(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Walks down the tree along the highest `self.order`, while coins accept."""
        b, k, l = self.size
        rows = torch.arange(b, device=self.tokens.device)
        alive = torch.ones_like(self.tokens[..., 0], dtype=torch.bool)
        path = torch.zeros_like(rows)
        length, going = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
        for i in range(l):
            order = self.order[..., i].masked_fill(~alive, -2.0)
            top = order == order.amax(-1, keepdim=True)
            best = top.int().argmax(-1)
            going = going & (self.coins[:, i] < self.accepts[rows, best, i])
            same = self.tokens[..., i] == self.tokens[rows, best, i][:, None]
            alive = torch.where(going[:, None], alive & same, alive)
            path = torch.where(going, best, path)
            length = length + going
        self.trace.accepts, self.trace.priorities = self.accepts, self.order
        return path, length

    def residual(
        self, path: torch.Tensor, level: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """Returns (weight · target - selection)+ at a node of each sequence, `[B, V]`."""
        rows = torch.arange(self.size[0], device=path.device)
        p = self.target[self.target_rows[rows, path, level]]
        q = self.draft[self.draft_rows[rows, path, level]]
        if self.method.pooled:
            node = (rows, path, level)
            r = plain_shares.pooled_ratio(p, q, self.tails[node])
            low, part = plain_shares.knot(r, self.request.knots)
            taken = q * plain_shares.gain_at(self.gains[node], low, part)
        elif self.method is Method.SPECTR:
            cover, rho = self.cover[rows, path, level], self.rho[rows, path, level]
            taken = cover[:, None] * torch.minimum(q, p / rho[:, None])
        elif self.method is Method.SPECINFER:
            taken = q * self.spent[rows, path, level][:, None]
        else:
            taken = q
        return (weight[:, None] * p - taken).clamp_min(0.0)

    # Preparation of each method. All return a path, which a walk replaces.

    def token(self) -> torch.Tensor:
        """Prepares single-draft speculative sampling, token by token."""
        self.accepts, self.order = self.ratios.clamp_max(1.0), torch.zeros_like(self.ratios)
        return self.block()

    def block(self) -> torch.Tensor:
        """Returns path 0."""
        return torch.zeros(self.size[0], dtype=torch.long, device=self.tokens.device)

    def pool(self, level: slice | int) -> tuple[torch.Tensor, ...]:
        """Returns lengths, the tail's ratio and drafted tokens' knots, at nodes of all paths."""
        p = self.target[self.target_rows[..., : self.size[2]][..., level]]
        q = self.draft[self.draft_rows[..., level]]
        r = plain_shares.pooled_ratio(p, q, None)
        rare = q < plain_shares.TAIL / q.shape[-1]
        tail = torch.where(rare, r, torch.zeros_like(r)).amax(-1)
        lengths = plain_shares.knot_lengths(q, r, self.request.knots)
        drafted_ratio = r.gather(-1, self.safe[..., level][..., None])
        low, part = plain_shares.knot(drafted_ratio, self.request.knots)
        return lengths, tail, low, part

    def walk_priority(self) -> torch.Tensor:
        """Prepares each path's priority and the selection at each node."""
        b, k, l = self.size
        lengths, self.tails, low, part = self.pool(slice(None))
        ends = plain_shares.last_is(lengths.cumsum(-1), 1.0)
        count = self.count[..., :l]
        ratios = plain_shares.knot_ratios(self.request.knots, lengths)
        mass = plain_shares.highest(ends, count)
        allotted, gains, _ = plain_shares.exchange(lengths, ratios, ends, mass)
        hold = plain_shares.holding(allotted, lengths, low[..., 0], part[..., 0])
        self.gains = torch.where(count[..., None] > 1, gains, torch.ones_like(gains))
        g = plain_shares.gain_at(self.gains, low, part)[..., 0]
        self.ratios = self.ratios / g.clamp_min(1e-300)
        self.accepts = self.ratios.clamp_max(1.0)
        shape = (b, k, l)
        u = self.uniforms[:, : k * l].view(shape)
        within = self.uniforms[:, k * l : 2 * k * l].view(shape)
        index = pick(hold, u)[..., None]
        length = lengths.gather(-1, index)[..., 0]
        self.order = ends.gather(-1, index)[..., 0] - length + within * length
        self.trace.holds, self.trace.ends = hold, ends
        return self.block()

    def nested(self) -> torch.Tensor:
        """Prepares each path's shares. Returns the path with the highest priority."""
        b, k, l = self.size
        cells, knots = self.request.cells, self.request.knots
        worth = plain_shares.cell_worth(cells, k, self.q)
        share = torch.full((b, k, cells), 1.0 / cells, dtype=worth.dtype, device=worth.device)
        weight = torch.ones_like(self.q[..., 0])
        ratios, gains, tails = [], [], []
        for i in range(l):
            lengths, tail, low, part = self.pool(i)
            ends = plain_shares.last_is(lengths.cumsum(-1), 1.0)
            mass = plain_shares.last_is(plain_shares.mass_below(ends, share, worth), 1.0)
            demand = plain_shares.knot_ratios(knots, lengths) * weight[..., None]
            allotted, gain, _ = plain_shares.exchange(lengths, demand, ends, mass)
            hold = plain_shares.holding(allotted, lengths, low[..., 0], part[..., 0])
            g = plain_shares.gain_at(gain, low, part)[..., 0]
            share = plain_shares.part_of_share(share, hold, lengths, ends)
            ratios.append(self.ratios[..., i] / g.clamp_min(1e-300))
            weight = (weight * ratios[-1]).clamp_max(1.0)
            gains.append(gain)
            tails.append(tail)
        self.ratios = torch.stack(ratios, -1)
        self.gains, self.tails = torch.stack(gains, 2), torch.stack(tails, -1)
        cell = pick(share, self.uniforms[:, :k])
        priorities = (cell + self.uniforms[:, k : 2 * k]) / cells
        self.trace.shares, self.trace.priorities = share, priorities
        top = priorities == priorities.amax(-1, keepdim=True)
        return top.int().argmax(-1)

    def rejections(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns SpecInfer's c and residual mass after 0 to K rejections, `[K + 1, B, K, L]`."""
        l = self.size[2]
        p, q = self.target[self.target_rows[..., :l]], self.draft[self.draft_rows]
        spent, masses = [torch.zeros_like(self.q)], [torch.ones_like(self.q)]
        for _ in range(self.size[1]):
            spent.append(spent[-1] + masses[-1])
            masses.append((p - spent[-1][..., None] * q).clamp_min(0.0).sum(-1))
        return torch.stack(spent), torch.stack(masses)

    def in_order(self, chances: torch.Tensor) -> torch.Tensor:
        """Prepares a walk that takes the first path whose coin accepts."""
        b, k, l = self.size
        accepted = self.uniforms[:, : k * l].view(b, k, l) < chances
        falling = (k - torch.arange(k, device=chances.device, dtype=chances.dtype))[None, :, None]
        self.order = torch.where(accepted, falling, torch.zeros_like(chances))
        self.accepts = accepted.to(chances.dtype)
        self.ratios = chances
        return self.block()

    def specinfer(self) -> torch.Tensor:
        """Prepares recursive rejection at each node."""
        b, k, l = self.size
        spent, masses = self.rejections()
        earlier = self.same[..., :l] & (
            torch.arange(k, device=spent.device)[None, :, None]
            > torch.arange(k, device=spent.device)[None, None]
        )[..., None]
        rank = earlier.sum(2)[None]
        c, mass = spent.gather(0, rank)[0], masses.gather(0, rank)[0]
        rest = (self.p - c * self.q).clamp_min(0.0)
        scale = mass * self.q
        chance = torch.where(scale > 0.0, plain_shares.over(rest, scale), torch.zeros_like(rest))
        chance = torch.where(mass > 0.0, chance, torch.ones_like(chance)).clamp_max(1.0)
        self.spent = spent.gather(0, self.count[None, ..., :l])[0]
        return self.in_order(chance)

    def spectr(self) -> torch.Tensor:
        """Prepares K-SEQ at each node, with the kernels' two passes over 32 values of rho."""
        l = self.size[2]
        p, q = self.target[self.target_rows[..., :l]], self.draft[self.draft_rows]
        n = self.count[..., :l].to(self.q.dtype)
        low, high = torch.ones_like(n), n.clone()
        beta = torch.ones_like(n)
        steps = torch.arange(32, device=n.device, dtype=n.dtype) / 31.0
        for _ in range(2):
            rho = low[..., None] + (high - low)[..., None] * steps
            covered = torch.stack(
                [torch.minimum(q, p / r[..., None]).sum(-1) for r in rho.unbind(-1)], -1)
            reached = 1.0 - (1.0 - covered.clamp_max(1.0)) ** n[..., None]
            good = reached <= rho * covered
            good[..., -1] = True
            best = good.int().argmax(-1, keepdim=True)
            low = rho.gather(-1, (best - 1).clamp_min(0))[..., 0]
            high = rho.gather(-1, best)[..., 0]
            beta = covered.gather(-1, best)[..., 0]
        single = self.count[..., :l] < 2
        self.rho = torch.where(single, torch.ones_like(n), high)
        cover = plain_shares.over(1.0 - (1.0 - beta.clamp_max(1.0)) ** n, beta)
        self.cover = torch.where(single, torch.ones_like(n), cover)
        scale = torch.where(self.q > 0.0, self.rho * self.q, torch.ones_like(self.q))
        return self.in_order((self.p / scale).clamp_max(1.0))
