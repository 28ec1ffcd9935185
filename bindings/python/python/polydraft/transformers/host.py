"""The loop on the host: propose, score, verify, commit, one sequence after the other, any tree by any verifier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .._native import Draft, Outcome, Rng, Sampling, Tree, Verifier, _Ngrams
from .costs import CHAINS, Measurement
from .distributions import fitted, processed
from .scoring import Rows, Trees, scorer

# Of the sequence whose steps are measured, and what they add to it at most.
_MEASURED, _ADDED = 128, 3 * sum(1 + chain for chain in CHAINS)


class ModelDraft:
    """A draft model's distributions."""

    def __init__(self, loop: Loop, real: Sequence[int]) -> None:
        self.loop, self.scorer = loop, scorer(loop.drafting, real)

    def grow(self, draft: Draft, nodes: Sequence[int], text: torch.Tensor, rng: Rng) -> None:
        """Draws below these nodes."""
        logits = fitted(self.scorer.logits(draft, nodes), self.loop.vocabulary)
        rows = processed(self.loop.processors, text, draft, nodes, logits)
        draft.grow(rows, rng, self.loop.draft_sampling)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Takes what was decided."""
        self.scorer.commit(draft, outcome)


class NgramDraft:
    """The distributions of what the sequence repeats."""

    def __init__(self, loop: Loop, real: Sequence[int]) -> None:
        self.loop, self.ngrams = loop, _Ngrams(loop.vocabulary, list(real))

    def grow(self, draft: Draft, nodes: Sequence[int], text: torch.Tensor, rng: Rng) -> None:
        """Draws below these nodes."""
        draft.grow(self.ngrams.distributions(draft, list(nodes), self.loop.draft_sampling), rng)

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Takes what was decided."""
        self.ngrams.commit(draft, outcome)


class NoDraft:
    """Nothing, in plain decoding."""

    def grow(self, draft: Draft, nodes: Sequence[int], text: torch.Tensor, rng: Rng) -> None:
        """Draws nothing, for a tree has no more than its root."""

    def commit(self, draft: Draft, outcome: Outcome) -> None:
        """Takes what was decided."""


class Text:
    """A sequence at work."""

    def __init__(self, loop: Loop, text: torch.Tensor, real: list[int], cache: Any = None) -> None:
        self.text = text
        self.target: Trees | Rows = scorer(loop.model, real, cache)
        self.drafter: NoDraft | NgramDraft | ModelDraft
        if loop.is_plain:
            self.drafter = NoDraft()
        else:
            self.drafter = NgramDraft(loop, real) if loop.drafting is None else ModelDraft(loop, real)


class Loop:
    """The loop, and what it counts. Without a draft model n-grams of the sequence draft; without a verifier nothing does."""

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
        # A root alone any verifier decides as plain decoding does.
        self.verifier, self.is_plain = verifier or Verifier(), verifier is None
        self.named, self.acceptance, self.streamer = tree, acceptance, streamer
        self.sampling = Sampling() if config.do_sample else Sampling(temperature=0)
        self.draft_sampling = self.sampling if draft_sampling is None else draft_sampling
        self.vocabulary = model.config.get_text_config(decoder=True).vocab_size
        self.tokens = self.target_calls = self.draft_calls = self.drafted = self.accepted = 0
        self.verifier.require(self._tree())

    def run(self, text: torch.Tensor, real: list[int], rng: Rng, cache: Any) -> torch.Tensor:
        """Continues one sequence, `[1, length]`; `real` is it without padding."""
        self._add_costs(text, real)
        tree = self._tree()
        at_work = Text(self, text, real, cache)
        most = getattr(self.criteria, "max_length", None)
        while True:
            # One token is emitted after the last draft.
            room = None if most is None else max(most - at_work.text.shape[1] - 1, 0)
            room = 0 if self.is_plain else room
            draft, outcome, _ = self._step(at_work, tree, rng, room)
            self.target_calls += 1
            self.drafted += len(draft) - 1
            self.accepted += len(outcome.accepted)
            for token in outcome.tokens:
                at_work.text = torch.cat([at_work.text, at_work.text.new_tensor([[token]])], dim=-1)
                self.tokens += 1
                if self.streamer is not None:
                    self.streamer.put(at_work.text[0, -1:].cpu())
                if self._is_done(at_work.text):
                    return at_work.text
            self._commit(at_work, draft, outcome)

    def _step(self, at_work: Text, tree: Tree, rng: Rng, room: int | None) -> tuple[Draft, Outcome, float]:
        """A draft, what was decided on it, and the draft's seconds."""
        text, began = at_work.text, time.perf_counter()
        draft = Draft(tree, root=int(text[0, -1]), depth=room)
        while nodes := draft.frontier():
            at_work.drafter.grow(draft, nodes, text, rng)
            self.draft_calls += 1
        drafted = time.perf_counter() - began
        every = range(len(draft))
        logits = processed(self.processors, text, draft, every, at_work.target.logits(draft, every))
        outcome = self.verifier.verify(draft, logits, rng, self.sampling)
        tree.observe(draft, outcome)
        return draft, outcome, drafted

    def _commit(self, at_work: Text, draft: Draft, outcome: Outcome) -> None:
        at_work.target.commit(draft, outcome)
        at_work.drafter.commit(draft, outcome)

    def _is_done(self, text: torch.Tensor) -> bool:
        return self.criteria is not None and bool(torch.as_tensor(self.criteria(text, None)).all())

    def _tree(self) -> Tree:
        """The tree that is named, for the verifier."""
        if self.named is None:
            return Tree("paths:1,1")
        return Tree(self.named, verifier=self.verifier, acceptance=self.acceptance)

    def _add_costs(self, text: torch.Tensor, real: list[int]) -> None:
        """Gives an adaptive tree that is named what steps cost here."""
        name, _, depth = self.named.partition(":") if isinstance(self.named, str) else ("", "", "")
        models = [self.model, *([] if self.drafting is None else [self.drafting])]
        room = min(_positions(model) for model in models) - _ADDED
        # The steps to be measured take the places of a whole text where there are so few.
        if name != "auto" or room < _ADDED:
            return
        of_draft = _costs.setdefault(self.model, WeakKeyDictionary()).setdefault(models[-1], {})
        how = [(model.dtype, model.device, getattr(model.config, "_attn_implementation", None)) for model in models]
        kinds = tuple(type(processor).__name__ for processor in self.processors or ())
        key = (self.drafting is None, self.verifier.name, self.sampling.temperature == 0, kinds, *how)
        if key not in of_draft:
            of_draft[key] = self._measured(text, real[-min(_MEASURED, room) :])
        self.named = {"tree": "auto", **({"depth": int(depth)} if depth else {}), "costs": of_draft[key]}

    def _measured(self, text: torch.Tensor, real: list[int]) -> dict:
        """What steps after this sequence cost, which stays as it is, as do the counts."""
        counts = self.draft_calls
        rng, measurement = Rng(0), Measurement()
        while measurement.goes_on():
            at_work = Text(self, text.new_tensor([real]), real)
            for kind, chain in enumerate(CHAINS):
                measurement.note(kind, partial(self._timed, at_work, chain, rng))
        self.draft_calls = counts
        return measurement.costs()

    def _timed(self, at_work: Text, chain: int, rng: Rng) -> tuple[float, float, int]:
        """A step with a chain of so many tokens: the draft's seconds, all others, and the accepted tokens."""
        began = time.perf_counter()
        draft, outcome, drafted = self._step(at_work, Tree(f"paths:1,{max(chain, 1)}"), rng, chain)
        at_work.text = torch.cat([at_work.text, at_work.text.new_tensor([outcome.tokens])], dim=-1)
        self._commit(at_work, draft, outcome)
        return drafted, time.perf_counter() - began - drafted, len(outcome.accepted)

    def statistics(self) -> dict[str, Any]:
        """What the sequences cost."""
        names = ("tokens", "target_calls", "draft_calls", "drafted", "accepted")
        counts = {name: getattr(self, name) for name in names}
        return counts | {"block_efficiency": self.tokens / max(self.target_calls, 1), "tree": self.named}


def _positions(model: PreTrainedModel) -> int:
    """Tokens that a model has positions for."""
    return getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 2**31


# Of targets and their drafts; n-grams stand under the target itself.
_costs: WeakKeyDictionary[PreTrainedModel, WeakKeyDictionary[PreTrainedModel, dict]] = WeakKeyDictionary()
