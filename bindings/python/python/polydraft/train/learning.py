"""Steps of training: samples to gradients, gradients to parameters, where it stands, and checkpoints to go on from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .forms import new
from .losses import Figures, Loss, Output, Taught, divergence, look, rejection
from .text import Batch, Folder

# Muon's updates have a root mean square of a fifth of its rate: with this factor, of the plan's rate.
RMS = 5


@dataclass(frozen=True)
class Plan:
    """How a head learns."""

    # Tokens that will have been learned from at the end, each time counted.
    tokens: float
    vocabulary: int = 16384
    steps: int = 4
    drafts: int = 1
    # The part of the training that teaches likeness, before acceptance itself is taught.
    likeness: float = 0.6
    rate: float = 0.002
    # The part at the end over which the rate falls to zero.
    decay: float = 0.3
    # Samples in a step, and in each of its passes: samples of like length, in buffers that fit the cache.
    batch: int = 8
    pass_texts: int = 4
    # Decoder layers of the head.
    layers: int = 1
    # As `--form` says it.
    form: str = "eagle3"


class Learner:
    """A head with the state of its training."""

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
        # How often each text was learned from.
        self.visits: list[int] = []
        self.say(folder.frequent(plan.vocabulary)[0])

    def say(self, tokens: Tensor) -> None:
        """Which tokens the head can say. They can change while it learns: their rows are the target's."""
        model = self.folder.model
        matrix = self.folder.matrix("embedding" if model["tied"] else "output")
        assert matrix is not None
        rows = matrix[tokens].to(self.device, self.dtype)
        self.output = Output(tokens, rows, model["logit_scale"], model["logit_softcap"])

    def taught(self) -> str:
        """What is taught at this point: likeness, then acceptance."""
        return "likeness" if self.tokens < self.plan.likeness * self.plan.tokens else "acceptance"

    def loss(self) -> Loss:
        return divergence if self.taught() == "likeness" else rejection(self.plan.drafts)

    def rate(self) -> float:
        """Warm-up, a plateau, then a straight line to zero: the plateau lets a run be prolonged."""
        left = 1 - self.tokens / max(self.plan.tokens, 1)
        warm = (self.steps + 1) / 30
        return self.plan.rate * min(max(left / self.plan.decay, 0.0), 1.0) * min(warm, 1.0)

    def choose(self) -> list[int]:
        """The samples of the next step: of those learned least often, drawn by the step's number."""
        self.visits += [0] * (len(self.folder.places) - len(self.visits))
        kept = set(self.folder.held_out())
        open_ = [i for i in range(len(self.visits)) if i not in kept]
        keys = torch.rand(len(self.visits), generator=torch.Generator().manual_seed(self.steps)).tolist()
        chosen = sorted(open_, key=lambda i: (self.visits[i], keys[i]))[: self.plan.batch]
        for text in chosen:
            self.visits[text] += 1
        return sorted(chosen, key=lambda i: self.folder.places[i].length)

    def step(self, figures: Figures | None = None) -> int:
        """One step down the mean gradient of some samples; how many tokens they have."""
        sequences, loss = self.choose(), self.loss()
        passes = [sequences[i : i + self.plan.pass_texts] for i in range(0, len(sequences), self.plan.pass_texts)]
        rows = count = 0
        for part in passes:
            batch = self.folder.batch(part, self.device, self.dtype)
            self.climb(batch, loss, figures)
            rows, count = rows + len(batch.taught), count + batch.count
        self.descend(rows, count)
        return count

    def climb(self, batch: Batch, loss: Loss, figures: Figures | None = None) -> None:
        """Adds a batch's gradient, summed over its rows."""
        if len(batch.taught):
            Taught.apply(self.output, *self.learned(batch), loss, figures, *self.drafted(batch)).backward()

    def descend(self, rows: int, count: int) -> None:
        """A step down the mean gradient of so many rows, of samples with `count` tokens."""
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
        """The target's states before the tokens that are learned, and their log sums."""
        return batch.last.flatten(0, 1)[batch.taught - 1], batch.log_sums

    def drafted(self, batch: Batch) -> list[Tensor]:
        """The head's states that draft those tokens, of each step. Step t drafts token j at place j - 2 - t; what would lie
        before its text is drafted at its beginning, by a step that knows no better."""
        found = self.head.unroll(batch.states, self.embedding[batch.tokens], self.plan.steps)
        places = batch.tokens.shape[1]
        within, text = batch.taught % places, batch.taught // places * places
        return [state.flatten(0, 1)[text + (within - 2 - t).clamp_min(0)] for t, state in enumerate(found)]

    @torch.no_grad()
    def check(self) -> Figures:
        """Of the held-out samples."""
        figures, sequences = Figures(), self.folder.held_out()
        for begin in range(0, len(sequences), self.plan.pass_texts):
            batch = self.folder.batch(sequences[begin : begin + self.plan.pass_texts], self.device, self.dtype)
            if len(batch.taught):
                look(self.output, *self.learned(batch), self.drafted(batch), figures)
        return figures

    def save(self, path: Path) -> None:
        """All of it or nothing."""
        state: dict[str, Any] = {"head": self.head.state_dict(), "visits": self.visits}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        partial = path.with_suffix(".partial")
        torch.save({**state, "steps": self.steps, "tokens": self.tokens}, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.head.load_state_dict(state["head"])
        for optimizer, own in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(own)
        self.visits, self.steps, self.tokens = state["visits"], state["steps"], state["tokens"]
