//! Numbers of JSON end: a grammar allows any number of digits, and a model that has begun to repeat
//! one would write nothing else.

use llguidance::toktrie::{SimpleVob, TokTrie};
use polydraft::Token;

/// Digits in a row at most, where something else may come: more than any number that means
/// something has, and fewer than a text that never ends.
pub(super) const MOST: usize = 100;

/// What a tokenizer's tokens do to a row of digits.
pub(super) struct Digits {
    /// Tokens that begin with one.
    first: SimpleVob,
    /// By token, the digits it ends with, and whether it is nothing else.
    ends: Vec<(u32, bool)>,
}

impl Digits {
    /// Of the tokens of a tokenizer.
    pub fn of(trie: &TokTrie) -> Self {
        let mut first = trie.alloc_token_set();
        let count = trie.vocab_size() as Token;
        let of = |token: Token| {
            let bytes = trie.token(token);
            if bytes.first().is_some_and(u8::is_ascii_digit) {
                first.allow_token(token);
            }
            let digits = bytes.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
            (digits as u32, digits == bytes.len())
        };
        let ends = (0..count).map(of).collect();
        Self { first, ends }
    }

    /// The digits in a row at the end of a text that ended with `row` of them, after more tokens.
    pub fn after(&self, row: usize, tokens: &[Token]) -> usize {
        tokens.iter().fold(row, |row, token| match self.ends.get(*token as usize) {
            Some(&(digits, true)) => row.saturating_add(digits as usize),
            Some(&(digits, false)) => digits as usize,
            None => 0,
        })
    }

    /// A mask after so many digits in a row, without further ones where it leaves other tokens.
    pub fn bound(&self, mask: SimpleVob, row: usize) -> SimpleVob {
        if row < MOST {
            return mask;
        }
        let mut others = mask.clone();
        others.sub(&self.first);
        if others.is_zero() { mask } else { others }
    }
}

#[cfg(test)]
mod tests {
    use polydraft_engine::LogitsProcessor;
    use serde_json::{Value, json};

    use super::super::{Form, Grammar, Grammars, Mask};
    use super::*;

    const END: Token = 257;

    /// Every byte is a token, and so are two digits.
    fn grammars() -> Grammars {
        let mut bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        bytes.extend([b"12".to_vec(), b"<end>".to_vec()]);
        Grammars::of(bytes, None, 258, &[END]).unwrap()
    }

    fn allowed(grammar: &Grammar, text: &str, decided: usize) -> Vec<Token> {
        let tokens: Vec<Token> = text.bytes().map(Token::from).collect();
        let (decided, path) = tokens.split_at(decided);
        let mut logits = [0.0; 258];
        Mask::new(grammar).process(decided, path, &mut logits);
        (0..258).filter(|token| logits[*token as usize] == 0.0).collect()
    }

    #[test]
    fn a_number_of_json_ends() {
        let grammars = grammars();
        let of = |schema: Value| grammars.make(Form::json(schema, "response_format").unwrap());
        let number = of(json!({ "type": "number" })).unwrap();
        let digit = Token::from(b'5');
        for (begin, rest) in [("-", "."), ("0.", "e"), ("1e-", "")] {
            let row = |count: usize| begin.to_owned() + &"4".repeat(count);
            assert!(allowed(&number, &row(MOST - 1), 0).contains(&digit));
            let full = row(MOST);
            for decided in [0, 1, 40, full.len()] {
                let found = allowed(&number, &full, decided);
                assert!(found.contains(&END) && !found.contains(&digit), "{begin} {found:?}");
                assert!(!found.contains(&256));
                let others = rest.bytes().map(Token::from);
                assert!(others.clone().all(|token| found.contains(&token)), "{begin} {found:?}");
            }
        }
        let list = of(json!({ "type": "array", "items": { "type": "number" } })).unwrap();
        let row = format!("[1.{}", "0".repeat(MOST));
        assert!(!allowed(&list, &row, 2).contains(&digit));
        // A row begins anew.
        assert!(allowed(&list, &(row + ", 1"), 2).contains(&digit));
    }

    #[test]
    fn what_needs_its_digits_has_them() {
        let grammars = grammars();
        let (row, digit) = ("7".repeat(MOST), Token::from(b'7'));
        let only = json!({ "type": "string", "pattern": "^[0-9]{150}$" });
        let only = grammars.make(Form::json(only, "response_format").unwrap()).unwrap();
        assert!(allowed(&only, &format!("\"{row}"), 0).contains(&digit));
        // Whoever writes an expression of his own says how many there may be.
        let own = grammars.make(Form::regex("[0-9]{1,200}", "regex")).unwrap();
        assert!(allowed(&own, &row, 0).contains(&digit));
    }
}
