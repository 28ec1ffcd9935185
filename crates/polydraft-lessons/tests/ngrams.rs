//! Tables of n-grams contain the model's distributions, whether learning is interrupted or not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polydraft::{DraftTree, Sampling};
use polydraft_engine::drafter::ngram::{NgramTable, Settings, SharedNgrams};
use polydraft_engine::{Drafter, DrafterKind, Model, Sequences};
use polydraft_lessons::{NgramPlan, NgramProgress, learn_ngrams};
use polydraft_models::{LoadOptions, Loaded, load};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/target")
}

fn plan(out: PathBuf) -> NgramPlan {
    NgramPlan {
        target: demo(),
        dtype: None,
        out,
        tokens: 600,
        batch_size: 4,
        max_sample_tokens: 60,
        temperatures: vec![1.0],
        text_files: Vec::new(),
    }
}

fn drafter(table: NgramTable, target: &Loaded) -> Box<dyn Drafter> {
    let settings =
        Settings { shared: Some(SharedNgrams::Table(Arc::new(table))), ..Settings::default() };
    DrafterKind::Ngram(settings).build(target.model.info()).unwrap()
}

/// After its first tokens, the table of a single text contains the model's likeliest tokens with
/// their probabilities, up to the accuracy of eight tokens and one visit.
#[test]
fn table_of_a_text_matches_the_models_distributions() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.rs");
    std::fs::write(
        &text,
        "pub fn new(name: &str) -> Self {\n    Self { name: name.to_owned() }\n}",
    )
    .unwrap();
    let plan = NgramPlan { text_files: vec![text.clone()], ..plan(folder.path().join("t.ngrams")) };
    let mut seen = Vec::new();
    let table = learn_ngrams(&plan, &mut |progress| {
        seen.push(progress);
        true
    })
    .unwrap();
    assert_eq!(table.learned(), seen.last().unwrap().learned);
    // The empty table drafts nothing.
    assert_eq!(seen.last().unwrap().accepted, None);
    let mut loaded = load(&demo(), LoadOptions::default()).unwrap();
    let tokens = std::fs::read_to_string(&text).unwrap();
    let tokens = loaded.language.tokenizer.encode(&tokens).unwrap();
    let mut drafter = drafter(table, &loaded);
    let model = &mut loaded.model;
    let mut common = Vec::new();
    for length in [6, 9, 12] {
        let (sequence, draft_sequence) = (model.open().unwrap(), drafter.open().unwrap());
        model.extend(sequence, &tokens[..length]).unwrap();
        model.score(&[(sequence, &DraftTree::new())]).unwrap();
        let p = polydraft::Distribution::from_logits(
            model.logits(sequence, DraftTree::ROOT),
            &Sampling::default(),
        );
        // The last four tokens occur once in the text, and the drafter gets no others.
        drafter.extend(draft_sequence, &tokens[length - 4..length]).unwrap();
        drafter.score(&[(draft_sequence, &DraftTree::new())]).unwrap();
        let q = drafter
            .distribution(draft_sequence, DraftTree::ROOT, &Sampling::default(), None)
            .unwrap();
        common.push(p.unwrap().overlap(&q));
        model.close(sequence);
        drafter.close(draft_sequence);
    }
    assert!(common.iter().all(|overlap| *overlap > 0.6), "{common:?}");
}

#[test]
fn learning_continues_from_the_stored_table() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("t.ngrams");
    let first = learn_ngrams(&plan(out.clone()), &mut |_| true).unwrap();
    assert!((600..640).contains(&first.learned()), "{}", first.learned());
    let bytes = std::fs::read(&out).unwrap();
    assert_eq!(NgramTable::from_bytes(&bytes).unwrap(), first);
    // The planned number of tokens is reached: nothing is generated.
    let again = learn_ngrams(&plan(out.clone()), &mut |_| true).unwrap();
    assert_eq!(again, first);
    // An interruption within a part keeps what was written.
    let mut calls = 0;
    let mut soon = |_: NgramProgress| {
        calls += 1;
        calls < 20
    };
    let more = NgramPlan { tokens: 5000, ..plan(out.clone()) };
    let interrupted = learn_ngrams(&more, &mut soon).unwrap();
    let added = interrupted.learned() - first.learned();
    assert!((1..100).contains(&added), "{added}");
    let stored = NgramTable::from_bytes(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(stored, interrupted);
    let more = NgramPlan { tokens: interrupted.learned() + 600, ..plan(out.clone()) };
    let mut accepted = None;
    let second = learn_ngrams(&more, &mut |progress| {
        accepted = progress.accepted.or(accepted);
        true
    })
    .unwrap();
    assert!(second.learned() > first.learned() && second.contexts() > first.contexts());
    // The learned n-grams help with new text.
    assert!(accepted.unwrap() > 0.05, "{accepted:?}");
}

#[test]
fn rejects_files_that_are_no_table_of_this_model() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("notes.txt");
    std::fs::write(&out, "mine").unwrap();
    let error = learn_ngrams(&plan(out.clone()), &mut |_| true).unwrap_err();
    assert!(format!("{error:#}").contains("expected a table to continue"), "{error:#}");
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    let other =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/heads/target");
    let out = folder.path().join("t.ngrams");
    learn_ngrams(&NgramPlan { target: other, ..plan(out.clone()) }, &mut |_| true).unwrap();
    let error = format!("{:#}", learn_ngrams(&plan(out), &mut |_| true).unwrap_err());
    assert!(error.contains("a different vocabulary"), "{error}");
    let missing_folder = plan(folder.path().join("no/t.ngrams"));
    let error = learn_ngrams(&missing_folder, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("expected an existing folder"), "{error}");
}
