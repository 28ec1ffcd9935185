"""The decode loop in the place of transformers' own: propose, score, verify, commit."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from .._native import Draft, Rng, Sampling, Tree, Verifier
from . import on_device
from .caller import kept_by_caller
from .distributions import fitted, processed
from .scoring import CACHE_NAMES, rows_of, scorer
from .static import head_of
from .static.heads import DraftHead
from .static.mtp import is_mtp

# What `generate` can be asked to return and this does not have.
_UNKNOWN = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")

# What `generate` hands over for the model that is made anew here, or known. Anything else would
# change the target's distribution.
MADE_HERE = ("attention_mask", "position_ids", *CACHE_NAMES, "use_cache", "cache_position", "logits_to_keep")


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    assistant_model: PreTrainedModel | None = None,
    streamer: Any = None,
    synced_gpus: bool = False,
    draft_model: PreTrainedModel | DraftHead | str | PathLike[str] | None = None,
    verifier: str | dict | Verifier = "nested-priority",
    paths: int = 2,
    depth: int = 3,
    tree: str | dict | None = None,
    draft_sampling: Sampling | None = None,
    seed: int | Rng | None = None,
    statistics: dict | None = None,
    loop: str = "auto",
    **model_kwargs: Any,
) -> Any:
    """Speculative decoding with several drafts, for `model.generate(..., custom_generate=polydraft.transformers.generate)`.

    The output has the distribution of plain `generate` with the same arguments; without sampling it is the same output, token
    for token (but where two logits are equal up to rounding).

    Args:
        assistant_model, draft_model: the draft model, a causal model of the same tokenizer; one of the two names. Or the folder
            of a draft head in EAGLE-3's form, as `python -m polydraft.train` leaves it, or `mtp`: the model's own layer for
            predicting several tokens, where transformers has its family's. Both are for `loop="device"`.
        verifier: one of `polydraft.VERIFIERS`. It must be exact for the tree: `Unsupported` says what it is made for.
        paths, depth: so many independent paths of so many tokens; or `tree`, any of `polydraft.TREES`.
        draft_sampling: how the draft's logits, after the same logits processors as the target's, become the distribution that
            drafts are drawn from (default: as the target's: the largest one without sampling). It changes the speed, never the
            output's distribution.
        seed: of all random decisions (default: one that torch's generator gives, so that `torch.manual_seed` settles it); with it
            row i of a batch has the seed plus i.
        statistics: a dictionary to be told `tokens`, `target_calls`, `draft_calls`, `drafted`, `accepted`, `block_efficiency`;
            `loop`, and of the device's loop `passes` of the whole batch and whether steps were `captured`.
        loop: `host` verifies on the CPU, any tree by any verifier, rows one after the other. `device` decides where the models
            are, independent paths by one of `polydraft.gpu.METHODS`, all rows together, on CUDA with one graph a step. `auto`
            takes the second on a GPU where it can, and for draft heads.

    The rest is handed over by `generate`. Logits processors must be functions of the tokens before (as most are): they are asked
    at every node of a tree. On the device, those that look at the logits alone (temperature, top-k, top-p, min-p, ..).

    Raises:
        ValueError: no draft; `loop="device"` where it cannot be, with the reason; what speculation does not keep.
    """
    drafting: Any = draft_model if draft_model is not None else assistant_model
    if drafting is None:
        drafting = kept_by_caller("assistant_model", generate)
    if drafting is None:
        raise ValueError("polydraft: expected a draft model, as assistant_model or draft_model, got none")
    if isinstance(drafting, (str, PathLike)) or is_mtp(drafting):
        drafting = head_of(drafting, model)
    if loop not in ("auto", "host", "device"):
        raise ValueError(f"polydraft: expected loop to be auto, host or device, got {loop!r}")
    streamer = kept_by_caller("streamer", generate) if streamer is None else streamer
    config = generation_config if generation_config is not None else model.generation_config
    for unknown in _UNKNOWN:
        if config.return_dict_in_generate and getattr(config, unknown, None):
            raise ValueError(f"polydraft: expected {unknown} not to be asked for, which speculation does not keep")
    for name, value in model_kwargs.items():
        if name not in MADE_HERE and value is not None:
            raise ValueError(f"polydraft: expected a text model's inputs alone, got {name}")
    if model.config.is_encoder_decoder or getattr(config, "num_beams", 1) > 1:
        raise ValueError("polydraft: expected a causal model and one beam, got an encoder and a decoder, or several beams")

    if int(input_ids.max()) >= rows_of(model):
        raise ValueError(f"polydraft: expected tokens that the model has, got {int(input_ids.max())}")

    rows, mask = input_ids.shape[0], model_kwargs.get("attention_mask")
    if isinstance(seed, Rng) and rows > 1:
        raise ValueError(f"polydraft: expected a number as the seed of a batch of {rows}, got an Rng")
    named = tree if tree is not None else f"paths:{paths},{depth}"
    given = next((model_kwargs[name] for name in CACHE_NAMES if model_kwargs.get(name) is not None), None)
    seeds = [seed + row if isinstance(seed, int) else int(torch.randint(2**63 - 1, (1,)).item()) for row in range(rows)]
    masks = [None if mask is None else mask[row] for row in range(rows)]
    is_head = isinstance(drafting, DraftHead)
    reason: str | None = "the host's loop was asked for"
    if loop == "device" or is_head or (loop == "auto" and model.device.type != "cpu"):
        reason = on_device.why_not(model, drafting, verifier, named, logits_processor, seed, given)
        if reason is not None and (loop == "device" or is_head):
            raise ValueError(f"polydraft: this cannot be decoded on the device: {reason}")
    if reason is None:
        form = on_device.form_of(str(verifier), str(named), logits_processor, config.do_sample, draft_sampling)
        put = None if streamer is None else lambda token: streamer.put(torch.tensor([token]))
        texts, found = on_device.run(model, drafting, form, list(input_ids), masks, stopping_criteria, seeds, put)
        tokens = sum(len(text) - input_ids.shape[1] for text in texts)
        told = {
            "tokens": tokens, "target_calls": found.calls, "draft_calls": found.calls * form.length,
            "drafted": found.calls * form.paths * form.length, "accepted": found.accepted,
            "block_efficiency": tokens / max(found.calls, 1), "loop": "device", "passes": found.passes,
            "captured": found.captured,
        }  # fmt: skip
    else:
        host = _Loop(
            model, drafting, logits_processor, stopping_criteria, config,
            Verifier(verifier) if not isinstance(verifier, Verifier) else verifier,
            named, draft_sampling, streamer,
        )  # fmt: skip
        texts = []
        for row in range(rows):
            before = input_ids[row : row + 1]
            real = before[0] if mask is None else before[0][mask[row].bool()]
            rng = seed if isinstance(seed, Rng) else Rng(seeds[row])
            texts.append(host.run(before, real.tolist(), rng, given if rows == 1 else None)[0])
        told = host.statistics() | {"loop": "host"}
    if streamer is not None:
        streamer.end()
    if statistics is not None:
        statistics.update(told)
    sequences = _padded(texts, config, input_ids)
    return GenerateDecoderOnlyOutput(sequences=sequences) if config.return_dict_in_generate else sequences


class _Loop:
    """The loop, and what it counts."""

    def __init__(
        self,
        model: PreTrainedModel,
        drafting: PreTrainedModel,
        processors: Any,
        criteria: Any,
        config: Any,
        verifier: Verifier,
        tree: str | dict,
        draft_sampling: Sampling | None,
        streamer: Any,
    ) -> None:
        self.model, self.drafting, self.processors, self.criteria = model, drafting, processors, criteria
        self.verifier, self.named, self.streamer = verifier, tree, streamer
        self.sampling = Sampling() if config.do_sample else Sampling(temperature=0)
        self.draft_sampling = self.sampling if draft_sampling is None else draft_sampling
        self.tokens = self.target_calls = self.draft_calls = self.drafted = self.accepted = 0
        verifier.require(tree)

    def run(self, text: torch.Tensor, real: list[int], rng: Rng, cache: Any) -> torch.Tensor:
        """Continues one sequence, `[1, length]`; `real` is it without padding."""
        tree = Tree(self.named)
        target, drafter = scorer(self.model, real, cache), scorer(self.drafting, real)
        most = getattr(self.criteria, "max_length", None)
        while True:
            # One token is emitted after the last draft.
            room = None if most is None else max(most - text.shape[1] - 1, 0)
            draft = self._propose(tree, drafter, text, room, rng)
            nodes = range(len(draft))
            logits = processed(self.processors, text, draft, nodes, target.logits(draft, nodes))
            outcome = self.verifier.verify(draft, logits, rng, self.sampling)
            tree.observe(draft, outcome)
            self.target_calls += 1
            self.drafted += len(draft) - 1
            self.accepted += len(outcome.accepted)
            for token in outcome.tokens:
                text = torch.cat([text, text.new_tensor([[token]])], dim=-1)
                self.tokens += 1
                if self.streamer is not None:
                    self.streamer.put(text[0, -1:].cpu())
                if self._is_done(text):
                    return text
            target.commit(draft, outcome)
            drafter.commit(draft, outcome)

    def _propose(self, tree: Tree, drafter: Any, text: torch.Tensor, room: int | None, rng: Rng) -> Draft:
        draft = Draft(tree, root=int(text[0, -1]), depth=room)
        vocabulary = self.model.config.get_text_config(decoder=True).vocab_size
        while nodes := draft.frontier():
            logits = fitted(drafter.logits(draft, nodes), vocabulary)
            rows = processed(self.processors, text, draft, nodes, logits)
            draft.grow(rows, rng, self.draft_sampling)
            self.draft_calls += 1
        return draft

    def _is_done(self, text: torch.Tensor) -> bool:
        return self.criteria is not None and bool(torch.as_tensor(self.criteria(text, None)).all())

    def statistics(self) -> dict[str, float]:
        """What the sequences cost."""
        names = ("tokens", "target_calls", "draft_calls", "drafted", "accepted")
        counts = {name: getattr(self, name) for name in names}
        return counts | {"block_efficiency": self.tokens / max(self.target_calls, 1)}


def _padded(texts: list[torch.Tensor], config: Any, like: torch.Tensor) -> torch.Tensor:
    longest = max(len(text) for text in texts)
    filler = config.pad_token_id
    if filler is None:
        ends = config.eos_token_id
        filler = ends[0] if isinstance(ends, (list, tuple)) else ends
    padded = like.new_full((len(texts), longest), 0 if filler is None else int(filler))
    for row, text in zip(padded, texts):
        row[: len(text)] = text
    return padded
