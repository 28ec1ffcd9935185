//! `tekken.json`, Mistral's format of a byte-level tokenizer: tokens by rank, after the special
//! ones, and the regular expression that splits text.
//!
//! # Source
//! mistral-common's `Tekkenizer`, which passes the file to tiktoken; merges are derived from ranks
//! as in transformers' `TikTokenConverter`.
//!
//! # Deviations
//! tiktoken merges, among all neighbours, those whose union has the lowest rank. Here pairs have an
//! order of their own, by that rank first: the two can differ only where a token can be made from
//! two overlapping pairs at once. Special tokens are recognised in text, as in all tokenizers here;
//! mistral-common inserts them itself.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer as HfTokenizer};

use super::around;
use super::bytes::sign;
use crate::special::SpecialTokens;
use crate::{Error, Result};

pub(super) const FILE: &str = "tekken.json";

/// Maximum length of a token in bytes. Published ones have at most 78; every split of a token is a
/// candidate merge.
const LONGEST: usize = 1024;
/// Maximum number of special tokens: published files have 1,000.
const MOST_SPECIAL: usize = 1 << 16;
/// Special tokens of older files, which do not list them.
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// Token at the start of a text.
const BEGIN: &str = "<s>";

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Entry>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    /// Includes special tokens; the vocabulary may have more entries, which are ignored.
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Entry {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

type Problem<T> = std::result::Result<T, String>;

/// Parses the contents of a `tekken.json`.
pub(super) fn parse(contents: &[u8], path: &Path, special: &SpecialTokens) -> Result<HfTokenizer> {
    let read = || {
        let file: File = serde_json::from_slice(contents)
            .map_err(|e| format!("expected a tokenizer in Mistral's format: {}", e))?;
        let names = file.special()?;
        let ranks = file.ranks(names.len())?;
        tokenizer(&file.config.pattern, &names, &ranks, special)
    };
    read().map_err(|problem| Error::File { path: path.to_owned(), problem })
}

impl File {
    /// Returns the names of the special tokens, by id.
    fn special(&self) -> Problem<Vec<String>> {
        let count = self.config.default_num_special_tokens;
        if count > MOST_SPECIAL {
            return Err(format!(
                "config: default_num_special_tokens: expected at most {MOST_SPECIAL}, got {count}"
            ));
        }
        let listed: Vec<(usize, &str)> = match &self.special_tokens {
            Some(all) => all.iter().map(|one| (one.rank, one.token_str.as_str())).collect(),
            None => SPECIAL.into_iter().enumerate().collect(),
        };
        let mut names: Vec<String> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
        let mut seen = BTreeMap::new();
        for (rank, name) in listed {
            let Some(slot) = names.get_mut(rank) else {
                return Err(format!(
                    "special_tokens: expected ranks below {count}, got {rank} ({name:?})"
                ));
            };
            name.clone_into(slot);
            if seen.insert(rank, ()).is_some() {
                return Err(format!("special_tokens: expected each rank once, got {rank} again"));
            }
        }
        Ok(names)
    }

    /// Returns the tokens by rank, after `special` special ones.
    fn ranks(&self, special: usize) -> Problem<Vec<Vec<u8>>> {
        let (size, available) = (self.config.default_vocab_size, self.vocab.len());
        let count = size.checked_sub(special).filter(|count| (256..=available).contains(count));
        let Some(count) = count else {
            return Err(format!(
                "config: default_vocab_size: expected between {} and {}, got {size}",
                special + 256,
                special + available
            ));
        };
        let mut all = Vec::with_capacity(count);
        for (rank, entry) in self.vocab[..count].iter().enumerate() {
            if entry.rank != rank {
                return Err(format!("vocab: expected rank {rank}, got {}", entry.rank));
            }
            let bytes = decoded(&entry.token_bytes)
                .filter(|bytes| (1..=LONGEST).contains(&bytes.len()))
                .ok_or_else(|| {
                    format!("vocab: rank {rank}: expected 1 to {LONGEST} bytes in base64")
                })?;
            if rank < 256 && bytes != [rank as u8] {
                return Err(format!("vocab: rank {rank}: expected byte {rank}, got {bytes:?}"));
            }
            all.push(bytes);
        }
        Ok(all)
    }
}

fn tokenizer(
    pattern: &str,
    names: &[String],
    ranks: &[Vec<u8>],
    special: &SpecialTokens,
) -> Problem<HfTokenizer> {
    let string = |bytes: &[u8]| -> String { bytes.iter().map(|byte| sign(*byte)).collect() };
    let mut vocabulary = Vocab::default();
    let strings = names.iter().cloned().chain(ranks.iter().map(|bytes| string(bytes)));
    for (id, token) in (0..).zip(strings) {
        if let Some(other) = vocabulary.insert(token.clone(), id) {
            return Err(format!("expected every token once, got {token:?} as {other} and {id}"));
        }
    }
    let rank_of: HashMap<&[u8], usize> =
        ranks.iter().enumerate().map(|(rank, bytes)| (bytes.as_slice(), rank)).collect();
    let mut merges = Vec::new();
    for bytes in ranks {
        let splits = (1..bytes.len()).map(|at| bytes.split_at(at));
        let mut pairs: Vec<[usize; 2]> = splits
            .filter_map(|(left, right)| Some([*rank_of.get(left)?, *rank_of.get(right)?]))
            .collect();
        pairs.sort_unstable();
        merges.extend(
            pairs.into_iter().map(|[left, right]| (string(&ranks[left]), string(&ranks[right]))),
        );
    }
    let failed = |e: tokenizers::Error| format!("expected a tokenizer: {e}");
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(true)
        .build()
        .map_err(failed)?;
    let split = SplitPattern::Regex(pattern.to_owned());
    let split = Split::new(split, SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| format!("config: pattern: {e}"))?;
    let mut tokenizer = HfTokenizer::new(model);
    let bytes = ByteLevel::new(false, false, false);
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![split.into(), bytes.into()])));
    tokenizer.with_decoder(Some(bytes));
    let added = names.iter().map(|name| AddedToken::from(name.clone(), true).normalized(false));
    tokenizer.add_special_tokens(added.collect::<Vec<_>>()).map_err(failed)?;
    let begins = special.settings.get("add_bos_token") != Some(&serde_json::Value::Bool(false));
    let begin = tokenizer.token_to_id(BEGIN).filter(|_| begins);
    around::add_around(&mut tokenizer, [begin.map(|id| (BEGIN.to_owned(), id)), None])
        .map_err(failed)?;
    Ok(tokenizer)
}

/// Decodes base64.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let (mut bytes, mut bits, mut buffer) = (Vec::with_capacity(digits.len()), 0, 0u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (buffer, bits) = (buffer << 6 | u32::from(value), bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((buffer >> bits) as u8);
            buffer &= (1 << bits) - 1;
        }
    }
    (buffer == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn decodes_base64_and_rejects_invalid() {
        assert_eq!(decoded(""), Some(vec![]));
        assert_eq!(decoded("AA=="), Some(vec![0]));
        assert_eq!(decoded("/+8="), Some(vec![0xff, 0xef]));
        assert_eq!(decoded("aGkh"), Some(b"hi!".to_vec()));
        for invalid in ["A", "AA", "AB==", "A===", "aGk!", "aG\u{e9}", "====", "AA==AA=="] {
            assert_eq!(decoded(invalid), None, "{invalid}");
        }
    }
}
