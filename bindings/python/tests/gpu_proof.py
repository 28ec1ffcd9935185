"""Emitted distribution of `polydraft.gpu`'s verifiers, by enumeration and exact integration.

Every tuple of drafts is a sequence of a batch, once for each possible path and length (`forced`),
so one call returns all inputs: the distributions of priorities, the acceptance probabilities of
coins, and the residual at every possible stop. The uniforms are integrated out exactly: priorities
are piecewise uniform, so the probability that one is the highest is the integral of a polynomial;
coins are independent; and the last token has the distribution of the residual, which with blocks
of one token is one number for each token.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.util
import itertools
import math
import pathlib
import sys

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parents[1] / "python" / "polydraft" / "gpu"


def load():
    """Loads `polydraft.gpu` under another name, to test that it does not need the compiled library."""
    if "polydraft_gpu" not in sys.modules:
        place = FOLDER / "__init__.py"
        spec = importlib.util.spec_from_file_location(
            "polydraft_gpu", place, submodule_search_locations=[str(FOLDER)])
        module = importlib.util.module_from_spec(spec)
        sys.modules["polydraft_gpu"] = module
        spec.loader.exec_module(module)
    return sys.modules["polydraft_gpu"]


@contextlib.contextmanager
def working_with(name: str):
    """Selects the backend for tensors on a CPU: `triton` (interpreted) or `plain`."""
    load()
    import polydraft_gpu.backend as backend
    import polydraft_gpu.plain as plain

    module = plain
    if name == "triton":
        import polydraft_gpu.kernels.launch as module
    before, backend.of = backend.of, lambda tensor: module
    try:
        yield
    finally:
        backend.of = before


class Tables:
    """Logits of target and draft after every prefix."""

    def __init__(self, vocabulary: int, length: int, make) -> None:
        self.vocabulary, self.length = vocabulary, length
        self.target, self.draft = {}, {}
        for n in range(length + 1):
            for prefix in itertools.product(range(vocabulary), repeat=n):
                self.target[prefix], self.draft[prefix] = make(prefix)

    def rows(self, tuples, many, sampling, draft_sampling):
        """Builds `Rows` `[B, K, L, V]` and `[B, 1 + K·L, V]`, with each tuple of K paths `many` times.

        Rows of a prefix that an earlier path has must not be read, so they are NaN.
        """
        gpu = load()
        count, length = len(tuples[0]), self.length
        of_draft, of_target = [], []
        for paths in tuples:
            firsts = [()]
            for k, i in itertools.product(range(count), range(1, length + 1)):
                seen = any(paths[j][:i] == paths[k][:i] for j in range(k))
                firsts.append(None if seen else paths[k][:i])
            of_target += [firsts] * many
            of_draft += [[path[:i] for path in paths for i in range(length)]] * many

        def gathered(table, wanted, shape, how):
            places = {prefix: i for i, prefix in enumerate(table)} | {None: len(table)}
            logits = np.array([*table.values(), np.full(self.vocabulary, np.nan)], np.float32)
            made = gpu.distributions(torch.tensor(logits), how, block=1)
            index = torch.tensor([[places[prefix] for prefix in one] for one in wanted]).flatten()
            fields = {name: value[index] for name, value in vars(made).items()
                      if isinstance(value, torch.Tensor)}
            return dataclasses.replace(made, shape=torch.Size(shape), **fields)

        draft = gathered(self.draft, of_draft, (len(of_draft), count, length), draft_sampling)
        target = gathered(self.target, of_target, (len(of_target), 1 + count * length), sampling)
        return draft, target


def random_tables(vocabulary: int, length: int, kind: str, seed: int) -> Tables:
    """Makes tables of a kind: random, peaked, near, equal, zeros, ties, disjoint, one-hot."""
    rng = np.random.default_rng(seed)

    def make(prefix):
        target = rng.normal(size=vocabulary) * (4 if kind == "peaked" else 1.5)
        draft = rng.normal(size=vocabulary) * (4 if kind == "peaked" else 1.5)
        if kind == "near":
            draft = target + 0.2 * draft
        elif kind == "equal":
            draft = target.copy()
        elif kind == "ties":
            target, draft = np.round(target), np.round(draft)
        elif kind == "zeros":
            target[rng.integers(vocabulary)] = draft[rng.integers(vocabulary)] = -np.inf
        elif kind == "disjoint":
            half = vocabulary // 2
            target[half:], draft[:half] = -np.inf, -np.inf
        elif kind == "one-hot":
            target[:] = -np.inf
            target[rng.integers(vocabulary)] = 1.0
        return target.astype(np.float32), draft.astype(np.float32)

    return Tables(vocabulary, length, make)


def win_chances(weights: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Returns the probability of each of n priorities to be the highest, `[n]`.

    `weights`, `[n, segments]`, are over the same ascending segments; empty ones have width 0.
    """
    n = len(weights)
    assert np.allclose(weights.sum(1), 1.0, atol=1e-9) and (weights[:, widths <= 0] < 1e-12).all()
    below = np.cumsum(weights, 1) - weights
    points, factors = np.polynomial.legendre.leggauss(n // 2 + 1)
    wins = np.zeros(n)
    for point, factor in zip((points + 1) / 2, factors / 2):
        upto = below + point * weights
        for j in range(n):
            wins[j] += factor * (weights[j] * np.prod(np.delete(upto, j, 0), 0)).sum()
    return wins


class Case:
    """All possible decisions for one tuple of drafts."""

    def __init__(self, method, paths, trace, rows, length) -> None:
        self.method, self.paths, self.trace = method, paths, trace
        self.rows, self.length = rows, length

    def outcomes(self):
        """Yields (probability, path, accepted length) of all possible decisions."""
        if self.method in ("block", "nested-priority"):
            first = next(iter(self.rows.values()))
            wins = np.ones(1)
            if self.method == "nested-priority":
                shares = self.trace.shares[first].numpy()
                wins = win_chances(shares, np.ones(shares.shape[1]))
            for path, win in enumerate(wins):
                chances = self.trace.chances[self.rows[path, 0]].numpy()
                rest = win
                for n in range(self.length, 0, -1):
                    yield rest * chances[n - 1], path, n
                    rest *= 1.0 - chances[n - 1]
                yield rest, path, 0
        else:
            yield from self.walk(1.0, list(range(len(self.paths))), 0)

    def walk(self, chance, alive, level):
        """Yields the same for a walk that reached `level` with the paths `alive`."""
        row = self.rows[0, 0]
        if level == self.length:
            yield chance, alive[0], level
            return
        rest = chance
        for path, selected, accept in self.selections(row, alive, level):
            token = self.paths[path][level]
            taken = chance * selected * accept
            rest -= taken
            if taken > 0.0:
                on = [k for k in alive if self.paths[k][level] == token]
                yield from self.walk(taken, on, level + 1)
        yield rest, alive[0], level

    def selections(self, row, alive, level):
        """Yields (path, probability of its selection, probability of its acceptance if selected)."""
        ratios = self.trace.ratios[row].numpy()
        if self.method in ("specinfer", "spectr"):
            left = 1.0
            for path in alive:
                yield path, left * ratios[path, level], 1.0
                left *= 1.0 - ratios[path, level]
            return
        accepts = self.trace.accepts[row].numpy()
        if len(alive) == 1:
            yield alive[0], 1.0, accepts[alive[0], level]
            return
        holds = self.trace.holds[row].numpy()[alive, level]
        ends = self.trace.ends[row].numpy()[alive[0], level]
        for path, win in zip(alive, win_chances(holds, np.diff(ends, prepend=0.0))):
            yield path, win, accepts[path, level]


def emitted(method: str, tables: Tables, paths: int, sampling=None, draft_sampling=None,
            unordered=False, **options):
    """Returns the distribution of the next L + 1 tokens, `[V] * (L + 1)`, the target's, and the mean
    length. Emitted tokens are extended to L + 1 tokens by the target.
    """
    gpu = load()
    vocabulary, length = tables.vocabulary, tables.length

    def probabilities(table, how):
        prefixes = list(table)
        rows = gpu.distributions(torch.tensor(np.array([table[x] for x in prefixes])), how, block=1)
        return dict(zip(prefixes, rows.probabilities().numpy()))

    p = probabilities(tables.target, sampling)
    q = probabilities(tables.draft, sampling if draft_sampling is None else draft_sampling)
    words = list(itertools.product(range(vocabulary), repeat=length))
    word_q = {w: math.prod(q[w[:i]][w[i]] for i in range(length)) for w in words}
    words = [w for w in words if word_q[w] > 0.0]
    tuples = list(itertools.product(words, repeat=paths))
    times = dict.fromkeys(tuples, 1)
    if unordered:
        # Paths are exchangeable, so each multiset is tested once.
        times = collections.Counter(tuple(sorted(drafts)) for drafts in tuples)
        tuples = list(times)
    forced = list(itertools.product(range(paths), range(length + 1)))
    many = len(forced)
    rows, of_target = tables.rows(tuples, many, sampling, draft_sampling or sampling)
    tokens = torch.tensor(np.array(tuples)).reshape(-1, paths, length)
    needed = gpu.uniforms_needed(method, paths, length)
    uniforms = torch.full((len(tuples) * many, needed), 0.5, dtype=torch.float64)
    requested = torch.tensor(forced).repeat(len(tuples), 1)
    found = gpu.verify(method, tokens.repeat_interleave(many, 0), rows, of_target, uniforms,
                       trace=True, forced=requested, **options)
    assert not found.status.any(), found.status.unique()
    result = np.zeros((vocabulary,) * (length + 1))
    mean = 0.0
    for number, drafts in enumerate(tuples):
        weight = times[drafts] * math.prod(word_q[w] for w in drafts)
        at = {how: number * many + i for i, how in enumerate(forced)}
        case = Case(method, drafts, found.trace, at, length)
        total = 0.0
        for chance, path, n in case.outcomes():
            total += chance
            mean += weight * chance * (n + 1)
            prefix = drafts[path][:n]
            if chance == 0.0:
                continue
            last = p[prefix]
            if n < length:
                left = found.trace.left[at[path, n]].numpy()
                left = left[n if len(left) > 1 else 0][:vocabulary]
                last = left / left.sum() if left.sum() > 0.0 else last
            for token in range(vocabulary):
                spread(result, p, prefix + (token,), weight * chance * last[token])
        assert abs(total - 1.0) < 1e-9, total
    wanted = np.zeros_like(result)
    spread(wanted, p, (), 1.0)
    return result, wanted, mean


def spread(result, p, prefix, mass) -> None:
    """Adds mass at a prefix, extended by the target's distribution."""
    if mass == 0.0:
        return
    if len(prefix) == result.ndim:
        result[prefix] += mass
        return
    for token in range(result.shape[0]):
        spread(result, p, prefix + (token,), mass * p[prefix][token])
