//! Kinds of inputs, and the code that reads them.

mod arguments;
mod families;
mod gguf;
mod heads;
mod models;
mod text_files;
mod traces;

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use polydraft::{
    Drafting, Draws, PolicyKind, Problem, Proposal, RuleKind, Sampling, VerifierKind, acceptance,
    couple,
};
use polydraft_engine::{Engine, Limits, ModelDrafter, Request, Speculation, TableModel};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::mutation::{self, Dice};

/// Kind of input that is mutated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `tokenizer.json`, used on hostile strings.
    Tokenizer,
    /// Chat templates, applied to a conversation.
    Template,
    /// A model directory with one changed file: config, tokenizer, generation settings, weights
    /// (header or data) or index.
    Directory,
    /// A model family of 2024 to 2026: config, weights or GGUF file, and its MTP layer if it has
    /// one.
    Family,
    /// A GGUF file: its header, its description, its tokenizer.
    Gguf,
    /// A model in a GGUF file, loaded and run.
    GgufModel,
    /// The directory of a draft head, or its GGUF file.
    Head,
    /// Table models, used for decoding.
    Table,
    /// Pair files of a target and a draft distribution, passed to every rule.
    Pair,
    /// Recorded distributions: shards, their header and index.
    Trace,
    /// The program's command line.
    Arguments,
    /// Deliberate faults instead of inputs, to test that the harness detects them.
    #[value(hide = true)]
    Planted,
}

impl Kind {
    /// Draws a kind at random, fast kinds more often. `Arguments` is slow: it starts a process per
    /// input.
    fn drawn(dice: &mut Dice) -> Self {
        match dice.below(4_000) {
            0..1_100 => Self::Tokenizer,
            1_100..2_000 => Self::Template,
            2_000..2_300 => Self::Directory,
            2_300..2_600 => Self::Gguf,
            2_600..2_850 => Self::GgufModel,
            2_850..2_900 => Self::Head,
            2_900..3_400 => Self::Table,
            3_400..3_700 => Self::Pair,
            3_700..3_800 => Self::Family,
            3_800..3_996 => Self::Trace,
            _ => Self::Arguments,
        }
    }
}

/// Returns the kind of an input, and the random generator of its mutations.
pub fn begin(seed: u64, number: u64, only: Option<Kind>) -> (Kind, Dice) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    let mut dice = Dice(rng);
    let drawn = Kind::drawn(&mut dice);
    (only.unwrap_or(drawn), dice)
}

/// Creates the input and passes it to its reader. Returns the reader's error if it rejects the
/// input.
///
/// # Panics
/// A reader that panics, or that returns an invalid result.
pub fn run(kind: Kind, number: u64, dice: &mut Dice, folder: &Path) -> Result<()> {
    match kind {
        Kind::Tokenizer => text_files::tokenizer(dice),
        Kind::Template => text_files::template(dice),
        Kind::Directory => models::directory(dice, folder),
        Kind::Family => families::model(dice, folder),
        Kind::Gguf => gguf::read(dice),
        Kind::GgufModel => gguf::model(dice, folder),
        Kind::Head => heads::directory(dice, folder),
        Kind::Table => table(dice),
        Kind::Pair => pair(dice),
        Kind::Trace => traces::trace(dice, folder),
        Kind::Arguments => arguments::run(dice, folder),
        Kind::Planted => planted(number),
    }
}

/// Triggers one of the faults that the harness must detect, in turn.
fn planted(number: u64) -> Result<()> {
    fn deep(level: u64) -> u64 {
        if level == 0 { 0 } else { 1 + std::hint::black_box(deep(std::hint::black_box(level - 1))) }
    }
    match number {
        0 => panic!("planted"),
        1 => drop(std::hint::black_box(vec![1u8; 2 << 30])),
        2 => drop(std::hint::black_box(deep(1 << 40))),
        3 => std::thread::sleep(std::time::Duration::from_secs(600)),
        4 => while std::hint::black_box(true) {},
        5 => {
            let mut all: Vec<Box<[u64; 100]>> = Vec::new();
            while std::hint::black_box(true) {
                all.push(Box::new([number; 100]));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns random distributions as JSON.
fn distributions(dice: &mut Dice, vocabulary: usize) -> serde_json::Value {
    let weights: Vec<f64> =
        (0..vocabulary).map(|_| [1.0, 0.0, 1e-310, 1e-9, 3.0][dice.below(5)]).collect();
    let sum: f64 = weights.iter().sum();
    json!(
        weights
            .iter()
            .map(|w| if sum > 0.0 { w / sum } else { 1.0 / vocabulary as f64 })
            .collect::<Vec<_>>()
    )
}

fn table(dice: &mut Dice) -> Result<()> {
    let vocabulary = 1 + dice.below(4);
    let file = |dice: &mut Dice| {
        let mut document = json!({"vocabulary": vocabulary, "next": {"": distributions(dice,
            vocabulary),
            "0": distributions(dice, vocabulary)}});
        if dice.one_in(2) {
            mutation::json(dice, &mut document);
        }
        let bytes = mutation::written(dice, &document);
        TableModel::from_json("mutant", &String::from_utf8_lossy(&bytes))
    };
    let (target, draft) = (file(dice)?, file(dice)?);
    let drafter =
        ModelDrafter::new(Box::new(draft), &polydraft_engine::Model::info(&target).vocabulary)?;
    let mut engine = Engine::new(Box::new(target), Some(Box::new(drafter)));
    let all = VerifierKind::all();
    let sampling = Sampling {
        temperature: [1.0, 0.0, 1e-30, 1e30, 0.5][dice.below(5)],
        ..Sampling::default()
    };
    let speculation = Speculation::new(
        all[dice.below(all.len())].build()?,
        PolicyKind::paths(1 + dice.below(4), 1 + dice.below(4)).build()?,
    )?;
    let request = Request::new([dice.below(vocabulary) as u32])
        .sampling(sampling)
        .speculation(speculation.with_sampling(sampling))
        .limits(Limits::tokens(dice.below(20)))
        .rng(ChaCha8Rng::seed_from_u64(1));
    let generation = engine.generate(request, &mut |_| true)?;
    ensure!(generation.tokens.len() <= 20, "too many tokens");
    Ok(())
}

fn pair(dice: &mut Dice) -> Result<()> {
    let vocabulary = 1 + dice.below(6);
    let extension = ["json", "json", "npy", "safetensors"][dice.below(4)];
    let contents = match extension {
        "npy" => {
            let header = format!(
                "{{'descr': '<f8', 'fortran_order': False, 'shape': (2, {vocabulary}), }}\n"
            );
            let values = (0..2 * vocabulary).flat_map(|_| (1.0 / vocabulary as f64).to_le_bytes());
            let length = (header.len() as u16).to_le_bytes();
            let mut bytes: Vec<u8> =
                b"\x93NUMPY\x01\x00".iter().copied().chain(length).chain(header.bytes()).collect();
            bytes.extend(values);
            mutation::bytes(dice, &mut bytes, 120);
            bytes
        }
        "safetensors" => {
            let header = json!({
                "target": {"dtype": "F64", "shape": [vocabulary], "data_offsets": [0,
                    8 * vocabulary]},
                "draft": {"dtype": "F64", "shape": [vocabulary], "data_offsets": [8 * vocabulary,
                    16 * vocabulary]},
            });
            let header = header.to_string();
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.bytes());
            bytes.extend((0..2 * vocabulary).flat_map(|_| (1.0 / vocabulary as f64).to_le_bytes()));
            mutation::safetensors(dice, &mut bytes);
            bytes
        }
        _ => {
            let draft = match dice.one_in(4) {
                true => json!([distributions(dice, vocabulary), distributions(dice, vocabulary)]),
                false => distributions(dice, vocabulary),
            };
            let mut document = json!({"target": distributions(dice, vocabulary), "draft": draft});
            if dice.one_in(2) {
                mutation::json(dice, &mut document);
            }
            mutation::written(dice, &document)
        }
    };
    let (target, drafts) = polydraft_lab::distributions_of(extension, &contents)?;
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for kind in RuleKind::all() {
        let scheme = Drafting::ALL[dice.below(Drafting::ALL.len())];
        let count = if scheme == Drafting::Distinct { drafts.len() } else { 1 + dice.below(6) };
        let used = if scheme == Drafting::Distinct { &drafts[..] } else { &drafts[..1] };
        let problem = Problem::new(&target, Proposal::new(Draws { scheme, count }, used)?)?;
        let optimal = acceptance::optimal(&problem).ok();
        let mut rule = kind.build()?;
        let Ok(mut coupling) = couple(rule.as_mut(), problem) else { continue };
        let mut tokens = Vec::new();
        problem.proposal.draw(&mut rng, &mut tokens);
        let probs = coupling.distribution(&tokens)?;
        let sum: f64 = probs.probabilities.iter().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{kind} {scheme} {count}: {sum}");
        let emission = coupling.emit(&tokens, &mut rng)?;
        assert!(target.probability(emission.token) > 0.0, "{kind} {scheme} {count}");
        let accepted = coupling.acceptance(&mut rng);
        if let (Some(optimal), None) = (optimal, accepted.standard_error) {
            assert!(
                accepted.probability <= optimal + 1e-9,
                "{kind} {scheme} {count}: {} {optimal}",
                accepted.probability
            );
        }
    }
    Ok(())
}

/// Writes a file of an input.
fn write(path: &Path, contents: &[u8]) -> Result<()> {
    std::fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the path of a file of this repository, given relative to its root.
fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> Result<Vec<u8>> {
    std::fs::read(repository(path)).map_err(|e| anyhow!("cannot read {path}: {e}"))
}
