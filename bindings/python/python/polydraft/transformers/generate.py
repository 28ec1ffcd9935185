"""Decoding loop that replaces that of transformers: propose, score, verify, commit."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from .._native import Rng, Sampling, Tree, Verifier, _default_tree
from . import on_device
from .caller import caller_argument
from .drafts import builtin_mtp, find_draft, kind_of
from .host import Loop
from .scoring import CACHE_NAMES, rows_of
from .static.heads import DraftHead
from .static.mtp import brings_mtp

# Tree of the device's loop, whose shape is fixed: the best chain, or close to it, in measurements (docs/gpu.md).
_CHAIN = "paths:1,4"

# Outputs of `generate` that are not available here.
_UNSUPPORTED_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")

# Model arguments passed by `generate` that are rebuilt or already known here. Any other would change the
# target's distribution.
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

    The output has the distribution of plain `generate` with the same arguments; without sampling it is identical token for
    token (except where two logits are equal up to rounding).

    Args:
        assistant_model, draft_model: the draft, under either name: a causal model with the same tokenizer; or, for
            `loop="device"`, the folder of an EAGLE-3 draft head, as written by `python -m polydraft.train`, or `mtp` for the
            model's own layer that predicts several tokens, if transformers supports it for this family; or, for `loop="host"`,
            `ngram` for n-grams of the sequence itself. Default: `mtp` if the model has a usable layer, else `ngram`.
        verifier: one of `polydraft.VERIFIERS`, exact for the tree (`Unsupported` lists the trees it supports); or `none` for
            plain decoding without a draft.
        tree: any form of `polydraft.TREES` except `distinct`, which needs several drafts; it is drawn with the scheme that the
            verifier needs. Default in the host's loop: `auto`, one path whose depth follows from step costs, estimated from the
            sizes of the models; on the device one path of four tokens.
        acceptance: measured acceptance rates for `tree="sequoia:N"`, as numbers or a file (`polydraft.Tree`).
        paths, depth: in place of a tree, the number of independent paths and their length in tokens.
        draft_sampling: sampling of drafts from the draft's logits, after the same logits processors as the target's (default:
            as the target's; without sampling the most likely token). It affects speed, never the output's distribution.
        seed: seed of all random decisions; row i of a batch uses seed + i (default: drawn from torch's generator, so that
            `torch.manual_seed` determines it).
        statistics: a dictionary that receives `tokens`, `target_calls`, `draft_calls`, `drafted`, `accepted`, `block_efficiency`;
            `loop`, the kind of `draft` (`model`, `head`, `mtp`, `ngram`, `none`) and the `tree` in a form that can be passed
            again, with its costs; from the device's loop also `passes` over the batch and whether steps were `captured`.
        loop: `host` verifies on the CPU: any tree and verifier, one row after the other. `device` verifies where the models are:
            independent paths by one of `polydraft.gpu.METHODS`, all rows at once, with one CUDA graph for a step. `auto` takes
            `device` for draft heads and, where possible, on a GPU.

    `generate` passes the remaining arguments. Logits processors must be functions of the preceding tokens (as most are) because
    they run at every node of a tree; on the device, of the logits alone (temperature, top-k, top-p, min-p, ..).

    Raises:
        ValueError: an unknown draft, tree or verifier; arguments that exclude each other; `loop="device"` where it is not
            possible, with the reason; outputs that speculation does not provide.
    """
    drafting: Any = draft_model if draft_model is not None else assistant_model
    if drafting is None:
        drafting = caller_argument("assistant_model", generate)
    if loop not in ("auto", "host", "device"):
        raise ValueError(f"polydraft: expected loop to be auto, host or device, got {loop!r}")
    streamer = caller_argument("streamer", generate) if streamer is None else streamer
    config = generation_config if generation_config is not None else model.generation_config
    for unknown in _UNSUPPORTED_OUTPUTS:
        if config.return_dict_in_generate and getattr(config, unknown, None):
            raise ValueError(f"polydraft: {unknown} is not available with speculative decoding")
    for name, value in model_kwargs.items():
        if name not in MADE_HERE and value is not None:
            raise ValueError(f"polydraft: expected only a text model's inputs, got {name}")
    if model.config.is_encoder_decoder or getattr(config, "num_beams", 1) > 1:
        raise ValueError("polydraft: expected a causal model and one beam, got an encoder-decoder model or several beams")

    if int(input_ids.max()) >= rows_of(model):
        raise ValueError(f"polydraft: expected tokens of the model's vocabulary, got {int(input_ids.max())}")

    rows, mask = input_ids.shape[0], model_kwargs.get("attention_mask")
    if isinstance(seed, Rng) and rows > 1:
        raise ValueError(f"polydraft: expected a number as the seed of a batch of {rows}, got an Rng")
    given = next((model_kwargs[name] for name in CACHE_NAMES if model_kwargs.get(name) is not None), None)
    seeds = [seed + row if isinstance(seed, int) else int(torch.randint(2**63 - 1, (1,)).item()) for row in range(rows)]
    masks = [None if mask is None else mask[row] for row in range(rows)]
    draft_options = {"tree": tree, "paths": paths, "depth": depth, "acceptance": acceptance, "draft_sampling": draft_sampling}
    resolved = _verifier_of(verifier, draft_options)
    is_plain = resolved is None
    if resolved is not None and tree is None and (paths is not None or depth is not None):
        tree = _default_tree(resolved, paths, depth)
    fixed = _CHAIN if tree is None else tree
    if resolved is not None:
        # Rejects unknown names, and acceptances that are missing or not used by the tree.
        Tree(fixed, verifier=resolved, acceptance=acceptance)

    def why_not(draft: Any) -> str | None:
        return on_device.why_not(model, draft, verifier, fixed, logits_processor, seed, given)

    if is_plain:
        drafting = None
    elif drafting is None:
        drafting = builtin_mtp(model) if loop != "host" and brings_mtp(model) else None
        drafting = None if drafting is None or why_not(drafting) is not None else drafting
    else:
        drafting = find_draft(drafting, model)
    is_head = isinstance(drafting, DraftHead)
    reason: str | None = "the host's loop was selected"
    if loop == "device" or is_head or (loop == "auto" and model.device.type != "cpu"):
        on_host = "plain decoding runs on the host" if is_plain else "n-gram drafts run on the host"
        reason = on_host if drafting is None else why_not(drafting)
        if reason is not None and (loop == "device" or is_head):
            raise ValueError(f"polydraft: cannot decode on the device: {reason}")
    if reason is None:
        form = on_device.form_of(str(verifier), str(fixed), logits_processor, config.do_sample, draft_sampling)
        put = None if streamer is None else lambda token: streamer.put(torch.tensor([token]))
        rows_out, found = on_device.run(model, drafting, form, list(input_ids), masks, stopping_criteria, seeds, put)
        tokens = sum(len(tokens) - input_ids.shape[1] for tokens in rows_out)
        counts = {
            "tokens": tokens, "target_calls": found.calls, "draft_calls": found.calls * form.length,
            "drafted": found.calls * form.paths * form.length, "accepted": found.accepted,
            "block_efficiency": tokens / max(found.calls, 1), "loop": "device", "passes": found.passes,
            "captured": found.captured, "tree": fixed,
        }  # fmt: skip
    else:
        if resolved is not None and tree is None:
            tree = _default_tree(resolved)
        host = Loop(
            model, drafting, logits_processor, stopping_criteria, config, resolved, tree, acceptance, draft_sampling, streamer
        )  # fmt: skip
        rows_out = []
        for row in range(rows):
            before = input_ids[row : row + 1]
            real = before[0] if mask is None else before[0][mask[row].bool()]
            rng = seed if isinstance(seed, Rng) else Rng(seeds[row])
            rows_out.append(host.run(before, real.tolist(), rng, given if rows == 1 else None)[0])
        counts = host.statistics() | {"loop": "host"}
    if streamer is not None:
        streamer.end()
    if statistics is not None:
        statistics.update(counts, draft="none" if is_plain else kind_of(drafting))
    sequences = _padded(rows_out, config, input_ids)
    return GenerateDecoderOnlyOutput(sequences=sequences) if config.return_dict_in_generate else sequences


def _verifier_of(verifier: str | dict | Verifier | None, draft_options: dict[str, Any]) -> Verifier | None:
    """Returns the verifier, or None for plain decoding, which rejects arguments for drafts."""
    if verifier is not None and verifier != "none":
        return verifier if isinstance(verifier, Verifier) else Verifier(verifier)
    if unused := next((name for name, value in draft_options.items() if value is not None), None):
        none = "None" if verifier is None else '"none"'
        raise ValueError(f"polydraft: {unused}= has no meaning with verifier={none}")
    return None


def _padded(rows_out: list[torch.Tensor], config: Any, like: torch.Tensor) -> torch.Tensor:
    longest = max(len(tokens) for tokens in rows_out)
    filler = config.pad_token_id
    if filler is None:
        ends = config.eos_token_id
        filler = ends[0] if isinstance(ends, (list, tuple)) else ends
    padded = like.new_full((len(rows_out), longest), 0 if filler is None else int(filler))
    for row, tokens in zip(padded, rows_out):
        row[: len(tokens)] = tokens
    return padded
