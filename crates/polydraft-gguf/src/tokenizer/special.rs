//! Special tokens, found by key or by name.

use std::collections::{BTreeSet, HashMap};

use super::{Defaults, TokenType};
use crate::Result;
use crate::metadata::Metadata;

/// IDs of special tokens. IDs out of range are treated as missing, as in llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpecialTokens {
    /// Beginning of a sequence (BOS).
    pub begin: Option<u32>,
    /// End of a sequence (EOS).
    pub end: Option<u32>,
    /// End of a turn (EOT).
    pub end_of_turn: Option<u32>,
    /// End of a message, if a tool responds to it (EOM).
    pub end_of_message: Option<u32>,
    /// Replacement for text without a token.
    pub unknown: Option<u32>,
    /// Padding.
    pub padding: Option<u32>,
    /// Separator between two strings.
    pub separator: Option<u32>,
    /// Mask.
    pub mask: Option<u32>,
}

const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const END_OF_MESSAGE: &[&str] = &["<|eom_id|>"];
/// Keys and names of fill-in-the-middle tokens: prefix, suffix, middle; then padding, repository
/// and file separator.
const FILL_IN_MIDDLE: [(&[&str], &[&str]); 6] = [
    (
        &["fim_pre_token_id", "prefix_token_id"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        &["fim_suf_token_id", "suffix_token_id"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        &["fim_mid_token_id", "middle_token_id"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (&["fim_pad_token_id"], &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (
        &["fim_rep_token_id"],
        &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    ),
    (&["fim_sep_token_id"], &["<|file_sep|>"]),
];
/// Index of the first entry of [`FILL_IN_MIDDLE`] that ends the output.
const FIRST_ENDING: usize = 3;
const END: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
/// Control tokens whose text is visible (gpt-oss).
const VISIBLE: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Reads the special tokens, finds the tokens that end the output, and corrects the types of tokens
/// with known names.
pub(super) fn read(
    metadata: &Metadata,
    ids: &HashMap<&str, u32>,
    types: &mut [TokenType],
    defaults: &Defaults,
) -> Result<(SpecialTokens, Vec<u32>)> {
    let in_range = |id: &u32| (*id as usize) < types.len();
    let by_key = |key: &str| -> Result<Option<u32>> {
        let id = metadata.optional(&format!("tokenizer.ggml.{key}"), Metadata::i64)?;
        Ok(id.and_then(|id| u32::try_from(id).ok()).filter(in_range))
    };
    let mut special = SpecialTokens {
        begin: by_key("bos_token_id")?.or(defaults.begin.filter(in_range)),
        end: by_key("eos_token_id")?.or(defaults.end.filter(in_range)),
        end_of_turn: by_key("eot_token_id")?,
        end_of_message: by_key("eom_token_id")?,
        unknown: by_key("unknown_token_id")?.or(defaults.unknown.filter(in_range)),
        padding: by_key("padding_token_id")?,
        // The format has this spelling.
        separator: by_key("seperator_token_id")?,
        mask: by_key("mask_token_id")?,
    };
    let mut middle = [None; FILL_IN_MIDDLE.len()];
    for (found, (keys, _)) in middle.iter_mut().zip(FILL_IN_MIDDLE) {
        for key in keys {
            // A later key wins, as in llama.cpp.
            *found = by_key(key)?.or(*found);
        }
    }
    let mut by_name = |found: &mut Option<u32>, names: &[&str]| {
        if found.is_none()
            && let Some(id) = names.iter().find_map(|name| ids.get(name))
        {
            *found = Some(*id);
            types[*id as usize] = TokenType::Control;
        }
    };
    by_name(&mut special.end_of_turn, END_OF_TURN);
    by_name(&mut special.end_of_message, END_OF_MESSAGE);
    for (found, (_, names)) in middle.iter_mut().zip(FILL_IN_MIDDLE) {
        by_name(found, names);
    }
    let mut end: BTreeSet<u32> = middle[FIRST_ENDING..].iter().flatten().copied().collect();
    for id in END.iter().filter_map(|name| ids.get(name)) {
        end.insert(*id);
        types[*id as usize] = TokenType::Control;
    }
    for id in VISIBLE.iter().filter_map(|name| ids.get(name)) {
        types[*id as usize] = TokenType::UserDefined;
    }
    end.extend([special.end, special.end_of_turn, special.end_of_message].into_iter().flatten());
    exceptions(ids, types, &mut end);
    Ok((special, end.into_iter().collect()))
}

/// Handles two model families in which a token of the list does not end the output.
fn exceptions(ids: &HashMap<&str, u32>, types: &mut [TokenType], end: &mut BTreeSet<u32>) {
    let has = |name: &str, end: &BTreeSet<u32>| ids.get(name).is_some_and(|id| end.contains(id));
    let call = has("<|call|>", end) || has("<|calls|>", end);
    if call && (has("<|return|>", end) || has("<|flush|>", end)) && has("<|end|>", end) {
        let id = ids["<|end|>"];
        end.remove(&id);
        types[id as usize] = TokenType::UserDefined;
    }
    if has("<|tool_response>", end) && has("</s>", end) {
        let id = ids["</s>"];
        end.remove(&id);
        types[id as usize] = TokenType::Normal;
    }
}
