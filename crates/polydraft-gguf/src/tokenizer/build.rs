//! A `tokenizers::Tokenizer` that makes the tokens that llama.cpp makes.
//!
//! # Problem
//! The same ids for every text as `llama_tokenize` with `parse_special`; without it, after
//! `set_encode_special_tokens(true)`.
//!
//! # Source
//! llama.cpp's `llm_tokenizer_bpe_session` and `llm_tokenizer_spm_session`; Kudo and Richardson
//! 2018 (SentencePiece); the derivation of merges from scores as in transformers' converter of slow
//! tokenizers.
//!
//! # Complexity
//! Linear in the vocabulary's letters; SentencePiece: times the longest token's, of at most
//! [`LONGEST_PIECE`] bytes. A text of n letters takes O(n log n).
//!
//! # Deviations
//! 1. SentencePiece: llama.cpp merges, among all neighbours, those whose union has the highest
//!    score, the leftmost first. Here pairs have an order of their own, in which that score comes
//!    first. The two can differ only where a token can be made from two overlapping pairs at once,
//!    or where tokens share a score. In 60,000 strings made for that, from the tokens of Gemma 3
//!    that overlap themselves, they did not (`tests/fixtures/make.py overlaps`).
//! 2. Special tokens that overlap in a text: llama.cpp looks for the longest first in all of it,
//!    here the leftmost wins.
//! 3. SentencePiece: llama.cpp merges a letter that is no token with its neighbour where the two
//!    are one; here such a letter becomes bytes at once. Published vocabularies have every letter
//!    of their tokens as a token.
//! 4. A merge that makes no token is an error here; llama.cpp would write its bytes one by one.
//! 5. `gemma4`: more line breaks than any token has are the longest ones first, as with the
//!    models' own tokenizer; llama.cpp looks for a token of all of them, then merges.

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
/// Bytes of a token in a vocabulary whose merges are derived. Published ones have 96 at most; each
/// place in a token is one where it may have been merged.
const LONGEST_PIECE: usize = 1024;

impl TokenizerDescription<'_> {
    /// Makes the tokenizer.
    ///
    /// # Errors
    /// A vocabulary that such a tokenizer cannot have: merges of or into what is no token, bytes
    /// without one, a token to begin or end a text with that is not there.
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

    /// The listed pairs, each once.
    fn listed_merges(&self) -> Result<Vec<(String, String)>> {
        let known: HashSet<&str> = self.tokens.iter().map(|token| &**token).collect();
        let mut seen = HashSet::with_capacity(self.merges.len());
        let mut merges = Vec::with_capacity(self.merges.len());
        for (left, right) in &self.merges {
            let whole = format!("{left}{right}");
            if let Some(missing) =
                [*left, *right, &whole].into_iter().find(|token| !known.contains(token))
            {
                let got = format!(
                    "\"{}\" and \"{}\", but no token \"{}\"",
                    shown(left),
                    shown(right),
                    shown(missing)
                );
                return Err(self.metadata.invalid_key(MERGES, "merges of tokens into a token", got));
            }
            // The first of two alike counts.
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
        let mut steps = Vec::new();
        for expression in pre.expressions {
            let pattern = SplitPattern::Regex((*expression).to_owned());
            steps.push(
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(failed)?
                    .into(),
            );
        }
        steps.push(ByteLevel::new(false, false, false).into());
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(steps)));
        tokenizer.with_decoder(Some(ByteLevel::new(false, false, false)));
        Ok(tokenizer)
    }

    fn sentence_piece(&self) -> Result<Tokenizer> {
        let ids: HashMap<&str, u32> =
            self.tokens.iter().zip(0..).map(|(token, id)| (&**token, id)).collect();
        if let Some(id) = self.tokens.iter().position(|token| token.len() > LONGEST_PIECE) {
            let (expected, bytes) =
                (format!("tokens of at most {LONGEST_PIECE} bytes"), self.tokens[id].len());
            return Err(self.metadata.invalid_key(TOKENS, expected, format!("{bytes} as number {id}")));
        }
        let merges = self.derived_merges(&ids);
        self.with_bytes(&ids, merges)
    }

    /// Pairs across line breaks are none, and line breaks that follow each other are one token
    /// where there is one.
    fn merged(&self) -> Result<Tokenizer> {
        let ids: HashMap<&str, u32> =
            self.tokens.iter().zip(0..).map(|(token, id)| (&**token, id)).collect();
        self.with_bytes(&ids, self.listed_merges()?)
    }

    /// Spaces as SentencePiece writes them, and bytes for what is no token.
    fn with_bytes(
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

    /// Every pair of tokens that makes a token, that with the highest score first.
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
        // Among pairs that make one token the one with the longer left half, as transformers'
        // converter has it.
        merges.sort_by(|a, b| b.2.total_cmp(&a.2).then_with(|| b.0.len().cmp(&a.0.len())));
        merges.into_iter().map(|(left, right, _)| (left.to_owned(), right.to_owned())).collect()
    }

    /// Tokens that are looked for in the text before anything else. Control tokens have no text
    /// when decoded.
    fn added(&self) -> Vec<AddedToken> {
        const KEPT: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
        let mut added = Vec::new();
        for (token, kind) in self.tokens.iter().zip(&self.types) {
            let special = match kind {
                TokenType::Control | TokenType::Unknown => true,
                TokenType::UserDefined => false,
                // Line breaks are looked for in these vocabularies, whatever their type.
                _ if self.kind == TokenizerKind::Merged && is_line_breaks(token) => false,
                _ => continue,
            };
            let strip = self.strip_right && !KEPT.contains(&&**token);
            added
                .push(AddedToken::from(token.to_string(), special).normalized(false).rstrip(strip));
        }
        added
    }

    /// What is put around a text.
    fn template(&self) -> Result<Option<TemplateProcessing>> {
        let failed = |e: String| self.metadata.invalid_key(TOKENS, "tokens around a text", e);
        let mut pieces = Vec::new();
        let mut tokens = Vec::new();
        let role = |name: &str, id: Option<u32>| -> Result<SpecialToken> {
            let token = id.and_then(|id| Some((id, self.tokens.get(id as usize)?)));
            let Some((id, token)) = token else {
                let key = format!("tokenizer.ggml.{name}_token_id");
                return Err(self.metadata.invalid_key(&key, "a token, as one is to be added", "none"));
            };
            SpecialToken::new(name.to_owned(), vec![id], vec![token.to_string()])
                .map_err(|e| failed(e.to_string()))
        };
        if self.add_begin {
            tokens.push(role("bos", self.special.begin)?);
            pieces.push("bos");
        }
        pieces.push("$A");
        if self.add_end {
            tokens.push(role("eos", self.special.end)?);
            pieces.push("eos");
        }
        if tokens.is_empty() {
            return Ok(None);
        }
        let mut builder = TemplateProcessing::builder();
        builder.try_single(pieces).map_err(failed)?.special_tokens(tokens);
        builder.build().map(Some).map_err(|e| failed(e.to_string()))
    }
}

fn is_line_breaks(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte == b'\n')
}
