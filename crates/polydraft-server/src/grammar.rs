//! Texts of a given form: JSON of a schema, as a mask of the target's law at every node.
//!
//! Problem: a text shall be JSON of a schema, and else have the target's law: at each place the tokens with which the text
//! cannot go on are forbidden, and the others share their probability.
//! Source: masks of the library llguidance, which keeps an Earley parser over the tokenizer's bytes.
//! Method: 1. one matcher follows the decided text; 2. at a node of the draft's tree a copy of it takes the path's tokens, and
//! its mask is the node's; 3. the mask is a function of the tokens before the node alone, so that every verifier is exact for
//! the masked target. Behind a drafted token that the grammar forbids the law has no meaning, for the target never goes there:
//! nothing is masked.
//! Complexity: a copy of the parser and a mask for each node that a verifier looks at.
//! Deviations: none.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use polydraft::Token;
use polydraft_engine::Processor;
use polydraft_text::Text;
use serde_json::{Value, json};

/// Makes grammars for one tokenizer.
pub struct Grammars(ParserFactory);

/// White space between two words of JSON: a blank, or a new line and what indents it; none will do too.
const SPACE: &str = r" |\n {0,24}";

/// Which texts may be; at their beginning.
#[derive(Clone)]
pub struct Grammar(Matcher);

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Grammar")
    }
}

impl Grammars {
    /// For the tokens of `text`, of which `end_tokens` end one.
    ///
    /// # Errors
    /// A tokenizer whose tokens' bytes cannot be told; no token that ends a text.
    pub fn new(text: &Text, vocabulary: usize, end_tokens: &[Token]) -> Result<Self, String> {
        let json = text.to_json().map_err(|error| error.to_string())?;
        let json: Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
        // Of some tokenizers it holds to be true what is not.
        let bytes = catch_unwind(|| token_bytes_from_tokenizer_json(&json));
        let bytes = bytes.map_err(|_| "a tokenizer of an unknown kind".to_owned())?;
        Self::of(bytes.map_err(|error| error.to_string())?, vocabulary, end_tokens)
    }

    /// From the bytes of every token.
    fn of(mut bytes: Vec<Vec<u8>>, vocabulary: usize, end_tokens: &[Token]) -> Result<Self, String> {
        let Some(&end) = end_tokens.first() else { return Err("no token ends a text here".to_owned()) };
        bytes.resize(vocabulary, Vec::new());
        for &token in end_tokens {
            // What ends a text is no part of it, whatever its string.
            if let Some(bytes) = bytes.get_mut(token as usize).filter(|bytes| bytes.first() != Some(&0xff)) {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
        }
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, end), &bytes).with_eos_tokens(end_tokens);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(Self(factory))
    }

    /// The texts that are JSON of a schema.
    ///
    /// # Errors
    /// What is no schema, is too large, or has parts that cannot be enforced.
    pub fn json(&self, mut schema: Value) -> Result<Grammar, String> {
        if let Some(schema) = schema.as_object_mut() {
            // Not the client's to say; and a model that likes white space would write nothing else.
            schema.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": SPACE }));
        }
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut matcher = Matcher::new(self.0.create_parser(TopLevelGrammar::from_json_schema(schema)));
            match matcher.get_error() {
                Some(error) => Err(error),
                None => matcher.compute_mask_or_eos().map(|_| matcher).map_err(|error| error.to_string()),
            }
        }));
        made.map_err(|_| "a schema that the library broke down on".to_owned())?.map(Grammar)
    }
}

/// A grammar at work on one text.
pub struct Mask {
    /// The matcher behind so many tokens of the text.
    at: Mutex<(usize, Matcher)>,
}

impl Mask {
    /// At the text's beginning.
    pub fn new(grammar: &Grammar) -> Self {
        Self { at: Mutex::new((0, grammar.0.deep_clone())) }
    }
}

impl Processor for Mask {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, matcher) = &mut *at;
        // What was decided had a mask: it is taken, or the parser has failed and says so below.
        let _ = matcher.consume_tokens(&decided[*known..]);
        *known = decided.len();
        let mut here = matcher.deep_clone();
        drop(at);
        let before = here.is_error();
        if !path.is_empty() && here.consume_tokens(path).is_err() && !before {
            return;
        }
        match here.compute_mask_or_eos() {
            Ok(mask) => {
                let forbidden = |&(token, _): &(usize, &mut f32)| !mask.is_allowed(token as Token);
                for (_, logit) in logits.iter_mut().enumerate().filter(forbidden) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            // No law at all: the request fails, and says so, rather than to have another one.
            Err(_) => logits.fill(f32::NEG_INFINITY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Token = 13;
    const TOKENS: [&str; 13] =
        ["{", "}", "\"a\"", "\"", "a", ":", "1", "2", ",", "{\"a\"", ":1", "12}", "true"];

    fn grammar() -> Grammar {
        let bytes = TOKENS.iter().map(|token| token.as_bytes().to_vec()).chain([b"<end>".to_vec()]);
        let grammars = Grammars::of(bytes.collect(), TOKENS.len() + 1, &[END]).unwrap();
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer", "maximum": 99 } },
            "required": ["a"], "additionalProperties": false });
        grammars.json(schema).unwrap()
    }

    fn allowed(mask: &Mask, decided: &[Token], path: &[Token]) -> Vec<Token> {
        let mut logits = [0.0; TOKENS.len() + 1];
        mask.process(decided, path, &mut logits);
        (0..=END).filter(|token| logits[*token as usize] == 0.0).collect()
    }

    /// However a text is cut into what is decided and what is drafted, and whatever was asked before.
    #[test]
    fn a_mask_depends_on_the_tokens_before_it_alone() {
        let grammar = grammar();
        // {"a":112}
        let text: Vec<Token> = vec![9, 10, 11];
        let expected: Vec<Vec<Token>> =
            (0..=text.len()).map(|length| allowed(&Mask::new(&grammar), &[], &text[..length])).collect();
        assert!(expected[0].contains(&0) && expected[0].contains(&9) && !expected[0].contains(&END));
        assert_eq!(expected[1], [5, 10]);
        let mask = Mask::new(&grammar);
        // One that is forbidden is no harm to the others.
        assert_eq!(allowed(&mask, &[], &[END]).len(), TOKENS.len() + 1);
        assert_eq!(allowed(&mask, &[], &[9, 12, 1]).len(), TOKENS.len() + 1);
        for decided in 0..2 {
            for length in decided..2 {
                assert_eq!(allowed(&mask, &text[..decided], &text[decided..length]), expected[length]);
            }
        }
        // {"a":12} is complete: nothing but the end.
        assert_eq!(allowed(&Mask::new(&grammar), &[9, 5], &[11]), [END]);
        assert_eq!(allowed(&Mask::new(&grammar), &[0, 2, 5, 6, 7], &[1]), [END]);
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        let grammars = Grammars::of(vec![b"a".to_vec(), b"".to_vec()], 2, &[1]).unwrap();
        assert!(grammars.json(json!({ "type": "wrong" })).is_err());
        assert!(grammars.json(json!({ "type": "string", "contentEncoding": "x", "pattern": "(" })).is_err());
        assert!(Grammars::of(vec![b"a".to_vec()], 1, &[]).is_err());
    }
}
