//! Bytes of tokens that are parts of characters.
//!
//! Two representations of a byte in a token's string are in use: SentencePiece's `<0xF0>`, and
//! GPT-2's table, which maps each of the 256 bytes to a visible character.

use polydraft::Token;

use crate::Tokenizer;

impl Tokenizer {
    /// Returns the bytes of a token that is not whole characters; `None` if its string represents
    /// none.
    ///
    /// ```
    /// # fn main() -> polydraft_text::Result<()> {
    /// use polydraft_text::Tokenizer;
    ///
    /// let file = br#"{"model": {"type": "WordLevel", "vocab": {"<0xF0>": 0, "\u0141\u013a": 1},
    ///                           "unk_token": "<0xF0>"}, "added_tokens": []}"#;
    /// let tokenizer = Tokenizer::parse(file, "tokenizer.json")?;
    /// assert_eq!(tokenizer.token_bytes(0), Some(vec![0xf0]));
    /// assert_eq!(tokenizer.token_bytes(1), Some(vec![0x9f, 0x98]));
    /// # Ok(()) }
    /// ```
    pub fn token_bytes(&self, token: Token) -> Option<Vec<u8>> {
        let string = self.inner.tokenizer.id_to_token(token)?;
        let hexadecimal = string.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        if let Some(byte) = hexadecimal.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            return Some(vec![byte]);
        }
        string.chars().map(byte).collect()
    }
}

/// Returns the byte of a character in GPT-2's table: visible ones represent themselves, the others
/// are numbered from 256.
pub(super) fn byte(sign: char) -> Option<u8> {
    let code = u32::from(sign);
    match u8::try_from(code) {
        Ok(byte) => Some(byte).filter(is_visible),
        Err(_) => (0..=255u8).filter(|byte| !is_visible(byte)).nth(code as usize - 256),
    }
}

/// Returns the character of a byte in GPT-2's table.
pub(super) fn sign(byte: u8) -> char {
    if is_visible(&byte) {
        return char::from(byte);
    }
    let number = (0..byte).filter(|byte| !is_visible(byte)).count() as u32;
    char::from_u32(256 + number).unwrap_or_default()
}

fn is_visible(byte: &u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_and_sign_are_inverse() {
        let all: Vec<u8> = (0..324).filter_map(char::from_u32).filter_map(byte).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..=255).collect::<Vec<u8>>());
        assert_eq!(
            "Ġðł".chars().map(byte).collect::<Option<Vec<u8>>>(),
            Some(vec![32, 0xf0, 0xa0])
        );
        assert_eq!(byte('中'), None);
        assert!((0..=255).all(|number| byte(sign(number)) == Some(number)));
    }
}
