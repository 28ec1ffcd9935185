//! Tables of n-grams: what is in them is what the model finds, whoever interrupts.

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

/// Read text: after its first tokens the table has the model's own likeliest tokens, with its
/// probabilities as far as one visit of eight tokens goes.
#[test]
fn a_table_of_one_text_has_the_distributions_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.rs");
    std::fs::write(
        &text,
        "pub fn new(name: &str) -> Self {\n    Self { name: name.to_owned() }\n}",
    )
    .unwrap();
    let plan = NgramPlan { text_files: vec![text.clone()], ..plan(folder.path().join("t.ngrams")) };
    let mut seen = Vec::new();
    let table = learn_ngrams(&plan, &mut |at| {
        seen.push(at);
        true
    })
    .unwrap();
    assert_eq!(table.learned(), seen.last().unwrap().learned);
    // Nothing was known of it before.
    assert_eq!(seen.last().unwrap().accepted, Some(0.0));
    let mut loaded = load(&demo(), LoadOptions::default()).unwrap();
    let tokens = std::fs::read_to_string(&text).unwrap();
    let tokens = loaded.language.tokenizer.encode(&tokens).unwrap();
    let mut drafter = drafter(table, &loaded);
    let model = &mut loaded.model;
    let mut common = Vec::new();
    for length in [6, 9, 12] {
        let (own, its) = (model.open().unwrap(), drafter.open().unwrap());
        model.extend(own, &tokens[..length]).unwrap();
        model.score(&[(own, &DraftTree::new())]).unwrap();
        let p = polydraft::Distribution::from_logits(
            model.logits(own, DraftTree::ROOT),
            &Sampling::default(),
        );
        // The last four tokens stand there once, and the drafter has read no others.
        drafter.extend(its, &tokens[length - 4..length]).unwrap();
        drafter.score(&[(its, &DraftTree::new())]).unwrap();
        let q = drafter.distribution(its, DraftTree::ROOT, &Sampling::default(), None).unwrap();
        common.push(p.unwrap().overlap(&q));
        model.close(own);
        drafter.close(its);
    }
    assert!(common.iter().all(|overlap| *overlap > 0.6), "{common:?}");
}

#[test]
fn learning_goes_on_where_it_was_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("t.ngrams");
    let first = learn_ngrams(&plan(out.clone()), &mut |_| true).unwrap();
    assert!(first.learned() >= 400, "{}", first.learned());
    let bytes = std::fs::read(&out).unwrap();
    assert_eq!(NgramTable::from_bytes(&bytes).unwrap(), first);
    // As much as was asked for: nothing is written.
    let again = learn_ngrams(&plan(out.clone()), &mut |_| true).unwrap();
    assert_eq!(again, first);
    // An interruption in the middle of a part keeps the parts before it.
    let mut asked = 0;
    let mut soon = |_: NgramProgress| {
        asked += 1;
        asked < 20
    };
    let more = NgramPlan { tokens: 5000, ..plan(out.clone()) };
    assert_eq!(learn_ngrams(&more, &mut soon).unwrap().learned(), first.learned());
    let more = NgramPlan { tokens: first.learned() + 600, ..plan(out.clone()) };
    let mut accepted = None;
    let second = learn_ngrams(&more, &mut |at| {
        accepted = at.accepted.or(accepted);
        true
    })
    .unwrap();
    assert!(second.learned() > first.learned() && second.contexts() > first.contexts());
    // What it had learned helps with text that it had not seen.
    assert!(accepted.unwrap() > 0.05, "{accepted:?}");
}

#[test]
fn what_is_no_table_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("notes.txt");
    std::fs::write(&out, "mine").unwrap();
    let error = learn_ngrams(&plan(out.clone()), &mut |_| true).unwrap_err();
    assert!(format!("{error:#}").contains("expected a table to go on with"), "{error:#}");
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    let other =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../polydraft-models/tests/heads/target");
    let out = folder.path().join("t.ngrams");
    learn_ngrams(&NgramPlan { target: other, ..plan(out.clone()) }, &mut |_| true).unwrap();
    let error = format!("{:#}", learn_ngrams(&plan(out), &mut |_| true).unwrap_err());
    assert!(error.contains("another vocabulary"), "{error}");
    let nowhere = plan(folder.path().join("no/t.ngrams"));
    let error = learn_ngrams(&nowhere, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("expected a folder that exists"), "{error}");
}
