"""Decoding loop on the host: propose, score, verify, commit. One sequence at a time; any tree and any verifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from .._native import Draft, Outcome, Rng, Sampling, Tree, Verifier, _Ngrams
from .costs import estimated
from .distributions import fitted, processed
from .scoring import Rows, Trees, scorer


class ModelDraft:
    """Drafts from a draft model."""

    def __init__(self, loop: Loop, real: Sequence[int]) -> None:
        self.loop, self.scorer = loop, scorer(loop.drafting, real)

    def grow(self, draft: Draft, nodes: Sequence[int], sequence: torch.Tensor, rng: Rng) -> None:
        """Draws the children of these nodes."""
        logits = fitted(self.scorer.logits(draft, nodes), self.loop.vocabulary)
        rows = processed(self.loop.processors, sequence, draft, nodes, logits)
        draft.grow(rows, rng, self.loop.draft_sampling)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Advances past the emitted tokens."""
        self.scorer.commit(draft, outcome)


class NgramDraft:
    """Drafts from n-grams of the sequence itself."""

    def __init__(self, loop: Loop, real: Sequence[int]) -> None:
        self.loop, self.ngrams = loop, _Ngrams(loop.vocabulary, list(real))

    def grow(self, draft: Draft, nodes: Sequence[int], sequence: torch.Tensor, rng: Rng) -> None:
        """Draws the children of these nodes."""
        draft.grow(self.ngrams.distributions(draft, list(nodes), self.loop.draft_sampling), rng)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Advances past the emitted tokens."""
        self.ngrams.commit(draft, outcome)


class NoDraft:
    """Stands in for a draft in plain decoding."""

    def grow(self, draft: Draft, nodes: Sequence[int], sequence: torch.Tensor, rng: Rng) -> None:
        """Does nothing: the tree is a root alone."""

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Advances past the emitted tokens."""


class ActiveSequence:
    """A sequence that is being decoded, with its scorer and drafter."""

    def __init__(self, loop: Loop, sequence: torch.Tensor, real: list[int], cache: Any = None) -> None:
        self.tokens = sequence
        self.target: Trees | Rows = scorer(loop.model, real, cache)
        self.drafter: NoDraft | NgramDraft | ModelDraft
        if loop.is_plain:
            self.drafter = NoDraft()
        else:
            self.drafter = NgramDraft(loop, real) if loop.drafting is None else ModelDraft(loop, real)


class Loop:
    """Decoding loop and its statistics. Drafts from n-grams without a draft model, and decodes plainly without a verifier."""

    def __init__(
        self,
        model: PreTrainedModel,
        drafting: PreTrainedModel | None,
        processors: Any,
        criteria: Any,
        config: Any,
        verifier: Verifier | None,
        tree: str | dict | Tree | None,
        acceptance: Any,
        draft_sampling: Sampling | None,
        streamer: Any,
    ) -> None:
        self.model, self.drafting, self.processors, self.criteria = model, drafting, processors, criteria
        # On a tree that is only a root, every verifier is plain sampling.
        self.verifier, self.is_plain = verifier or Verifier(), verifier is None
        self.requested_tree, self.acceptance, self.streamer = tree, acceptance, streamer
        self.sampling = Sampling() if config.do_sample else Sampling(temperature=0)
        self.draft_sampling = self.sampling if draft_sampling is None else draft_sampling
        self.vocabulary = model.config.get_text_config(decoder=True).vocab_size
        self.tokens = self.target_calls = self.draft_calls = self.drafted = self.accepted = 0
        self.verifier.require(self._tree())

    def run(self, sequence: torch.Tensor, real: list[int], rng: Rng, cache: Any) -> torch.Tensor:
        """Continues one sequence, `[1, length]`; `real` are its tokens without padding."""
        self._add_costs()
        tree = self._tree()
        active = ActiveSequence(self, sequence, real, cache)
        most = getattr(self.criteria, "max_length", None)
        while True:
            # A step emits one token after the last accepted one.
            depth = None if most is None else max(most - active.tokens.shape[1] - 1, 0)
            depth = 0 if self.is_plain else depth
            draft, outcome = self._step(active, tree, rng, depth)
            self.target_calls += 1
            self.drafted += len(draft) - 1
            self.accepted += len(outcome.accepted)
            for token in outcome.tokens:
                active.tokens = torch.cat([active.tokens, active.tokens.new_tensor([[token]])], dim=-1)
                self.tokens += 1
                if self.streamer is not None:
                    self.streamer.put(active.tokens[0, -1:].cpu())
                if self._is_done(active.tokens):
                    return active.tokens
            self._commit(active, draft, outcome)

    def _step(self, active: ActiveSequence, tree: Tree, rng: Rng, depth: int | None) -> tuple[Draft, Outcome]:
        """Runs one step. Returns the draft and the outcome."""
        sequence = active.tokens
        draft = Draft(tree, root=int(sequence[0, -1]), depth=depth)
        while nodes := draft.frontier():
            active.drafter.grow(draft, nodes, sequence, rng)
            self.draft_calls += 1
        every = range(len(draft))
        logits = processed(self.processors, sequence, draft, every, active.target.logits(draft, every))
        outcome = self.verifier.verify(draft, logits, rng, self.sampling)
        tree.observe(draft, outcome)
        return draft, outcome

    def _commit(self, active: ActiveSequence, draft: Draft, outcome: Outcome) -> None:
        active.target.commit(draft, outcome)
        active.drafter.commit(draft, outcome)

    def _is_done(self, sequence: torch.Tensor) -> bool:
        return self.criteria is not None and bool(torch.as_tensor(self.criteria(sequence, None)).all())

    def _tree(self) -> Tree:
        """Returns the requested tree, resolved for the verifier."""
        if self.requested_tree is None:
            return Tree("paths:1,1")
        return Tree(self.requested_tree, verifier=self.verifier, acceptance=self.acceptance)

    def _add_costs(self) -> None:
        """Adds estimated step costs to the tree if it is adaptive."""
        name, _, depth = self.requested_tree.partition(":") if isinstance(self.requested_tree, str) else ("", "", "")
        if name == "auto":
            costs = estimated(self.model, self.drafting)
            self.requested_tree = {"tree": "auto", **({"depth": int(depth)} if depth else {}), "costs": costs}

    def statistics(self) -> dict[str, Any]:
        """Returns the counts over all sequences."""
        names = ("tokens", "target_calls", "draft_calls", "drafted", "accepted")
        counts = {name: getattr(self, name) for name in names}
        return counts | {"block_efficiency": self.tokens / max(self.target_calls, 1), "tree": self.requested_tree}
