//! Published models in GGUF files against transformers: tokens, chat templates and greedy
//! continuations, made by fixtures/published.py. Set POLYDRAFT_SMOLLM2 and POLYDRAFT_GEMMA3 to what
//! bench/fetch_models.sh fetches.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use crate::gguf_pair::gguf;
use polydraft::{DraftTree, Token};
use polydraft_models::{LoadOptions, Precision, load};
use polydraft_text::{Language, Message};
use serde::Deserialize;

/// Maximum difference of two logits that may be in either order.
const TIE: f32 = 1e-3;

#[derive(Deserialize)]
struct Reference {
    strings: Vec<(String, Vec<Token>)>,
    chats: Vec<Chat>,
    greedy: Vec<Greedy>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<(String, String)>,
    text: String,
}

/// A greedy continuation, and the positions at which its token was hardly likelier than another.
#[derive(Deserialize)]
struct Greedy {
    prompt: Vec<Token>,
    tokens: Vec<Token>,
    close: Vec<(usize, f32)>,
}

/// The model file that an environment variable names, and its reference.
fn model(variable: &str, name: &str) -> Option<(PathBuf, Reference)> {
    let Some(path) = std::env::var_os(variable) else {
        gguf::report_skipped(variable);
        return None;
    };
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    Some((path.into(), serde_json::from_slice(&fs::read(reference).unwrap()).unwrap()))
}

fn check_tokens_and_chats(language: &Language, reference: &Reference) {
    assert!(reference.strings.len() >= 200, "{}", reference.strings.len());
    for (text, tokens) in &reference.strings {
        assert_eq!(language.tokenizer.encode(text).unwrap(), *tokens, "{text:?}");
    }
    for chat in &reference.chats {
        let message = |(role, content): &(String, String)| match role.as_str() {
            "system" => Message::system(content.clone()),
            "assistant" => Message::assistant(content.clone()),
            _ => Message::user(content.clone()),
        };
        let messages: Vec<Message> = chat.messages.iter().map(message).collect();
        assert_eq!(language.chat.as_ref().unwrap().render(&messages).unwrap(), chat.text);
    }
}

fn largest(logits: &[f32]) -> Token {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as Token
}

/// Checks that the likeliest token after the prompt and after every token of a continuation is the
/// next one; returns the number of ties.
fn check_greedy(model: &mut SingleSequence, greedy: &Greedy) -> usize {
    model.reset();
    model.extend(&greedy.prompt).unwrap();
    // All tokens as a tree of one branch, in chunks.
    let mut ties = 0;
    for (number, chunk) in greedy.tokens.chunks(50).enumerate() {
        let (mut tree, mut path) = (DraftTree::new(), vec![DraftTree::ROOT]);
        for token in chunk {
            path.push(tree.add(path[path.len() - 1], *token));
        }
        model.score(&tree).unwrap();
        for (at, (token, node)) in chunk.iter().zip(&path).enumerate() {
            let (at, logits) = (number * 50 + at, model.logits(*node));
            let (best, expected) = (largest(logits), *token);
            if best != expected {
                let off = logits[best as usize] - logits[expected as usize];
                let close =
                    greedy.close.iter().any(|(position, gap)| *position == at && *gap < TIE);
                assert!(
                    close && off < TIE,
                    "token {at}: got {best}, expected {expected}, {off} below"
                );
                ties += 1;
            }
        }
        model.commit(&tree, &path[1..]).unwrap();
    }
    ties
}

fn check(variable: &str, name: &str, min_tokens: usize) {
    let Some((path, reference)) = model(variable, name) else { return };
    let options = LoadOptions { precision: Precision::F32, ..LoadOptions::default() };
    let loaded = load(&path, options).unwrap();
    check_tokens_and_chats(&loaded.language, &reference);
    let mut model = SingleSequence::new(loaded.model);
    let tokens: usize = reference.greedy.iter().map(|greedy| greedy.tokens.len()).sum();
    assert!(tokens >= min_tokens, "{tokens}");
    let ties: usize = reference.greedy.iter().map(|greedy| check_greedy(&mut model, greedy)).sum();
    assert!(ties <= tokens / 100, "{ties} of {tokens}");
}

#[test]
fn smollm2_equals_transformers() {
    check("POLYDRAFT_SMOLLM2", "smollm2.json", 2_000);
}

#[test]
fn gemma3_equals_transformers() {
    check("POLYDRAFT_GEMMA3", "gemma3-270m.json", 500);
}
