//! Drafts of another vocabulary than the target's: the emitted distribution, by exact enumeration.

use polydraft::{Drafting, PolicyKind, Sampling, Token};
use polydraft_engine::{
    Engine, Limits, Pieces, Request, Speculation, TableModel, TranslatedDrafter,
    TranslatedVocabulary, Translation,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::common::{Setup, random_model, setup};

/// A vocabulary of these tokens; `$` is an end token, `^` a begin token, and `#` one without text.
fn vocabulary(tokens: &[&str]) -> TranslatedVocabulary {
    let mut made = TranslatedVocabulary::default();
    for (number, token) in tokens.iter().enumerate() {
        let is_text = !matches!(*token, "$" | "^" | "#");
        made.pieces.push(is_text.then(|| token.as_bytes().to_vec()));
        match *token {
            "$" => made.ends.push(number as Token),
            "^" => made.begin = Some(number as Token),
            _ => {}
        }
        if !is_text {
            made.special.insert((*token).to_owned(), number as Token);
        }
    }
    made
}

fn drafter(draft: &TableModel, target: &[&str], tokens: &[&str]) -> Box<TranslatedDrafter> {
    let translation = Translation::new(&vocabulary(target), &vocabulary(tokens));
    Box::new(TranslatedDrafter::new(Box::new(draft.clone()), translation))
}

/// Shared tokens, tokens of several of the other's, tokens that the other lacks, none at all.
const PAIRS: [(&[&str], &[&str]); 8] = [
    (&["a", "b"], &["a", "b"]),
    (&["a", "b"], &["b", "a", "ab"]),
    (&["a", "b", "ab"], &["a", "b"]),
    (&["a", "ab", "abb"], &["a", "b", "ba"]),
    (&["a", "b", "$"], &["$", "bb", "a"]),
    (&["^", "a", "b"], &["a", "c", "ab"]),
    (&["a", "b"], &["c", "#", "d"]),
    (&["a", "\u{e4}"], &["\u{e4}", "a", "#"]),
];

#[test]
fn translated_drafts_keep_the_distribution() {
    let mut rng = ChaCha12Rng::seed_from_u64(5);
    let plain = Sampling::default();
    let (mut worst, mut runs) = (0.0_f64, 0);
    for (target_tokens, draft_tokens) in PAIRS {
        for (kind, tree) in [
            ("token", PolicyKind::chain(3)),
            ("block", PolicyKind::chain(2)),
            ("nested-priority", PolicyKind::paths(2, 2)),
            ("specinfer", PolicyKind::levels(&[2, 1], Drafting::WithoutReplacement)),
        ] {
            for (sampling, draft) in [
                (plain, plain),
                (plain, Sampling { temperature: 0.0, ..plain }),
                (Sampling { top_k: Some(2), ..plain }, Sampling { top_k: Some(1), ..plain }),
            ] {
                let target = random_model(&mut rng, target_tokens.len(), 2);
                // The last one is shorter than the output.
                for context in [100, 4] {
                    let small = random_model(&mut rng, draft_tokens.len(), 2);
                    let small = small.with_context_length(context);
                    let drafter = drafter(&small, target_tokens, draft_tokens);
                    let mut engine = Engine::new(Box::new(target.clone()), Some(drafter));
                    let setup = Setup { target: sampling, draft, ..setup(kind, tree.clone()) };
                    let first = rng.random_range(0..target_tokens.len() as Token);
                    worst = worst.max(setup.exact(&mut engine, &[first], 3));
                    runs += 1;
                }
            }
        }
    }
    assert!(worst < 1e-12 && runs == 8 * 4 * 3 * 2, "{worst:e} in {runs} runs");
}

/// A draft with the same distributions over its own spelling accepts as one without translation.
#[test]
fn tokens_of_several_are_drafted_one_by_one() {
    // The target says "ab" again and again, as two tokens; the draft has one for both.
    let target = r#"{"vocabulary": 2, "next": {"": [1, 0], "0": [0, 1], "1": [1, 0]}}"#;
    let draft = r#"{"vocabulary": 3, "next": {"": [0, 0, 1], "0": [0, 1, 0], "1": [0, 0, 1]}}"#;
    let target = TableModel::from_json("target", target).unwrap();
    let draft = TableModel::from_json("draft", draft).unwrap();
    let drafter = drafter(&draft, &["a", "b"], &["a", "b", "ab"]);
    let mut engine = Engine::new(Box::new(target), Some(drafter));
    let verifier = "block".parse::<polydraft::VerifierKind>().unwrap();
    let tree = PolicyKind::chain(4).build().unwrap();
    let speculation = Speculation::new(verifier.build().unwrap(), tree).unwrap();
    let request = Request::new(&[0][..])
        .speculation(Some(speculation))
        .limits(Limits { max_tokens: Some(20), ..Limits::default() })
        .rng(ChaCha12Rng::seed_from_u64(1));
    let done = engine.generate(request, &mut |_| true).unwrap();
    assert_eq!(done.tokens, [1, 0].repeat(10));
    assert_eq!(done.statistics.target_calls, 4);
}

#[test]
fn spells_bytes_marks_and_ends() {
    let target = vocabulary(&["a", "abc", "#", "$", "^", "x"]);
    let draft = vocabulary(&["ab", "c", "a", "#", "$", "abcabc"]);
    let translation = Translation::new(&target, &draft);
    let spelled: Vec<&[Token]> = (0..6).map(|token| translation.spelled(token)).collect();
    // The draft has no begin token: its contexts begin with its end token.
    assert_eq!(spelled, [&[2][..], &[0, 1], &[3], &[4], &[], &[]]);
    let stands: Vec<Option<Token>> = (0..6).map(|token| translation.stands_for(token)).collect();
    assert_eq!(stands, [Some(0), None, Some(0), Some(2), Some(3), Some(1)]);
    assert!((translation.shared() - 1.0 / 3.0).abs() < 1e-12);
    let none: Pieces = vec![None];
    let empty = TranslatedVocabulary { pieces: none, ..TranslatedVocabulary::default() };
    assert_eq!(Translation::new(&empty, &empty).shared(), 0.0);
}
