//! Bytes of all tokens.

use tokenizers::DecoderWrapper;

use super::bytes::byte;
use crate::Tokenizer;

impl Tokenizer {
    /// Returns the bytes of each of the first `rows` tokens in a text; `None` for special tokens
    /// and for rows without a token. `None` for all if the tokenizer's tokens are not pieces of a
    /// text.
    ///
    /// ```
    /// # fn main() -> polydraft_text::Result<()> {
    /// use polydraft_text::Tokenizer;
    ///
    /// let file = br#"{"model": {"type": "BPE", "vocab": {"a": 0, "<0xC3>": 1, "\u2581a": 2},
    ///                           "merges": []}, "added_tokens": []}"#;
    /// let tokenizer = Tokenizer::parse(file, "tokenizer.json")?;
    /// let pieces = tokenizer.pieces(4).unwrap();
    /// assert_eq!(pieces, [Some(b"a".to_vec()), Some(vec![0xc3]), Some(b" a".to_vec()), None]);
    /// # Ok(()) }
    /// ```
    pub fn pieces(&self, rows: usize) -> Option<Vec<Option<Vec<u8>>>> {
        if !matches!(self.kind(), "BPE" | "Unigram") {
            return None;
        }
        let tokenizer = &self.inner.tokenizer;
        let is_byte_level = tokenizer.get_decoder().is_some_and(is_byte_level);
        let added = tokenizer.get_added_tokens_decoder();
        let piece = |id: u32| {
            if let Some(token) = added.get(&id) {
                return (!token.special).then(|| token.content.as_bytes().to_vec());
            }
            let token = tokenizer.id_to_token(id)?;
            if is_byte_level {
                return token.chars().map(byte).collect();
            }
            let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                return Some(vec![byte]);
            }
            Some(token.replace('\u{2581}', " ").into_bytes())
        };
        Some((0..rows as u32).map(piece).collect())
    }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(all) => all.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}
