//! `polydraft bench decode`: tokens per second of ways to decode, side by side.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::{DraftTree, Sampling, Token, VerifierKind};
use polydraft_candle::Loaded;
use polydraft_engine::{Decoder, Generation, Limits, Model, Settings, Speculation, Statistics};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde::{Deserialize, Serialize};

use super::{machine, median};
use crate::models::ModelArgs;
use crate::output::{self, Usage, note};

/// Compare plain decoding with speculation at several depths, in one run.
///
/// First every way to decode must give the tokens of plain decoding at temperature 0 on every prompt (but for ties
/// within rounding, which are counted); then they are timed in turn, prompt by prompt, so that a drift of the machine hits all alike. Ratios are medians over the rounds.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    /// Prompts, one JSON object with "prompt" a line [default: the project's own, Rust code for the demo pair].
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Depths of speculation to compare.
    #[arg(long, value_name = "L,..", default_value = "2,4,8", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    depths: Vec<u32>,
    /// Temperature of the timed runs.
    #[arg(long, short = 't', default_value_t = 1.0)]
    temperature: f64,
    /// Tokens to generate per prompt.
    #[arg(long, short = 'n', default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Rounds over all prompts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The prompts that the project measures with.
const PROMPTS: &str = include_str!("../../../../../bench/prompts.jsonl");

#[derive(Deserialize)]
struct Prompt {
    prompt: String,
}

/// One way to decode.
struct Way {
    name: String,
    speculation: Option<Speculation>,
    rounds: Vec<Round>,
}

/// Sums over the prompts of one round.
#[derive(Default)]
struct Round {
    seconds: f64,
    tokens: usize,
    calls: usize,
    draft: f64,
    target: f64,
    verify: f64,
}

impl Round {
    fn add(&mut self, s: &Statistics) {
        self.seconds += s.total_time.as_secs_f64();
        self.tokens += s.tokens;
        self.calls += s.target_calls;
        self.draft += s.draft_time.as_secs_f64();
        self.target += s.target_time.as_secs_f64();
        self.verify += s.verify_time.as_secs_f64();
    }

    fn speed(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

#[derive(Serialize)]
struct Report {
    machine: String,
    version: &'static str,
    prompts: usize,
    max_tokens: u32,
    temperature: f64,
    rounds: u32,
    /// Texts that left plain decoding's at temperature 0 between two tokens whose logits differ by rounding only.
    ties: usize,
    results: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    block_efficiency: f64,
    /// Standard error over the rounds.
    block_efficiency_error: f64,
    tokens_per_second: f64,
    /// Of the speed of plain decoding, in the same round.
    ratio: f64,
    draft_share: f64,
    target_share: f64,
    verify_share: f64,
}

pub fn run(args: Args) -> Result<()> {
    let sampling = Sampling { temperature: args.temperature, ..Sampling::default() };
    sampling.validate().map_err(Usage::error)?;
    let prompts = read_prompts(&args)?;
    let (mut target, draft) = args.models.load(true)?;
    let mut draft = draft.context("no draft model")?;
    let prompts: Vec<Vec<Token>> = prompts.iter().map(|p| target.text.encode(p)).collect::<Result<_, _>>()?;
    let mut ways = vec![Way { name: "none".to_owned(), speculation: None, rounds: Vec::new() }];
    for &depth in &args.depths {
        let verifier = VerifierKind::Token;
        let speculation = Speculation { verifier, depth: depth as usize, sampling };
        ways.push(Way {
            name: format!("{verifier}, L = {depth}"),
            speculation: Some(speculation),
            rounds: Vec::new(),
        });
    }

    let total = prompts.len() * ways.len() * (1 + args.rounds as usize);
    let bar = ProgressBar::new(total as u64)
        .with_style(ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} texts, {eta} left")?);
    bar.set_message("checking answers");
    let mut ties = 0;
    for (number, prompt) in prompts.iter().enumerate() {
        let mut expected = None;
        for way in &ways {
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            let speculation = way.speculation.map(|s| Speculation { sampling: greedy, ..s });
            let settings = Settings { sampling: greedy, speculation };
            let found = generate(&mut target, &mut draft, settings, prompt, args.max_tokens, 0)?.tokens;
            let expected = expected.get_or_insert_with(|| found.clone());
            if let Some(gap) = difference(&mut target, prompt, expected, &found)? {
                ensure!(
                    gap <= args.models.rounding(),
                    "{} differs from plain decoding at temperature 0 on prompt {}, where their logits are {gap:e} apart",
                    way.name,
                    number + 1
                );
                ties += 1;
            }
            bar.inc(1);
        }
    }
    bar.set_message("timing");
    for round in 0..args.rounds {
        ways.iter_mut().for_each(|way| way.rounds.push(Round::default()));
        for (number, prompt) in prompts.iter().enumerate() {
            let seed = u64::from(round) << 32 | number as u64;
            for way in &mut ways {
                let settings = Settings { sampling, speculation: way.speculation };
                let generation = generate(&mut target, &mut draft, settings, prompt, args.max_tokens, seed)?;
                if let Some(round) = way.rounds.last_mut() {
                    round.add(&generation.statistics);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();

    let plain: Vec<f64> = ways[0].rounds.iter().map(Round::speed).collect();
    let report = Report {
        machine: machine(),
        version: env!("CARGO_PKG_VERSION"),
        prompts: prompts.len(),
        max_tokens: args.max_tokens,
        temperature: args.temperature,
        rounds: args.rounds,
        ties,
        results: ways.iter().map(|way| row(way, &plain)).collect(),
    };
    if args.json {
        return output::json(&report);
    }
    print(&report)
}

/// Where two texts part, how far apart the target's logits of the two tokens are; `None` if the texts are equal.
fn difference(target: &mut Loaded, prompt: &[Token], a: &[Token], b: &[Token]) -> Result<Option<f32>> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (Some(&a_next), Some(&b_next)) = (a.get(common), b.get(common)) else {
        ensure!(a.len() == b.len(), "two texts of {} and {} tokens at temperature 0", a.len(), b.len());
        return Ok(None);
    };
    target.model.reset();
    target.model.extend(&[prompt, &a[..common]].concat())?;
    target.model.score(&DraftTree::new())?;
    let logits = target.model.logits(DraftTree::ROOT);
    Ok(Some((logits[a_next as usize] - logits[b_next as usize]).abs()))
}

fn read_prompts(args: &Args) -> Result<Vec<String>> {
    let (name, text) = match &args.prompts {
        None => ("bench/prompts.jsonl".to_owned(), PROMPTS.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            (name.clone(), std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?)
        }
    };
    let mut prompts = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let prompt: Prompt = serde_json::from_str(line)
            .with_context(|| format!("{name}, line {}: expected {{\"prompt\": \"...\"}}", number + 1))?;
        prompts.push(prompt.prompt);
    }
    ensure!(!prompts.is_empty(), "{name} has no prompts");
    Ok(prompts)
}

fn generate(
    target: &mut Loaded,
    draft: &mut Loaded,
    settings: Settings,
    prompt: &[Token],
    max_tokens: u32,
    seed: u64,
) -> Result<Generation> {
    let mut decoder = Decoder::new(&mut target.model, Some(&mut draft.model), settings)?;
    // Texts of one length: an early end would compare different amounts of work.
    let limits = Limits { max_tokens: Some(max_tokens as usize), ..Limits::default() };
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut text = target.text.stream(prompt);
    Ok(Generation::run(&mut decoder, prompt, &limits, &mut text, &mut rng, &mut |_| true)?)
}

fn row(way: &Way, plain: &[f64]) -> Row {
    let efficiencies: Vec<f64> = way.rounds.iter().map(|r| r.tokens as f64 / r.calls as f64).collect();
    let count = efficiencies.len() as f64;
    let mean = efficiencies.iter().sum::<f64>() / count;
    let variance = efficiencies.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let share = |part: fn(&Round) -> f64| median(way.rounds.iter().map(|r| part(r) / r.seconds));
    Row {
        name: way.name.clone(),
        block_efficiency: mean,
        block_efficiency_error: (variance / count).sqrt(),
        tokens_per_second: median(way.rounds.iter().map(Round::speed)),
        ratio: median(way.rounds.iter().zip(plain).map(|(r, plain)| r.speed() / plain)),
        draft_share: share(|r| r.draft),
        target_share: share(|r| r.target),
        verify_share: share(|r| r.verify),
    }
}

fn print(report: &Report) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}\n{} prompts, {} tokens each, temperature {}, medians of {} rounds; answers checked at temperature 0\n",
        report.machine, report.prompts, report.max_tokens, report.temperature, report.rounds
    )?;
    writeln!(
        out,
        "{:<16} {:>16} {:>10} {:>8}   {:>6} {:>7} {:>9}",
        "verifier", "block efficiency", "tokens/s", "ratio", "draft", "target", "verifier"
    )?;
    for r in &report.results {
        writeln!(
            out,
            "{:<16} {:>8.2} ± {:<5.2} {:>10.0} {:>7.2}x   {:>4.0} % {:>5.0} % {:>7.0} %",
            r.name,
            r.block_efficiency,
            r.block_efficiency_error,
            r.tokens_per_second,
            r.ratio,
            100.0 * r.draft_share,
            100.0 * r.target_share,
            100.0 * r.verify_share
        )?;
    }
    if report.ties > 0 {
        note(format_args!("{} of the checked texts parted at a tie within rounding", report.ties));
    }
    if report.rounds < 3 {
        note("fewer than 3 rounds: the medians say little");
    }
    Ok(())
}
