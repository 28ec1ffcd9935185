//! Tests of constrained decoding.

use polydraft_engine::LogitsProcessor;
use serde_json::json;

use polydraft_text::{ArgumentForm, CallForm, Piece, ReasoningForm};

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
    assert!(expected[0].contains(&0) && expected[0].contains(&9) && !expected[0].contains(&END));
    assert_eq!(expected[1], [5, 10]);
    let mask = Mask::new(&grammar);
    // A forbidden token does not affect later masks.
    assert_eq!(allowed(&mask, &[], &[END]).len(), TOKENS.len() + 1);
    assert_eq!(allowed(&mask, &[], &[9, 12, 1]).len(), TOKENS.len() + 1);
    for decided in 0..2 {
        for length in decided..2 {
            assert_eq!(allowed(&mask, &text[..decided], &text[decided..length]), expected[length]);
        }
    }
    // {"a":12} is complete: only the end token is left.
    assert_eq!(allowed(&Mask::new(&grammar), &[9, 5], &[11]), [END]);
    assert_eq!(allowed(&Mask::new(&grammar), &[0, 2, 5, 6, 7], &[1]), [END]);
}

fn object_form(opening: &str, arguments: &str, closing: &str, separator: &str) -> CallForm {
    let text = |text: String| Piece::Text(text);
    CallForm {
        opening: String::new(),
        head: vec![
            text(format!("{opening}{{\"name\": \"")),
            Piece::Name,
            text(format!("\", \"{arguments}\": ")),
        ],
        arguments: ArgumentForm::Json,
        tail: vec![text(format!("}}{closing}"))],
        separator: separator.to_owned(),
        closing: String::new(),
        allows_several: !separator.is_empty(),
    }
}

pub(super) fn hermes() -> CallForm {
    object_form("<tool_call>\n", "arguments", "\n</tool_call>", "\n")
}

fn llama_form() -> CallForm {
    object_form("", "parameters", "", "")
}

/// A token for every ASCII byte, and some words.
pub(super) fn bytes() -> Grammars {
    let words = ["<tool_call>", "</tool_call>", "{\"name\"", ": ", "arguments", "add", "\"}"];
    let words = words.into_iter().map(|word| word.as_bytes().to_vec());
    let bytes = (0..128u8).map(|byte| vec![byte]).chain(words).chain([b"<end>".to_vec()]);
    let bytes: Vec<Vec<u8>> = bytes.collect();
    let end = bytes.len() - 1;
    Grammars::from_token_bytes(bytes, None, end + 1, &[end as Token]).unwrap()
}

/// Tokens that are allowed after these.
pub(super) fn allowed_tokens(
    grammars: &Grammars,
    grammar: &Grammar,
    tokens: &[Token],
) -> Vec<Token> {
    let size = grammars.factory.tok_env().tok_trie().vocab_size();
    let mut logits = vec![0.0; size];
    Mask::new(grammar).process(&[], tokens, &mut logits);
    (0..size as Token).filter(|token| logits[*token as usize] == 0.0).collect()
}

/// Returns whether the grammar accepts a text, token by token.
pub(super) fn accepts(grammars: &Grammars, grammar: &Grammar, text: &str) -> bool {
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
    let grammars = bytes();
    let one = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/n" } },
        "required": ["a"],
        "additionalProperties": false, "$defs": { "n": { "type": "integer" } } });
    let calls_grammar = |form: CallForm, several, free| {
        let tools = vec![("add", Some(one.clone())), ("now", None)];
        let answer = &ReasoningForm::default();
        let marks = Marks(None);
        let calls = CallGrammar {
            form: &form,
            answer,
            marks,
            tools,
            allow_several: several,
            allow_text: free,
        };
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
            accepts(&grammars, &calls_grammar(hermes(), several, free), text),
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
            accepts(&grammars, &calls_grammar(llama_form(), true, free), text),
            expected,
            "{free} {text}"
        );
    }
    // Certain tokens are forced, up to the first choice.
    let tools = vec![("add", Some(one.clone()))];
    let calls = CallGrammar {
        form: &hermes(),
        answer: &ReasoningForm::default(),
        marks: Marks(None),
        tools,
        allow_several: false,
        allow_text: false,
    };
    let grammar = grammars.build(Form::calls(&calls, "tools").unwrap()).unwrap();
    let forced = Mask::new(&grammar).forced(&[]);
    let text = String::from_utf8(grammars.factory.tok_env().tok_trie().decode(&forced)).unwrap();
    assert_eq!(text, add[..add.find("1").unwrap()]);
}

/// Grammars in llama.cpp's notation, JSON among them.
#[test]
fn gbnf_grammars_accept_what_they_describe() {
    let grammars = bytes();
    let from_gbnf =
        |text: &str| grammars.build(Form::grammar(text.to_owned(), "grammar").unwrap()).unwrap();
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
    let pairs = from_gbnf("root ::= pair+\npair ::= \"(\" pair* \")\"\n       | \"[\" pair \"]\"");
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
            session.set_processor(if forced { Box::new(mask) } else { Box::new(Unforced(mask)) });
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
    let invalid_bound = json!({ "type": "integer", "exclusiveMinimum": "x" });
    assert!(grammars.build(json_form(invalid_bound)).is_err());
    assert!(Form::json(json!({ "type": "wrong" }), "response_format").is_err());
    let invalid_pattern = json!({ "type": "string", "contentEncoding": "x", "pattern": "(" });
    assert!(Form::json(invalid_pattern, "response_format").is_err());
    assert!(Grammars::from_token_bytes(vec![b"a".to_vec()], None, 1, &[]).is_err());
}
