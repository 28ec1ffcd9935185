//! Constrained decoding: JSON schemas, tool calls and grammars as a mask of the target's
//! distribution at every node.
//!
//! Problem: the output must match a grammar, and otherwise keep the target's distribution: at each
//! position the tokens that cannot continue it are forbidden, and the others share their
//! probability.
//! Source: masks of the library llguidance, which keeps an Earley parser over the tokenizer's
//! bytes.
//! Method: 1. one matcher follows the decided tokens; 2. at a node of the draft tree a copy of it
//! consumes the tokens of the path, and its mask is the node's (copies share the lexer's automaton,
//! which all sequences of a request extend, and which is much larger than the copied state); 3. the
//! mask is a function of the tokens before the node alone, so every verifier is exact for the
//! masked target; 4. where the next bytes are certain, the mask leaves one token, as the tokenizer
//! encodes them: such tokens need no pass ([`LogitsProcessor::forced`]). After a drafted token that
//! the grammar forbids nothing is masked: the target never continues there, so its distribution has
//! no meaning.
//! Complexity: a copy of the parser and a mask for each node that is sampled from or verified.
//! Deviations: numbers in JSON end after a hundred digits in a row ([`digits`]).

mod calls;
mod digits;
mod form;
mod gbnf;
mod literal;
mod marks;
mod mask;
mod parameters;
mod schema;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use polydraft::Token;
use polydraft_text::Tokenizer;
use serde_json::Value;

use digits::Digits;

pub use calls::CallGrammar;
pub use form::Form;
pub use marks::Marks;
pub use mask::{Grammar, Mask};

/// Builds grammars for one tokenizer and its end tokens.
pub struct Grammars {
    factory: ParserFactory,
    digits: Arc<Digits>,
}

/// Number of certain bytes in which the next token is searched.
const MAX_BYTES_AHEAD: usize = 256;

/// The tokenizer, as the library requires it.
struct Tokens {
    trie: TokTrie,
    tokenizer: Option<Tokenizer>,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Tokenizes as in training if that decodes to the same bytes: some tokenizers prepend a space.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        if let Some((start, token, end)) = special_token(bytes) {
            let before = self.tokenize_bytes(&bytes[..start]);
            return [before, vec![token], self.tokenize_bytes(&bytes[end..])].concat();
        }
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.as_ref()?.encode_plain(text).ok());
        let tokens = tokens.filter(|tokens| self.trie.decode_raw(tokens) == bytes);
        tokens.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    /// Tokenizes the first bytes only: a mask takes one token, while the certain bytes may be as
    /// long as a schema's longest string. All returned tokens count as final, so that the library
    /// does not search for continuations at the cut.
    fn tokenize_bytes_marker(&self, bytes: &[u8]) -> (Vec<TokenId>, usize) {
        let max_bytes = MAX_BYTES_AHEAD.max(2 * self.trie.max_token_len());
        if bytes.len() <= max_bytes {
            return (self.tokenize_bytes(bytes), 0);
        }
        // Start of a character.
        let cut = (0..4)
            .map(|back| max_bytes - back)
            .find(|at| bytes[*at] & 0xc0 != 0x80)
            .unwrap_or(max_bytes);
        let tokens = self.tokenize_bytes(&bytes[..cut]);
        let settled = tokens.len();
        (tokens, settled)
    }
}

/// First special token in bytes, as the library writes them: a marker and the id in brackets.
/// Returns its start, its id and its end.
fn special_token(bytes: &[u8]) -> Option<(usize, TokenId, usize)> {
    let mut from = 0;
    loop {
        let start =
            from + bytes[from..].iter().position(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER)?;
        let id = bytes[start + 1..].strip_prefix(b"[");
        let digits = id.and_then(|id| id.iter().position(|byte| !byte.is_ascii_digit()));
        if let (Some(id), Some(digits)) = (id, digits)
            && id[digits] == b']'
            && let Some(token) = std::str::from_utf8(&id[..digits]).ok().and_then(|id| id.parse().ok())
        {
            return Some((start, token, start + digits + 3));
        }
        from = start + 1;
    }
}

impl Grammars {
    /// Creates a builder for this tokenizer and these end tokens.
    ///
    /// # Errors
    /// A tokenizer whose tokens have unknown bytes; no end token.
    pub fn new(
        tokenizer: &Tokenizer,
        vocabulary: usize,
        end_tokens: &[Token],
    ) -> Result<Self, String> {
        let json = tokenizer.to_json().map_err(|error| error.to_string())?;
        let json: Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
        // The library panics on some tokenizers.
        let bytes = catch_unwind(|| token_bytes_from_tokenizer_json(&json));
        let bytes = bytes.map_err(|_| "unsupported kind of tokenizer".to_owned())?;
        let bytes = bytes.map_err(|error| error.to_string())?;
        Self::from_token_bytes(bytes, Some(tokenizer.clone()), vocabulary, end_tokens)
    }

    /// Creates a builder from the bytes of every token.
    fn from_token_bytes(
        mut bytes: Vec<Vec<u8>>,
        tokenizer: Option<Tokenizer>,
        vocabulary: usize,
        end_tokens: &[Token],
    ) -> Result<Self, String> {
        let Some(&end) = end_tokens.first() else {
            return Err("this model has no end token".to_owned());
        };
        bytes.resize(vocabulary, Vec::new());
        for &token in end_tokens {
            // An end token is not part of the output, whatever its string.
            if let Some(bytes) =
                bytes.get_mut(token as usize).filter(|bytes| bytes.first() != Some(&0xff))
            {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
        }
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, end), &bytes)
            .with_eos_tokens(end_tokens);
        let digits = Arc::new(Digits::new(&trie));
        let environment: TokEnv = Arc::new(Tokens { trie, tokenizer });
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(Self { factory, digits })
    }

    /// Builds the grammar of a form.
    ///
    /// # Errors
    /// A schema that is invalid, too large, or has unsupported parts.
    pub fn build(&self, form: Form) -> Result<Grammar, String> {
        let param = form.param;
        let digits = form.is_json().then(|| self.digits.clone());
        let built = catch_unwind(AssertUnwindSafe(|| {
            let mut matcher = Matcher::new(self.factory.create_parser(form.into_library_grammar()));
            match matcher.get_error() {
                Some(error) => Err(error),
                None => matcher
                    .compute_mask_or_eos()
                    .map(|_| matcher)
                    .map_err(|error| error.to_string()),
            }
        }));
        let matcher =
            built.map_err(|_| "the grammar library failed on this schema".to_owned())??;
        Ok(Grammar { matcher, param, digits })
    }
}

#[cfg(test)]
mod tests {
    use polydraft_engine::LogitsProcessor;
    use serde_json::json;

    use super::mask::{MAX_FORCED, NodeMask, single_token};
    use super::*;

    const END: Token = 13;
    const TOKENS: [&str; 13] =
        ["{", "}", "\"a\"", "\"", "a", ":", "1", "2", ",", "{\"a\"", ":1", "12}", "true"];

    fn grammar() -> Grammar {
        let bytes = TOKENS.iter().map(|token| token.as_bytes().to_vec()).chain([b"<end>".to_vec()]);
        let grammars =
            Grammars::from_token_bytes(bytes.collect(), None, TOKENS.len() + 1, &[END]).unwrap();
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer",
            "maximum": 99 } },
            "required": ["a"], "additionalProperties": false });
        grammars.build(json_form(schema)).unwrap()
    }

    fn json_form(schema: Value) -> Form {
        Form::json(schema, "response_format").unwrap()
    }

    fn allowed(mask: &Mask, decided: &[Token], path: &[Token]) -> Vec<Token> {
        let mut logits = [0.0; TOKENS.len() + 1];
        mask.process(decided, path, &mut logits);
        (0..=END).filter(|token| logits[*token as usize] == 0.0).collect()
    }

    /// Holds for any division into decided and drafted tokens, and after any earlier masks.
    #[test]
    fn mask_depends_only_on_the_preceding_tokens() {
        let grammar = grammar();
        // {"a":112}
        let text: Vec<Token> = vec![9, 10, 11];
        let expected: Vec<Vec<Token>> = (0..=text.len())
            .map(|length| allowed(&Mask::new(&grammar), &[], &text[..length]))
            .collect();
        assert!(
            expected[0].contains(&0) && expected[0].contains(&9) && !expected[0].contains(&END)
        );
        assert_eq!(expected[1], [5, 10]);
        let mask = Mask::new(&grammar);
        // A forbidden token does not affect later masks.
        assert_eq!(allowed(&mask, &[], &[END]).len(), TOKENS.len() + 1);
        assert_eq!(allowed(&mask, &[], &[9, 12, 1]).len(), TOKENS.len() + 1);
        for decided in 0..2 {
            for length in decided..2 {
                assert_eq!(
                    allowed(&mask, &text[..decided], &text[decided..length]),
                    expected[length]
                );
            }
        }
        // {"a":12} is complete: only the end token is left.
        assert_eq!(allowed(&Mask::new(&grammar), &[9, 5], &[11]), [END]);
        assert_eq!(allowed(&Mask::new(&grammar), &[0, 2, 5, 6, 7], &[1]), [END]);
    }

    /// A token for every ASCII byte, and some words.
    fn bytes() -> Grammars {
        let words = ["<tool_call>", "</tool_call>", "{\"name\"", ": ", "arguments", "add", "\"}"];
        let words = words.into_iter().map(|word| word.as_bytes().to_vec());
        let bytes = (0..128u8).map(|byte| vec![byte]).chain(words).chain([b"<end>".to_vec()]);
        let bytes: Vec<Vec<u8>> = bytes.collect();
        let end = bytes.len() - 1;
        Grammars::from_token_bytes(bytes, None, end + 1, &[end as Token]).unwrap()
    }

    /// Returns whether the grammar accepts a text, token by token.
    fn accepts(grammars: &Grammars, grammar: &Grammar, text: &str) -> bool {
        let (mask, trie) = (Mask::new(grammar), grammars.factory.tok_env().tok_trie());
        let tokens = [trie.greedy_tokenize(text.as_bytes()), vec![trie.eos_token()]].concat();
        (0..tokens.len()).all(|length| {
            let mut logits = vec![0.0; trie.vocab_size()];
            mask.process(&[], &tokens[..length], &mut logits);
            logits[tokens[length] as usize] == 0.0
        })
    }

    #[test]
    fn accepts_exactly_the_calls_of_the_form() {
        use polydraft_text::CallForm::{Hermes, Llama};
        let grammars = bytes();
        let one = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/n" } },
            "required": ["a"],
            "additionalProperties": false, "$defs": { "n": { "type": "integer" } } });
        let calls_grammar = |form, several, free| {
            let tools = vec![("add", one.clone()), ("now", json!({ "type": "object" }))];
            let calls = CallGrammar { form, tools, allow_several: several, allow_text: free };
            grammars.build(Form::calls(&calls, "tools").unwrap()).unwrap()
        };
        let add = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
        let invalid_add = add.replace("1", "true");
        let both = format!("{add}\n{now}");
        for (several, free, text, expected) in [
            (false, false, add, true),
            (false, false, &both, false),
            (false, false, "Hello", false),
            (false, false, &invalid_add, false),
            (true, false, &both, true),
            (true, false, now, true),
            (true, true, add, true),
            (true, true, &format!("Let me <see>.\n{both}"), true),
            (true, true, &format!("Hello {invalid_add}"), false),
            (true, true, "Hello <tool", true),
            (true, true, "", true),
            (true, true, &format!("{add}\nThere."), true),
            (false, true, &format!("{add}\nThere."), false),
            (false, true, add, true),
            (false, true, "There.", true),
        ] {
            assert_eq!(
                accepts(&grammars, &calls_grammar(Hermes, several, free), text),
                expected,
                "{several} {free} {text}"
            );
        }
        let llama = "{\"name\": \"add\", \"parameters\": {\"a\": 12}}";
        for (free, text, expected) in [
            (false, llama, true),
            (true, llama, true),
            (true, " Hello {", true),
            (true, &llama.replace("12", "\"\""), false),
            (false, "Hello", false),
        ] {
            assert_eq!(
                accepts(&grammars, &calls_grammar(Llama, true, free), text),
                expected,
                "{free} {text}"
            );
        }
        // Certain tokens are forced, up to the first choice.
        let tools = vec![("add", one.clone())];
        let calls = CallGrammar { form: Hermes, tools, allow_several: false, allow_text: false };
        let grammar = grammars.build(Form::calls(&calls, "tools").unwrap()).unwrap();
        let forced = Mask::new(&grammar).forced(&[]);
        let text =
            String::from_utf8(grammars.factory.tok_env().tok_trie().decode(&forced)).unwrap();
        assert_eq!(text, add[..add.find("1").unwrap()]);
    }

    /// Grammars in llama.cpp's notation, JSON among them.
    #[test]
    fn gbnf_grammars_accept_what_they_describe() {
        let grammars = bytes();
        let from_gbnf = |text: &str| {
            grammars.build(Form::grammar(text.to_owned(), "grammar").unwrap()).unwrap()
        };
        let json = from_gbnf(
            r#"
            # As in llama.cpp's examples.
            root   ::= object
            value  ::= object | array | string | number | ("true" | "false" | "null") ws
            object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
            array  ::= "[" ws ( value ("," ws value)* )? "]" ws
            string ::= "\"" ( [^"\\\x7F\x00-\x1F] |
                "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
            number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
            ws ::= | " " | "\n" [ \t]{0,20}"#,
        );
        let pairs =
            from_gbnf("root ::= pair+\npair ::= \"(\" pair* \")\"\n       | \"[\" pair \"]\"");
        let words =
            from_gbnf("root ::= \"yes\" | \"no\" [!.]? | any-other\nany-other ::= [a-c]{2,3} \"\"");
        for (grammar, text, expected) in [
            (&json, "{}", true),
            (&json, "{\"a\": [1, -2.5, {\"b\":null}], \"c\": \"\\u00e4\\n\"}", true),
            (&json, "{\"a\": [1, -2.5, {\"b\":null}}", false),
            (&json, "{\"a\" 1}", false),
            (&json, "[]", false),
            (&pairs, "()", true),
            (&pairs, "(()[()])()", true),
            (&pairs, "(()", false),
            (&pairs, "[]", false),
            (&words, "yes", true),
            (&words, "no!", true),
            (&words, "no", true),
            (&words, "yes!", false),
            (&words, "abc", true),
            (&words, "a", false),
        ] {
            assert_eq!(accepts(&grammars, grammar, text), expected, "{text}");
        }
    }

    /// Enumerates the distribution: drafts, verifiers and forced tokens do not change it.
    #[test]
    fn speculation_keeps_the_masked_distribution_of_plain_decoding() {
        use polydraft::{PolicyKind, VerifierKind, enumerate};
        use polydraft_engine::{
            Engine, Limits, ModelDrafter, Request, Speculation, TableModel, Vocabulary,
        };
        struct Unforced(Mask);
        impl LogitsProcessor for Unforced {
            fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
                self.0.process(decided, path, logits);
            }
        }
        let grammar = grammar();
        let probs = |peak: usize| {
            let weight = |token: usize| if token % 5 == peak { 3.0 } else { 1.0 };
            let all: f64 = (0..=TOKENS.len()).map(weight).sum();
            (0..=TOKENS.len()).map(|token| weight(token) / all).collect::<Vec<f64>>()
        };
        let table = |name, peaks: [usize; 2]| {
            let json = json!({ "vocabulary": TOKENS.len() + 1, "next": { "": probs(peaks[0]),
                "5": probs(peaks[1]) } });
            TableModel::from_json(name, &json.to_string()).unwrap()
        };
        let vocabulary = Vocabulary::numbered(TOKENS.len() + 1);
        let drafter = ModelDrafter::new(Box::new(table("draft", [1, 2])), &vocabulary).unwrap();
        let mut engine = Engine::new(Box::new(table("target", [0, 3])), Some(Box::new(drafter)));
        let mut distributions = |kind: Option<(&str, &str)>, forced: bool| {
            let mut distributions = std::collections::BTreeMap::new();
            let mut calls = 0.0;
            for (probability, (tokens, target_calls)) in enumerate(|rng| {
                let speculation = kind.map(|(verifier, tree)| {
                    let verifier = verifier.parse::<VerifierKind>().unwrap().build().unwrap();
                    let policy = tree.parse::<PolicyKind>().unwrap().build().unwrap();
                    Speculation::new(verifier, policy).unwrap()
                });
                let limits = Limits { end_tokens: vec![END], ..Limits::tokens(4) };
                let request = Request::new([0]).speculation(speculation).limits(limits);
                let mut session = engine.open(request.rng(rng)).unwrap();
                let mask = Mask::new(&grammar);
                session.set_processor(if forced {
                    Box::new(mask)
                } else {
                    Box::new(Unforced(mask))
                });
                while !session.is_done() {
                    engine.step(&mut [&mut session]).unwrap();
                }
                let generation = engine.close(session).unwrap();
                (generation.tokens, generation.statistics.target_calls)
            }) {
                *distributions.entry(tokens).or_insert(0.0) += probability;
                calls += probability * target_calls as f64;
            }
            (distributions, calls)
        };
        let (plain, plain_calls) = distributions(None, false);
        assert!(plain.len() > 15, "{}", plain.len());
        let kinds = [None, Some(("block", "paths:1,2")), Some(("nested-priority", "paths:2,2"))];
        for kind in kinds {
            for forced in [false, true] {
                let (found, calls) = distributions(kind, forced);
                let worst =
                    plain.iter().map(|(output, p)| (p - found.get(output).unwrap_or(&0.0)).abs());
                let worst = worst.fold(0.0_f64, f64::max);
                assert!(worst < 1e-7 && found.len() == plain.len(), "{kind:?}, {forced}: {worst}");
                assert!(
                    calls < plain_calls || (kind.is_none() && !forced),
                    "{kind:?}, {forced}: {calls} of {plain_calls}"
                );
            }
        }
    }

    /// A step takes at most a few forced tokens, and their masks are the same one by one.
    #[test]
    fn takes_a_long_literal_in_bounded_steps() {
        let grammars = bytes();
        let literal = "ab: ".repeat(500);
        let grammar = grammars.build(json_form(json!({ "enum": [literal] }))).unwrap();
        let (mask, trie) = (Mask::new(&grammar), grammars.factory.tok_env().tok_trie());
        let mut decided = Vec::new();
        while decided.last() != Some(&trie.eos_token()) {
            let forced = mask.forced(&decided);
            assert!(
                (1..=MAX_FORCED).contains(&forced.len()),
                "{} after {}",
                forced.len(),
                decided.len()
            );
            for length in (0..forced.len()).step_by(10) {
                let NodeMask::Allowed(allowed) =
                    Mask::new(&grammar).node_mask(&decided, &forced[..length])
                else {
                    panic!()
                };
                assert_eq!(single_token(&allowed), Some(forced[length]));
            }
            decided.extend(forced);
        }
        decided.pop();
        assert_eq!(trie.decode(&decided), json!(literal).to_string().as_bytes());
    }

    /// A pattern that exceeds the parser's limits is reported.
    #[test]
    fn reports_a_parser_that_exceeded_its_limits() {
        let grammars = bytes();
        let grammar =
            grammars.build(json_form(json!({ "type": "string", "pattern": "^(a{1000}){1000}$" })));
        let mask = Mask::new(&grammar.unwrap());
        let mut logits = vec![0.0; grammars.factory.tok_env().tok_trie().vocab_size()];
        mask.process(&[], &[], &mut logits);
        assert!(logits.contains(&0.0) && mask.failure().is_none());
        mask.process(&[Token::from(b'"')], &[], &mut logits);
        assert!(!logits.contains(&0.0) && mask.failure().is_some());
    }

    #[test]
    fn rejects_invalid_schemas_and_models_without_end_token() {
        let grammars =
            Grammars::from_token_bytes(vec![b"a".to_vec(), b"".to_vec()], None, 2, &[1]).unwrap();
        assert!(grammars.build(json_form(json!({ "type": "wrong" }))).is_err());
        let invalid_pattern = json!({ "type": "string", "contentEncoding": "x", "pattern": "(" });
        assert!(grammars.build(json_form(invalid_pattern)).is_err());
        assert!(Grammars::from_token_bytes(vec![b"a".to_vec()], None, 1, &[]).is_err());
    }
}
