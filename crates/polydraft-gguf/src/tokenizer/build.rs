//! Builds a `tokenizers::Tokenizer` that produces the same tokens as llama.cpp.
//!
//! # Problem
//! Produce the same IDs for every text as `llama_tokenize` with `parse_special`; and after
//! `set_encode_special_tokens(true)`, as without it.
//!
//! # Source
//! llama.cpp's `llm_tokenizer_bpe_session` and `llm_tokenizer_spm_session`; Kudo and Richardson
//! 2018 (SentencePiece); derivation of merges from scores as in transformers' converter of slow
//! tokenizers.
//!
//! # Complexity
//! Building is linear in the total length of the vocabulary; for SentencePiece also in the length
//! of the longest token, at most [`MAX_TOKEN`] bytes. Tokenizing n characters takes O(n log n).
//!
//! # Deviations
//! 1. SentencePiece: among all adjacent pairs, llama.cpp merges the one whose union has the highest
//!    score, leftmost first. Here pairs are merged in a fixed order, by that score first. The two
//!    can differ only if a token can be formed from two overlapping pairs at once, or if tokens
//!    share a score. They agreed on 60,000 strings that were generated to provoke a difference,
//!    from tokens of Gemma 3 that overlap themselves (`tests/fixtures/make.py overlaps`).
//! 2. Overlapping special tokens: llama.cpp searches the full text for the longest token first.
//!    Here the leftmost one wins.
//! 3. SentencePiece: llama.cpp merges a character without a token with its neighbour if the union
//!    is a token. Here such a character always becomes bytes. Published vocabularies have a token
//!    for every character of their tokens.
//! 4. A merge whose result is not a token is an error. llama.cpp would write its bytes one by one.
//! 5. `gemma4`: a run of more line breaks than any token has is split into the longest tokens
//!    first, as in the model's original tokenizer. llama.cpp looks for a token of the full run,
//!    then merges.

use std::collections::{HashMap, HashSet};

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::{SpecialToken, TemplateProcessing};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::{MERGES, PreTokenizer, TOKENS, TokenType, TokenizerDescription, TokenizerKind};
use crate::Result;
use crate::error::shown;

/// SentencePiece's space.
const SPACE: &str = "\u{2581}";
/// Maximum length in bytes of a token whose merges are derived: every split of a token is a
/// possible merge. Tokens of published vocabularies have at most 96 bytes.
const MAX_TOKEN: usize = 1024;

impl TokenizerDescription<'_> {
    /// Builds the tokenizer.
    ///
    /// # Errors
    /// An inconsistent vocabulary: merges of unknown tokens, or with an unknown result; bytes
    /// without a token; a missing token to prepend or append.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let failed =
            |e: tokenizers::Error| self.metadata.invalid_key(TOKENS, "a tokenizer", e.to_string());
        let mut tokenizer = match self.kind {
            TokenizerKind::ByteLevel(pre) => self.byte_level(pre)?,
            TokenizerKind::SentencePiece => self.sentence_piece()?,
            TokenizerKind::Merged => self.merged()?,
        };
        tokenizer.add_tokens(self.added()).map_err(failed)?;
        if let Some(template) = self.template()? {
            tokenizer.with_post_processor(Some(template));
        }
        Ok(tokenizer)
    }

    fn vocabulary(&self) -> Vocab {
        self.tokens.iter().zip(0..).map(|(token, id)| (token.to_string(), id)).collect()
    }

    /// Returns the pairs of the list without duplicates.
    fn listed_merges(&self) -> Result<Vec<(String, String)>> {
        let known: HashSet<&str> = self.tokens.iter().map(|token| &**token).collect();
        let mut seen = HashSet::with_capacity(self.merges.len());
        let mut merges = Vec::with_capacity(self.merges.len());
        for (left, right) in &self.merges {
            let merged = format!("{left}{right}");
            if let Some(missing) =
                [*left, *right, &merged].into_iter().find(|token| !known.contains(token))
            {
                let got = format!(
                    "\"{}\" and \"{}\", but no token \"{}\"",
                    shown(left),
                    shown(right),
                    shown(missing)
                );
                return Err(self.metadata.invalid_key(
                    MERGES,
                    "merges of tokens into a token",
                    got,
                ));
            }
            // The first of two equal pairs determines the priority.
            if seen.insert((*left, *right)) {
                merges.push(((*left).to_owned(), (*right).to_owned()));
            }
        }
        Ok(merges)
    }

    fn byte_level(&self, pre: &PreTokenizer) -> Result<Tokenizer> {
        let failed =
            |e: tokenizers::Error| self.metadata.invalid_key(TOKENS, "a tokenizer", e.to_string());
        let model = BPE::builder()
            .vocab_and_merges(self.vocabulary(), self.listed_merges()?)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(failed)?;
        let mut pre_tokenizers = Vec::new();
        for expression in pre.expressions {
            let pattern = SplitPattern::Regex((*expression).to_owned());
            pre_tokenizers.push(
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(failed)?
                    .into(),
            );
        }
        pre_tokenizers.push(ByteLevel::new(false, false, false).into());
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(pre_tokenizers)));
        tokenizer.with_decoder(Some(ByteLevel::new(false, false, false)));
        Ok(tokenizer)
    }

    fn sentence_piece(&self) -> Result<Tokenizer> {
        let ids: HashMap<&str, u32> =
            self.tokens.iter().zip(0..).map(|(token, id)| (&**token, id)).collect();
        if let Some(id) = self.tokens.iter().position(|token| token.len() > MAX_TOKEN) {
            let (expected, bytes) =
                (format!("tokens of at most {MAX_TOKEN} bytes"), self.tokens[id].len());
            return Err(self.metadata.invalid_key(
                TOKENS,
                expected,
                format!("{bytes} as number {id}"),
            ));
        }
        let merges = self.derived_merges(&ids);
        self.with_byte_fallback(&ids, merges)
    }

    /// Builds the tokenizer of `gemma4`. Its list has no pairs across line breaks, and a run of
    /// line breaks is one token if the vocabulary has it (see `added`).
    fn merged(&self) -> Result<Tokenizer> {
        let ids: HashMap<&str, u32> =
            self.tokens.iter().zip(0..).map(|(token, id)| (&**token, id)).collect();
        self.with_byte_fallback(&ids, self.listed_merges()?)
    }

    /// Builds a tokenizer with SentencePiece's spaces and byte fallback.
    fn with_byte_fallback(
        &self,
        ids: &HashMap<&str, u32>,
        merges: Vec<(String, String)>,
    ) -> Result<Tokenizer> {
        let failed =
            |e: tokenizers::Error| self.metadata.invalid_key(TOKENS, "a tokenizer", e.to_string());
        if let Some(byte) = (0..=255_u8)
            .map(|byte| format!("<0x{byte:02X}>"))
            .find(|byte| !ids.contains_key(&**byte))
        {
            return Err(self.metadata.invalid_key(
                TOKENS,
                "a token for every byte",
                format!("none that is {byte}"),
            ));
        }
        let model = BPE::builder()
            .vocab_and_merges(self.vocabulary(), merges)
            .byte_fallback(true)
            .build()
            .map_err(failed)?;
        let mut normalizers = Vec::new();
        if self.add_space_prefix {
            normalizers.push(Prepend::new(SPACE.to_owned()).into());
        }
        normalizers.push(Replace::new(" ", SPACE).map_err(failed)?.into());
        let mut decoders = vec![
            Replace::new(SPACE, " ").map_err(failed)?.into(),
            ByteFallback::new().into(),
            Fuse::new().into(),
        ];
        if self.add_space_prefix {
            decoders.push(Strip::new(' ', 1, 0).into());
        }
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).map_err(failed)?;
        tokenizer.with_decoder(Some(Decoders::new(decoders)));
        Ok(tokenizer)
    }

    /// Returns every pair of tokens whose union is a token, highest score first.
    fn derived_merges(&self, ids: &HashMap<&str, u32>) -> Vec<(String, String)> {
        let mut merges = Vec::new();
        for (token, score) in self.tokens.iter().zip(&self.scores) {
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if ids.contains_key(left) && ids.contains_key(right) {
                    merges.push((left, right, *score));
                }
            }
        }
        // Among pairs with the same union, the longer left token first, as in transformers'
        // converter.
        merges.sort_by(|a, b| b.2.total_cmp(&a.2).then_with(|| b.0.len().cmp(&a.0.len())));
        merges.into_iter().map(|(left, right, _)| (left.to_owned(), right.to_owned())).collect()
    }

    /// Returns the tokens that are matched in the text before tokenization. Control tokens have no
    /// text when decoded.
    fn added(&self) -> Vec<AddedToken> {
        const NEVER_STRIPPED: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
        let mut added = Vec::new();
        for (token, kind) in self.tokens.iter().zip(&self.types) {
            let special = match kind {
                TokenType::Control | TokenType::Unknown => true,
                TokenType::UserDefined => false,
                // In these vocabularies, runs of line breaks are matched whatever their type.
                _ if self.kind == TokenizerKind::Merged && is_line_breaks(token) => false,
                _ => continue,
            };
            let strip = self.strip_right && !NEVER_STRIPPED.contains(&&**token);
            added
                .push(AddedToken::from(token.to_string(), special).normalized(false).rstrip(strip));
        }
        added
    }

    /// Returns the tokens to prepend and append.
    fn template(&self) -> Result<Option<TemplateProcessing>> {
        let failed =
            |e: String| self.metadata.invalid_key(TOKENS, "tokens to prepend and append", e);
        let mut template = Vec::new();
        let mut tokens = Vec::new();
        let role = |name: &str, id: Option<u32>| -> Result<SpecialToken> {
            let token = id.and_then(|id| Some((id, self.tokens.get(id as usize)?)));
            let Some((id, token)) = token else {
                let key = format!("tokenizer.ggml.{name}_token_id");
                return Err(self.metadata.invalid_key(
                    &key,
                    "a token, because it is to be added",
                    "none",
                ));
            };
            SpecialToken::new(name.to_owned(), vec![id], vec![token.to_string()])
                .map_err(|e| failed(e.to_string()))
        };
        if self.add_begin {
            tokens.push(role("bos", self.special.begin)?);
            template.push("bos");
        }
        template.push("$A");
        if self.add_end {
            tokens.push(role("eos", self.special.end)?);
            template.push("eos");
        }
        if tokens.is_empty() {
            return Ok(None);
        }
        let mut builder = TemplateProcessing::builder();
        builder.try_single(template).map_err(failed)?.special_tokens(tokens);
        builder.build().map(Some).map_err(|e| failed(e.to_string()))
    }
}

fn is_line_breaks(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte == b'\n')
}
