//! Runs on the demo pair, from descriptions to output: every kind of draft, and usage errors.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Result, anyhow};
use polydraft::Token;
use polydraft_engine::{Generation, Limits};
use polydraft_runtime::message::{Message, OptionName, command_line, field, keyword};
use polydraft_runtime::{Description, Listener, OutputOptions, Run, Silent, Usage, explain};
use tempfile::TempDir;

const PROMPT: &str = "impl Iterator for";
const TOKENS: usize = 24;

fn demo(part: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    root.join(part).display().to_string()
}

/// Describes the demo target with a fixed tree, so that nothing is measured, and without cached
/// copies.
fn description(drafts: &[&str], tree: &str) -> Result<Description> {
    let mut description = Description::new(demo("target"));
    description.models.drafts = drafts.iter().map(|draft| (*draft).to_owned()).collect();
    description.models.copies = Some(PathBuf::from("none"));
    description.models.offline = true;
    description.speculation.tree = Some(tree.parse()?);
    Ok(description)
}

fn plain() -> Result<Description> {
    let mut description = description(&[], "paths:1,1")?;
    description.speculation = polydraft_runtime::SpeculationOptions {
        verifier: None,
        tree: None,
        ..description.speculation
    };
    Ok(description)
}

fn output(description: Description, seed: u64) -> Result<Generation> {
    let mut run = Run::open(description, &Silent)?;
    run.generate(PROMPT, Limits::tokens(TOKENS), Some(seed), &mut |_| true)
}

/// Returns the usage error of a description.
fn usage_error(description: Description) -> Result<(Usage, anyhow::Error)> {
    let error = match Run::open(description, &Silent) {
        Ok(_) => return Err(anyhow!("it was taken")),
        Err(error) => error,
    };
    match error.downcast_ref::<Usage>().cloned() {
        Some(usage) => Ok((usage, error)),
        None => Err(error),
    }
}

/// Records messages.
#[derive(Default)]
struct RecordingListener(Mutex<Vec<String>>);

impl Listener for RecordingListener {
    fn note(&self, message: &Message) {
        self.0.lock().expect("no panic").push(message.render(command_line));
    }

    fn detail(&self, message: &Message) {
        self.note(message);
    }
}

#[test]
fn every_draft_keeps_greedy_output() -> Result<()> {
    let greedy = |mut description: Description| {
        description.sampling.temperature = Some(0.0);
        output(description, 1)
    };
    let expected = greedy(plain()?)?;
    assert_eq!(expected.statistics.drafted.iter().sum::<usize>(), 0);
    let model = demo("draft");
    for (drafts, tree) in [
        (vec![model.as_str()], "paths:2,3"),
        (vec!["self:q8_0"], "paths:2,3"),
        (vec!["ngram"], "paths:1,4"),
        (vec![model.as_str()], "binary"),
        (vec![model.as_str()], "sequoia:8"),
    ] {
        let mut description = description(&drafts, tree)?;
        if tree == "binary" || tree == "sequoia:8" {
            description.speculation.verifier = Some("traversal".parse()?);
            description.speculation.depth = Some(2);
        }
        description.speculation.acceptance =
            (tree == "sequoia:8").then(|| PathBuf::from(demo("acceptance.json")));
        if tree == "binary" {
            description.speculation.drafting = Some("without-replacement".parse()?);
        }
        let found = greedy(description)?;
        assert_eq!(found.tokens, expected.tokens, "{drafts:?}, {tree}");
        assert!(found.statistics.drafted.iter().sum::<usize>() > 0, "{drafts:?}, {tree}");
        assert!(found.statistics.target_calls <= expected.statistics.target_calls);
    }
    Ok(())
}

#[test]
fn several_drafts_keep_greedy_output() -> Result<()> {
    let model = demo("draft");
    let mut description = description(&["self:q8_0", &model], "distinct:2,2")?;
    description.speculation.verifier = Some("specinfer".parse()?);
    description.sampling.temperature = Some(0.0);
    let mut run = Run::open(description, &Silent)?;
    let found = run.generate(PROMPT, Limits::tokens(TOKENS), Some(1), &mut |_| true)?;
    let mut plain = plain()?;
    plain.sampling.temperature = Some(0.0);
    assert_eq!(found.tokens, output(plain, 1)?.tokens);
    Ok(())
}

#[test]
fn same_seed_gives_same_outputs() -> Result<()> {
    let model = demo("draft");
    let description = description(&[&model], "paths:2,3")?;
    let first = output(description.clone(), 7)?;
    assert_eq!(output(description.clone(), 7)?.tokens, first.tokens);
    assert_ne!(output(description.clone(), 8)?.tokens, first.tokens);

    // The outputs of a session are drawn with one rng: the first equals that of `generate`, the
    // second continues.
    let mut run = Run::open(description, &Silent)?;
    let prompt = run.models.language.tokenizer.encode(PROMPT)?;
    let end_tokens = run.models.language.end_tokens.clone();
    let options = OutputOptions::from(Limits { end_tokens, ..Limits::tokens(TOKENS) });
    let both = |run: &mut Run| -> Result<[Vec<Token>; 2]> {
        let mut session = run.session(Some(7), &Silent)?;
        assert_eq!(session.seed(), 7);
        let one = session.generate(&prompt, &options, &mut |_| true)?;
        let two = session.generate(&prompt, &options, &mut |_| true)?;
        session.close()?;
        Ok([one.tokens, two.tokens])
    };
    let tokens = both(&mut run)?;
    assert_eq!(tokens[0], first.tokens);
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!(both(&mut run)?, tokens);
    Ok(())
}

#[test]
fn chunks_add_up_to_the_output_and_can_stop_it() -> Result<()> {
    let mut run = Run::open(description(&["ngram"], "paths:1,2")?, &Silent)?;
    let mut chunks = String::new();
    let full = run.generate(PROMPT, Limits::tokens(TOKENS), Some(1), &mut |chunk| {
        chunks += &chunk.text;
        true
    })?;
    assert_eq!(chunks, full.text);
    let mut count = 0;
    let part = run.generate(PROMPT, Limits::tokens(TOKENS), Some(1), &mut |_| {
        count += 1;
        count < 3
    })?;
    assert!(part.tokens.len() < full.tokens.len());
    assert!(full.tokens.starts_with(&part.tokens));
    Ok(())
}

#[test]
fn learned_table_is_stored_and_reduces_passes() -> Result<()> {
    let folder = TempDir::new()?;
    let table = folder.path().join("learned.ngrams");
    let mut description = description(&["ngram"], "paths:1,3")?;
    description.models.learn = Some(table.clone());
    let mut run = Run::open(description.clone(), &Silent)?;
    let prompt = run.models.language.tokenizer.encode(PROMPT)?;
    let mut session = run.session(Some(1), &Silent)?;
    session.generate(&prompt, &Limits::tokens(TOKENS).into(), &mut |_| true)?;
    session.close()?;
    assert!(table.metadata()?.len() > 0);

    // The table drafts what it learned: repeating the output takes fewer passes.
    description.sampling.temperature = Some(0.0);
    let passes = |description: &Description| -> Result<usize> {
        let mut run = Run::open(description.clone(), &Silent)?;
        let output = run.generate(PROMPT, Limits::tokens(TOKENS), Some(1), &mut |_| true)?;
        run.models.store()?;
        Ok(output.statistics.target_calls)
    };
    let (before, after) = (passes(&description)?, passes(&description)?);
    assert!(after < before, "{before}, then {after}");
    Ok(())
}

#[test]
fn usage_errors_name_options_as_the_caller_writes_them() -> Result<()> {
    let mut faulty = description(&["ngram"], "paths:2,2")?;
    faulty.speculation.paths = Some(3);
    let (usage, error) = usage_error(faulty)?;
    assert!(matches!(usage, Usage::Conflict { .. }), "{usage:?}");
    assert!(usage.options().contains(&OptionName::Tree), "{usage:?}");
    assert!(explain(&error, command_line).contains("--tree"));
    assert!(explain(&error, keyword).contains("tree="));
    assert!(explain(&error, field).contains("speculation.tree"));

    let mut faulty = description(&["ngram"], "paths:1,2")?;
    faulty.models.draft_layers = Some(vec![0]);
    let (usage, _) = usage_error(faulty)?;
    assert_eq!(usage.options(), [OptionName::DraftLayers], "{usage:?}");

    let mut faulty = plain()?;
    faulty.speculation.depth = Some(3);
    let (usage, _) = usage_error(faulty)?;
    assert!(usage.options().contains(&OptionName::Depth), "{usage:?}");

    for drafts in [&["none", "ngram"][..], &["self:q7_0"]] {
        let mut faulty = description(drafts, "auto")?;
        faulty.speculation.tree = None;
        faulty.speculation.verifier = Some("specinfer".parse()?);
        let (usage, error) = usage_error(faulty)?;
        assert!(usage.options().contains(&OptionName::Draft), "{drafts:?}: {usage:?}");
        assert!(explain(&error, command_line).contains("--draft"), "{drafts:?}: {usage}");
    }
    Ok(())
}

#[test]
fn rejects_missing_draft_before_loading_the_target() -> Result<()> {
    let listener = RecordingListener::default();
    let missing = demo("no-such-folder");
    let error = Run::open(description(&[&missing], "paths:1,2")?, &listener).err();
    let text = error.map(|error| explain(&error, command_line)).unwrap_or_default();
    assert!(text.contains("no-such-folder"), "{text}");
    let listener = listener.0.lock().expect("no panic");
    assert!(!listener.iter().any(|line| line.contains("loaded")), "{listener:?}");
    Ok(())
}

#[test]
fn descriptions_round_trip_through_json() -> Result<()> {
    let description = description(&["self:q4_0"], "delayed:1,2,2")?;
    let text = serde_json::to_string(&description)?;
    assert_eq!(serde_json::from_str::<Description>(&text)?, description);
    let unknown = r#"{"models": {"targt": "x"}}"#;
    assert!(serde_json::from_str::<Description>(unknown).is_err());
    assert_eq!(serde_json::from_str::<Description>("{}")?, Description::default());
    Ok(())
}
