//! Trains a draft head (EAGLE-3) for a model, on text that the model writes itself.
//!
//! It goes in rounds: some text is written, with the target's hidden states; then the head learns
//! from all that there is. Everything lies in a folder and every run goes on from what it finds
//! there; more tokens prolong a run.

mod export;
mod learn;
mod losses;
mod net;
mod ops;
mod origin;
mod store;
#[cfg(test)]
mod tests;
mod text;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use polydraft::Token;
use polydraft_engine::{HiddenState, Model};
use polydraft_models::{LoadOptions, Loaded, Positions, Precision, SequenceLimits, load};
use polydraft_text::Language;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde_json::json;

use learn::{Aim, Figures, Sample, Target, Trainer};
use losses::Loss;
use net::Shape;
use store::Store;
use text::{Batch, Writing};

use crate::{at_least, corpus, trained};

/// A head, and what it costs.
#[derive(Args)]
pub struct HeadArgs {
    /// The model that the head is to draft for: a directory, as for polydraft.
    #[arg(long)]
    target: PathBuf,
    /// Where the head goes.
    #[arg(long)]
    out: PathBuf,
    /// Learn from these texts instead of what the target writes.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Vec<PathBuf>,
    /// Tokens of text to write.
    #[arg(long, default_value_t = 2_000_000)]
    tokens: u64,
    /// How often each token is learned from.
    #[arg(long, default_value_t = 3.0)]
    passes: f64,
    /// Tokens that are written between two looks at the head.
    #[arg(long, default_value_t = 30_000, value_parser = at_least(1))]
    round: usize,
    /// Tokens of a text.
    #[arg(long, default_value_t = 512, value_parser = at_least(text::SHORTEST))]
    longest: usize,
    /// Texts that are written at once.
    #[arg(long, default_value_t = 32, value_parser = at_least(1))]
    together: usize,
    /// Layers of the target whose inputs are read [default: the second, the middle one, the last
    /// but two].
    #[arg(long, value_delimiter = ',')]
    layers: Option<Vec<usize>>,
    /// Tokens that the head can say: the most frequent.
    #[arg(long, default_value_t = 8192, value_parser = at_least(1))]
    draft_vocabulary: usize,
    /// Steps of a draft that are unrolled.
    #[arg(long, default_value_t = 4, value_parser = at_least(1))]
    unroll: usize,
    /// Part of the training that teaches likeness (Kullback-Leibler divergence), before acceptance
    /// itself is taught.
    #[arg(long, default_value_t = 0.6)]
    likeness: f64,
    /// Drafts whose joint acceptance is taught.
    #[arg(long, default_value_t = 1, value_parser = at_least(1))]
    drafts: usize,
    /// Learning rate on the plateau.
    #[arg(long, default_value_t = 0.002)]
    rate: f64,
    /// Part of the training, at the end, over which the rate falls to zero.
    #[arg(long, default_value_t = 0.3)]
    decay: f64,
    /// Texts in a step.
    #[arg(long, default_value_t = 8, value_parser = at_least(1))]
    batch: usize,
    /// Threads.
    #[arg(long, default_value_t = 2, value_parser = at_least(1))]
    pub workers: usize,
    /// How the target's weights are held while it writes.
    #[arg(long, default_value_t = Precision::F32)]
    dtype: Precision,
    /// Write the rows of the target's output matrix with the head, for programs that do not borrow
    /// them.
    #[arg(long)]
    with_output: bool,
    /// Only write the head of the last checkpoint.
    #[arg(long)]
    export: bool,
}

/// The shard whose first texts are only looked at, never learned from.
const HELD_OUT: usize = 0;
/// How many texts these are.
const CHECKED: usize = 48;
/// Steps between checkpoints.
const SAVED: usize = 20;

struct School {
    args: HeadArgs,
    loaded: Loaded,
    store: Store,
    pupil: Trainer,
    folder: PathBuf,
}

/// Text, states (about 4.6 kB a token for states of 576 numbers) and checkpoints go to `work`.
pub fn run(args: HeadArgs, work: Option<PathBuf>) -> Result<()> {
    let mut school = open(args, work)?;
    if !school.args.export {
        school.learn()?;
    }
    school.export()
}

fn open(args: HeadArgs, work: Option<PathBuf>) -> Result<School> {
    let folder = work.unwrap_or_else(|| args.out.join("work"));
    let checkpoint = folder.join("checkpoint.safetensors");
    if args.export {
        trained(&checkpoint)?;
    }
    let options = LoadOptions { precision: args.dtype, ..LoadOptions::default() };
    let mut loaded = load(&args.target, options).context("loading the target")?;
    let model = &mut loaded.model;
    model.limit(SequenceLimits { open: args.together, closed: 0, closed_bytes: 0 });
    let config = model.config().clone();
    ensure!(
        config.embedding == config.hidden,
        "expected a target that embeds tokens in the width of its layers"
    );
    let layers = args
        .layers
        .clone()
        .unwrap_or_else(|| vec![2, config.layers / 2, config.layers.saturating_sub(3)]);
    let read = layers.iter().map(|layer| HiddenState::After(*layer));
    model.capture_hidden_states(&read.chain([HiddenState::Output]).collect::<Vec<_>>())?;
    let Positions::Rotary(rope) = &config.positions else {
        anyhow::bail!(
            "expected a target with rotary positions, got one whose positions are learned"
        )
    };
    let shape = Shape {
        hidden_size: config.hidden,
        intermediate_size: config.intermediate,
        num_attention_heads: config.heads,
        num_key_value_heads: config.key_value_heads,
        head_dim: config.head,
        rope_theta: rope.theta,
        rms_norm_eps: config.norm_epsilon as f32,
        eagle_aux_hidden_state_layer_ids: layers.clone(),
    };
    let norm = loaded.model.last_norm().map(<[f32]>::to_vec);
    let store = Store::open(&folder, (layers.len() + 1) * config.hidden)?;
    let mut info = origin::ModelInfo::new();
    info.insert("--target".into(), origin::fingerprint(&config, norm.as_deref()).into());
    info.insert("--dtype".into(), args.dtype.to_string().into());
    info.insert("--layers".into(), json!(layers));
    origin::keep(&folder, info)?;
    let pupil = Trainer::open(shape, &checkpoint, &mut ChaCha12Rng::seed_from_u64(1))?;
    if let Some(norm) = norm.filter(|_| pupil.steps == 0) {
        pupil.net.begin_with(norm)?;
    }
    Ok(School { args, loaded, store, pupil, folder })
}

impl School {
    /// Tokens that will have been learned from at the end, each time counted.
    fn planned(&self) -> f64 {
        let written = self.written();
        let all = if self.args.text.is_empty() { written.max(self.args.tokens) } else { written };
        all as f64 * self.args.passes
    }

    fn written(&self) -> u64 {
        (0..self.store.len()).map(|text| self.store.tokens(text) as u64).sum()
    }

    fn learn(&mut self) -> Result<()> {
        let checkpoint = self.folder.join("checkpoint.safetensors");
        self.read_files()?;
        let mut recent = Figures::default();
        loop {
            let all = self.written();
            let more = self.args.text.is_empty() && all < self.args.tokens;
            // The first shard is held out, the second begins the lessons.
            while more && self.store.shards() < 2 {
                self.write()?;
            }
            let due = self.args.passes * self.written() as f64;
            let target = self.target()?;
            let held_out: Vec<Sample> = self.samples(&self.held_out())?;
            let clock = Instant::now();
            let before = self.pupil.tokens;
            let kept = self.held_out();
            let learned: Vec<usize> = (0..self.store.len())
                .filter(|text| !kept.contains(text) && self.store.teaches(*text))
                .collect();
            ensure!(
                !learned.is_empty(),
                "expected texts with tokens to learn besides the {} that are held out, got none \
                 among {}: it takes more \
                 text, or a larger --longest",
                kept.len(),
                self.store.len()
            );
            while (self.pupil.tokens as f64) < due {
                // The step fixes the batch, so that a resumed run sees what an unbroken one would
                // have seen.
                let mut rng = ChaCha12Rng::seed_from_u64(self.pupil.steps as u64);
                let batch: Vec<usize> = (0..self.args.batch)
                    .map(|_| learned[rng.random_range(0..learned.len())])
                    .collect();
                let samples = self.samples(&batch)?;
                let (aim, rate) = (self.aim(), self.rate());
                recent.fade(0.97);
                recent.add(&self.pupil.batch(
                    &target,
                    &samples,
                    &aim,
                    self.args.workers,
                    Some(rate),
                )?);
                if self.pupil.steps.is_multiple_of(SAVED) {
                    self.pupil.save(&checkpoint)?;
                    eprintln!(
                        "step {}, {} tokens learned: {recent}",
                        self.pupil.steps, self.pupil.tokens
                    );
                }
            }
            self.pupil.save(&checkpoint)?;
            let speed =
                (self.pupil.tokens - before) as f64 / clock.elapsed().as_secs_f64().max(1e-9);
            let aim = self.aim();
            let found = self.pupil.batch(&target, &held_out, &aim, self.args.workers, None)?;
            println!(
                "{} tokens written, {} learned in {} steps ({speed:.0}/s), {:?}; training: \
                 {recent}; held out: {found}",
                self.written(),
                self.pupil.tokens,
                self.pupil.steps,
                aim.loss
            );
            if !more {
                return Ok(());
            }
            self.export()?;
            self.write()?;
        }
    }

    /// The first texts of what was written; of given texts every thirtieth.
    fn held_out(&self) -> Vec<usize> {
        let texts = match self.args.text.is_empty() {
            true => self.store.of_shard(HELD_OUT),
            false => (0..self.store.len()).step_by(30).collect(),
        };
        texts.into_iter().take(CHECKED).collect()
    }

    fn samples(&self, texts: &[usize]) -> Result<Vec<Sample>> {
        texts.iter().map(|text| Sample::new(&self.loaded.model, self.store.read(*text)?)).collect()
    }

    fn aim(&self) -> Aim {
        let HeadArgs { unroll, drafts, likeness, .. } = self.args;
        let early = (self.pupil.tokens as f64) < likeness * self.planned();
        let loss = if early { Loss::Divergence } else { Loss::Rejection(drafts) };
        Aim { loss, steps: unroll, drafts: drafts.max(2) }
    }

    /// Warm-up, a plateau, then a straight line to zero: the plateau lets a run be prolonged.
    fn rate(&self) -> f64 {
        let left = 1.0 - self.pupil.tokens as f64 / self.planned().max(1.0);
        let warm = (self.pupil.steps + 1) as f64 / 30.0;
        self.args.rate * (left / self.args.decay).clamp(0.0, 1.0) * warm.min(1.0)
    }

    fn write(&mut self) -> Result<()> {
        let writing = Writing { together: self.args.together, longest: self.args.longest };
        let mut rng = ChaCha12Rng::seed_from_u64(1_000_003 + self.store.shards() as u64);
        let Loaded { model, language, .. } = &mut self.loaded;
        let clock = Instant::now();
        let lessons = text::write(model, language, &writing, self.args.round, &mut rng)?;
        let lessons: Vec<Batch> =
            lessons.into_iter().filter(|lesson| lesson.tokens.len() >= text::SHORTEST).collect();
        let tokens: usize = lessons.iter().map(|lesson| lesson.tokens.len()).sum();
        self.store.add(&lessons)?;
        let speed = tokens as f64 / clock.elapsed().as_secs_f64();
        eprintln!("{} texts of {tokens} tokens written, {speed:.0} tokens/s", lessons.len());
        Ok(())
    }

    /// Reads the given texts, a shard for each `--round` tokens: an interrupted run goes on behind
    /// its last shard.
    fn read_files(&mut self) -> Result<()> {
        let HeadArgs { text: paths, round, longest, .. } = &self.args;
        let texts: Vec<String> = paths.iter().map(|path| read_text(path)).collect::<Result<_>>()?;
        let name =
            |text: &String| format!("{} bytes, {:016x}", text.len(), corpus::hash(text.as_bytes()));
        let mut info = origin::ModelInfo::new();
        info.insert("--text".into(), texts.iter().map(name).collect());
        if !texts.is_empty() {
            info.insert("--round".into(), json!(round));
            info.insert("--longest".into(), json!(longest));
        }
        origin::keep(&self.folder, info)?;
        let Loaded { model, language, .. } = &mut self.loaded;
        let mut shard = 0;
        for text in texts {
            for part in language.tokenizer.encode(&text)?.chunks(*round) {
                if shard == self.store.shards() {
                    self.store.add(&text::read(model, part, *longest)?)?;
                }
                shard += 1;
            }
        }
        Ok(())
    }

    /// The words of the head, by what has been written so far. They can change while it learns:
    /// their rows are the target's.
    fn target(&self) -> Result<Target> {
        Target::new(&self.loaded.model, self.vocabulary().0)
    }

    fn vocabulary(&self) -> (Vec<Token>, f64) {
        let Language { vocabulary, .. } = &self.loaded.language;
        let ends = self.loaded.language.answer_end_tokens();
        self.store.frequent(
            self.args.draft_vocabulary.min(vocabulary.size()),
            vocabulary.size(),
            &ends,
        )
    }

    fn export(&self) -> Result<()> {
        let (tokens, covered) = self.vocabulary();
        eprintln!(
            "{} tokens can be said, {:.1} % of what was written",
            tokens.len(),
            100.0 * covered
        );
        export::export(
            &self.pupil.net,
            &self.loaded.model,
            &tokens,
            self.args.with_output,
            &self.args.out,
        )
    }
}

fn read_text(path: &Path) -> Result<String> {
    polydraft_files::read_text(path, polydraft_files::Kind::TEXT)
        .with_context(|| format!("reading {}", path.display()))
}
