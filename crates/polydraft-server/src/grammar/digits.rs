//! Limit on digits of JSON numbers: a grammar allows any number of digits, and a model that repeats
//! one may never end.

use llguidance::toktrie::{SimpleVob, TokTrie};
use polydraft::Token;

/// Maximum digits in a row where another token is possible: more than any meaningful number has.
pub(super) const MAX_DIGITS: usize = 100;

/// Digits at the ends of each token, to count runs of digits.
pub(super) struct Digits {
    /// Tokens that begin with a digit.
    start_with_digit: SimpleVob,
    /// By token, the number of digits at its end, and whether it has only digits.
    trailing: Vec<(u32, bool)>,
}

impl Digits {
    /// Computes the digits of all tokens.
    pub fn new(trie: &TokTrie) -> Self {
        let mut start_with_digit = trie.alloc_token_set();
        let count = trie.vocab_size() as Token;
        let digits_of = |token: Token| {
            let bytes = trie.token(token);
            if bytes.first().is_some_and(u8::is_ascii_digit) {
                start_with_digit.allow_token(token);
            }
            let digits = bytes.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
            (digits as u32, digits == bytes.len())
        };
        let trailing = (0..count).map(digits_of).collect();
        Self { start_with_digit, trailing }
    }

    /// Length of the run of digits after more tokens, given the run before them.
    pub fn after(&self, run: usize, tokens: &[Token]) -> usize {
        tokens.iter().fold(run, |run, token| match self.trailing.get(*token as usize) {
            Some(&(digits, true)) => run.saturating_add(digits as usize),
            Some(&(digits, false)) => digits as usize,
            None => 0,
        })
    }

    /// Forbids further digits after a run of `run`, unless the mask has no other tokens.
    pub fn forbid_long_runs(&self, mask: SimpleVob, run: usize) -> SimpleVob {
        if run < MAX_DIGITS {
            return mask;
        }
        let mut others = mask.clone();
        others.sub(&self.start_with_digit);
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

    /// A tokenizer with every byte as a token, and one token of two digits.
    fn grammars() -> Grammars {
        let mut bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        bytes.extend([b"12".to_vec(), b"<end>".to_vec()]);
        Grammars::from_token_bytes(bytes, None, 258, &[END]).unwrap()
    }

    fn allowed(grammar: &Grammar, text: &str, decided: usize) -> Vec<Token> {
        let tokens: Vec<Token> = text.bytes().map(Token::from).collect();
        let (decided, path) = tokens.split_at(decided);
        let mut logits = [0.0; 258];
        Mask::new(grammar).process(decided, path, &mut logits);
        (0..258).filter(|token| logits[*token as usize] == 0.0).collect()
    }

    #[test]
    fn json_numbers_end_after_a_maximum_of_digits() {
        let grammars = grammars();
        let grammar_of =
            |schema: Value| grammars.build(Form::json(schema, "response_format").unwrap());
        let number = grammar_of(json!({ "type": "number" })).unwrap();
        let digit = Token::from(b'5');
        for (begin, rest) in [("-", "."), ("0.", "e"), ("1e-", "")] {
            let run = |count: usize| begin.to_owned() + &"4".repeat(count);
            assert!(allowed(&number, &run(MAX_DIGITS - 1), 0).contains(&digit));
            let full = run(MAX_DIGITS);
            for decided in [0, 1, 40, full.len()] {
                let found = allowed(&number, &full, decided);
                assert!(found.contains(&END) && !found.contains(&digit), "{begin} {found:?}");
                assert!(!found.contains(&256));
                let others = rest.bytes().map(Token::from);
                assert!(others.clone().all(|token| found.contains(&token)), "{begin} {found:?}");
            }
        }
        let list = grammar_of(json!({ "type": "array", "items": { "type": "number" } })).unwrap();
        let run = format!("[1.{}", "0".repeat(MAX_DIGITS));
        assert!(!allowed(&list, &run, 2).contains(&digit));
        // A new number starts a new run.
        assert!(allowed(&list, &(run + ", 1"), 2).contains(&digit));
    }

    #[test]
    fn required_digits_are_allowed_beyond_the_maximum() {
        let grammars = grammars();
        let (run, digit) = ("7".repeat(MAX_DIGITS), Token::from(b'7'));
        let only = json!({ "type": "string", "pattern": "^[0-9]{150}$" });
        let only = grammars.build(Form::json(only, "response_format").unwrap()).unwrap();
        assert!(allowed(&only, &format!("\"{run}"), 0).contains(&digit));
        // A regular expression sets its own limit.
        let regex = grammars.build(Form::regex("[0-9]{1,200}", "regex")).unwrap();
        assert!(allowed(&regex, &run, 0).contains(&digit));
    }
}
