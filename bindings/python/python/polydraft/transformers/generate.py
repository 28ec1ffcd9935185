"""The decode loop in the place of transformers' own: propose, score, verify, commit."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from .._native import Rng, Sampling, Tree, Verifier, _default_tree
from . import on_device
from .caller import kept_by_caller
from .drafts import find_draft, kind_of, own_layer
from .host import Loop
from .scoring import CACHE_NAMES, rows_of
from .static.heads import DraftHead
from .static.mtp import brings_mtp

# The tree of the device's loop, which is of one shape: the best chain, or next to it, in what was measured (docs/gpu.md).
_CHAIN = "paths:1,4"

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
    verifier: str | dict | Verifier | None = "nested-priority",
    paths: int | None = None,
    depth: int | None = None,
    tree: str | dict | Tree | None = None,
    acceptance: Sequence[float] | str | PathLike[str] | None = None,
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
            predicting several tokens, where transformers has its family's. Both are for `loop="device"`. Or `ngram`: the tokens
            that the sequence repeats, in the host's loop. Default: `mtp` where the model brings one that can be used here, else
            `ngram`.
        verifier: one of `polydraft.VERIFIERS`. It must be exact for the tree: `Unsupported` says what it is made for. Or `none`
            for plain decoding, whatever the draft.
        tree: any form of `polydraft.TREES` but `distinct`, which is of several drafts, by its name with the draws that the
            verifier is made for. Default in the host's loop: `auto`, one path, as deep as is worth it by what steps cost here,
            which is measured once for a pair of models in a process; on the device one path of four tokens.
        acceptance: what `tree="sequoia:N"` is made from, numbers or a file of them (`polydraft.Tree`).
        paths, depth: in place of a tree, so many independent paths of so many tokens.
        draft_sampling: how the draft's logits, after the same logits processors as the target's, become the distribution that
            drafts are drawn from (default: as the target's: the largest one without sampling). It changes the speed, never the
            output's distribution.
        seed: of all random decisions (default: one that torch's generator gives, so that `torch.manual_seed` settles it); with it
            row i of a batch has the seed plus i.
        statistics: a dictionary that receives `tokens`, `target_calls`, `draft_calls`, `drafted`, `accepted`, `block_efficiency`;
            `loop`, the kind of `draft` (`model`, `head`, `mtp`, `ngram`, `none`) and the `tree` as it can be given, with its
            costs; and of the device's loop `passes` of the whole batch and whether steps were `captured`.
        loop: `host` verifies on the CPU, any tree by any verifier, rows one after the other. `device` decides where the models
            are, independent paths by one of `polydraft.gpu.METHODS`, all rows together, on CUDA with one graph a step. `auto`
            takes the second on a GPU where it can, and for draft heads.

    The rest is handed over by `generate`. Logits processors must be functions of the tokens before (as most are): they are asked
    at every node of a tree. On the device, those that look at the logits alone (temperature, top-k, top-p, min-p, ..).

    Raises:
        ValueError: what names no draft, tree or verifier; arguments that have no meaning beside others; `loop="device"` where it
            cannot be, with the reason; what speculation does not keep.
    """
    drafting: Any = draft_model if draft_model is not None else assistant_model
    if drafting is None:
        drafting = kept_by_caller("assistant_model", generate)
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
    given = next((model_kwargs[name] for name in CACHE_NAMES if model_kwargs.get(name) is not None), None)
    seeds = [seed + row if isinstance(seed, int) else int(torch.randint(2**63 - 1, (1,)).item()) for row in range(rows)]
    masks = [None if mask is None else mask[row] for row in range(rows)]
    of_drafts = {"tree": tree, "paths": paths, "depth": depth, "acceptance": acceptance, "draft_sampling": draft_sampling}
    decides = _verifier_of(verifier, of_drafts)
    is_plain = decides is None
    if decides is not None and tree is None and (paths is not None or depth is not None):
        tree = _default_tree(decides, paths, depth)
    fixed = _CHAIN if tree is None else tree
    if decides is not None:
        # Refuses a name that is none, and acceptances that a tree is not made from or lacks.
        Tree(fixed, verifier=decides, acceptance=acceptance)

    def why_not(draft: Any) -> str | None:
        return on_device.why_not(model, draft, verifier, fixed, logits_processor, seed, given)

    if is_plain:
        drafting = None
    elif drafting is None:
        drafting = own_layer(model) if loop != "host" and brings_mtp(model) else None
        drafting = None if drafting is None or why_not(drafting) is not None else drafting
    else:
        drafting = find_draft(drafting, model)
    is_head = isinstance(drafting, DraftHead)
    reason: str | None = "the host's loop was asked for"
    if loop == "device" or is_head or (loop == "auto" and model.device.type != "cpu"):
        on_host = "plain decoding is the host's" if is_plain else "n-grams draft on the host"
        reason = on_host if drafting is None else why_not(drafting)
        if reason is not None and (loop == "device" or is_head):
            raise ValueError(f"polydraft: this cannot be decoded on the device: {reason}")
    if reason is None:
        form = on_device.form_of(str(verifier), str(fixed), logits_processor, config.do_sample, draft_sampling)
        put = None if streamer is None else lambda token: streamer.put(torch.tensor([token]))
        token_lists, found = on_device.run(model, drafting, form, list(input_ids), masks, stopping_criteria, seeds, put)
        tokens = sum(len(text) - input_ids.shape[1] for text in token_lists)
        counts = {
            "tokens": tokens, "target_calls": found.calls, "draft_calls": found.calls * form.length,
            "drafted": found.calls * form.paths * form.length, "accepted": found.accepted,
            "block_efficiency": tokens / max(found.calls, 1), "loop": "device", "passes": found.passes,
            "captured": found.captured, "tree": fixed,
        }  # fmt: skip
    else:
        if decides is not None and tree is None:
            tree = _default_tree(decides)
        host = Loop(
            model, drafting, logits_processor, stopping_criteria, config, decides, tree, acceptance, draft_sampling, streamer
        )  # fmt: skip
        token_lists = []
        for row in range(rows):
            before = input_ids[row : row + 1]
            real = before[0] if mask is None else before[0][mask[row].bool()]
            rng = seed if isinstance(seed, Rng) else Rng(seeds[row])
            token_lists.append(host.run(before, real.tolist(), rng, given if rows == 1 else None)[0])
        counts = host.statistics() | {"loop": "host"}
    if streamer is not None:
        streamer.end()
    if statistics is not None:
        statistics.update(counts, draft="none" if is_plain else kind_of(drafting))
    sequences = _padded(token_lists, config, input_ids)
    return GenerateDecoderOnlyOutput(sequences=sequences) if config.return_dict_in_generate else sequences


def _verifier_of(verifier: str | dict | Verifier | None, of_drafts: dict[str, Any]) -> Verifier | None:
    """The verifier; none for plain decoding, in which arguments that are of drafts have no meaning."""
    if verifier is not None and verifier != "none":
        return verifier if isinstance(verifier, Verifier) else Verifier(verifier)
    if unused := next((name for name, value in of_drafts.items() if value is not None), None):
        none = "None" if verifier is None else '"none"'
        raise ValueError(f"polydraft: {unused}= has no meaning with verifier={none}")
    return None


def _padded(token_lists: list[torch.Tensor], config: Any, like: torch.Tensor) -> torch.Tensor:
    longest = max(len(text) for text in token_lists)
    filler = config.pad_token_id
    if filler is None:
        ends = config.eos_token_id
        filler = ends[0] if isinstance(ends, (list, tuple)) else ends
    padded = like.new_full((len(token_lists), longest), 0 if filler is None else int(filler))
    for row, text in zip(padded, token_lists):
        row[: len(text)] = text
    return padded
