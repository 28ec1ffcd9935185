"""Training steps: gradients of samples, parameter updates, validation, and checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .forms import new
from .losses import Figures, Loss, Output, UnrolledLoss, add_figures, divergence, rejection
from .text import Batch, Folder

# Muon's updates have a root mean square of a fifth of its rate; this factor makes it the plan's rate.
RMS = 5


@dataclass(frozen=True)
class Plan:
    """Training plan of a head."""

    # Total number of training tokens, counting repetitions.
    tokens: float
    vocabulary: int = 16384
    steps: int = 4
    drafts: int = 1
    # Fraction of the training with the likeness loss, before the acceptance loss.
    likeness: float = 0.6
    rate: float = 0.002
    # Fraction at the end during which the rate decays to zero.
    decay: float = 0.3
    # Samples of a step, and of each of its passes: samples of similar length, in buffers that fit the cache.
    batch: int = 8
    pass_samples: int = 4
    # Decoder layers of the head.
    layers: int = 1
    # Value of `--form`.
    form: str = "eagle3"


class Learner:
    """A head and the state of its training."""

    def __init__(self, folder: Folder, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
        self.folder, self.plan, self.device, self.dtype = folder, plan, device, dtype
        embedding = folder.matrix("embedding")
        assert embedding is not None
        self.embedding = embedding.to(device)
        made = new(plan.form, folder.model, plan.layers, plan.steps, dtype, embedding, folder.matrix("norm"))
        self.head = made.to(device)
        norms = [x for x in self.head.parameters() if x.dim() == 1]
        products = [x for x in self.head.parameters() if x.dim() > 1]
        self.optimizers = [
            torch.optim.Muon(products, lr=plan.rate * RMS, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(norms, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.steps, self.tokens = 0, 0
        # Number of times that each sample was used.
        self.visits: list[int] = []
        self.set_vocabulary(folder.frequent(plan.vocabulary)[0])

    def set_vocabulary(self, tokens: Tensor) -> None:
        """Sets the tokens that the head can draft. They may change during training, because their rows are the target's."""
        model = self.folder.model
        matrix = self.folder.matrix("embedding" if model["tied"] else "output")
        assert matrix is not None
        rows = matrix[tokens].to(self.device, self.dtype)
        self.output = Output(tokens, rows, model["logit_scale"], model["logit_softcap"])

    def stage(self) -> str:
        """Returns the current loss: likeness, then acceptance."""
        return "likeness" if self.tokens < self.plan.likeness * self.plan.tokens else "acceptance"

    def loss(self) -> Loss:
        return divergence if self.stage() == "likeness" else rejection(self.plan.drafts)

    def rate(self) -> float:
        """Returns the learning rate: warm-up, plateau, linear decay to zero. The plateau allows extending a run."""
        left = 1 - self.tokens / max(self.plan.tokens, 1)
        warm = (self.steps + 1) / 30
        return self.plan.rate * min(max(left / self.plan.decay, 0.0), 1.0) * min(warm, 1.0)

    def choose(self) -> list[int]:
        """Chooses the samples of the next step among those used least often, at random, seeded by the step's number."""
        self.visits += [0] * (len(self.folder.samples) - len(self.visits))
        held_out = set(self.folder.held_out())
        candidates = [i for i in range(len(self.visits)) if i not in held_out]
        keys = torch.rand(len(self.visits), generator=torch.Generator().manual_seed(self.steps)).tolist()
        chosen = sorted(candidates, key=lambda i: (self.visits[i], keys[i]))[: self.plan.batch]
        for sample in chosen:
            self.visits[sample] += 1
        return sorted(chosen, key=lambda i: self.folder.samples[i].length)

    def step(self, figures: Figures | None = None) -> int:
        """Takes one step along the mean gradient of a batch of samples. Returns its number of tokens."""
        samples, loss = self.choose(), self.loss()
        passes = [samples[i : i + self.plan.pass_samples] for i in range(0, len(samples), self.plan.pass_samples)]
        rows = count = 0
        for part in passes:
            batch = self.folder.batch(part, self.device, self.dtype)
            self.accumulate(batch, loss, figures)
            rows, count = rows + len(batch.taught), count + batch.count
        self.update(rows, count)
        return count

    def accumulate(self, batch: Batch, loss: Loss, figures: Figures | None = None) -> None:
        """Adds the gradient of a batch, summed over its rows."""
        if len(batch.taught):
            UnrolledLoss.apply(self.output, *self.learned(batch), loss, figures, *self.drafted(batch)).backward()

    def update(self, rows: int, count: int) -> None:
        """Updates the parameters from the mean gradient of `rows` rows, of samples with `count` tokens."""
        for parameter in self.head.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(rows, 1)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 0.5)
        for optimizer, factor in zip(self.optimizers, (RMS, 1)):
            for group in optimizer.param_groups:
                group["lr"] = self.rate() * factor
            optimizer.step()
            optimizer.zero_grad()
        self.steps, self.tokens = self.steps + 1, self.tokens + count

    def learned(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the target's states before the trained tokens, and their log sums."""
        return batch.last.flatten(0, 1)[batch.taught - 1], batch.log_sums

    def drafted(self, batch: Batch) -> list[Tensor]:
        """Returns the head's states that draft these tokens, for each step. Step t drafts token j at position j - 2 - t, or
        at the beginning of the sample if that is negative."""
        found = self.head.unroll(batch.states, self.embedding[batch.tokens], self.plan.steps)
        length = batch.tokens.shape[1]
        within, start = batch.taught % length, batch.taught // length * length
        return [state.flatten(0, 1)[start + (within - 2 - t).clamp_min(0)] for t, state in enumerate(found)]

    @torch.no_grad()
    def check(self) -> Figures:
        """Returns the figures of the held-out samples."""
        figures, samples = Figures(), self.folder.held_out()
        for begin in range(0, len(samples), self.plan.pass_samples):
            batch = self.folder.batch(samples[begin : begin + self.plan.pass_samples], self.device, self.dtype)
            if len(batch.taught):
                add_figures(self.output, *self.learned(batch), self.drafted(batch), figures)
        return figures

    def save(self, path: Path) -> None:
        """Writes a checkpoint atomically."""
        state: dict[str, Any] = {"head": self.head.state_dict(), "visits": self.visits}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        partial = path.with_suffix(".partial")
        torch.save({**state, "steps": self.steps, "tokens": self.tokens}, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.head.load_state_dict(state["head"])
        for optimizer, stored in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(stored)
        self.visits, self.steps, self.tokens = state["visits"], state["steps"], state["tokens"]
