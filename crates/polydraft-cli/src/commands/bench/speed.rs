//! `polydraft bench speed`: the settings to use for these models on this machine, the speed-up, and
//! the reason.

mod report;

use std::path::PathBuf;
use std::time::Instant;

use crate::usage::UsageError;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::policy::{Auto, Costs, StepContext, TreeChoice};
use polydraft::{PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{Limits, Statistics};
use polydraft_runtime::{Description, Models, Settings, Speculation, TreeName, costs, seeded};
use rand::seq::SliceRandom;

use super::by_costs::ByCosts;
use crate::args::RunModelArgs;
use crate::interrupts::InterruptGuard;
use crate::output::{self, Terminal};
use crate::prompts::{self, PromptArgs};
use crate::provenance::MadeBy;
pub use report::{Report, Row};

/// Recommend settings for a target and its draft, with the speed-up and the reason.
///
/// Compares plain decoding, adaptive draft length ('auto') and some fixed trees, alternating every
/// few steps, so that a drift of the machine affects all alike. The ratios of measured times stand
/// beside those estimated from the costs of passes, as 'auto' estimates them. The latter are free of
/// the machine's noise: with --outputs and --costs the same seed gives the same numbers.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft bench speed
  polydraft bench speed --target DIR --draft DIR --prompts questions.jsonl --temperature 0.7
  polydraft bench speed --target model.gguf --draft ngram --seconds 20
  polydraft bench speed --tree 3,2,1 --tree delayed:2,2,3
  polydraft bench speed --costs costs.json --outputs 50 --json")]
pub struct Args {
    #[command(flatten)]
    models: RunModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Temperature of target and draft.
    #[arg(long, short = 't', value_name = "T", default_value_t = 1.0)]
    temperature: f64,
    /// Number of tokens per generation.
    #[arg(
        long,
        short = 'n',
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(2..),
    )]
    max_tokens: u32,
    /// Approximate duration in seconds; every method decodes at least one prompt.
    #[arg(
        long,
        value_name = "S",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=86_400),
    )]
    seconds: u64,
    /// Number of prompts that each method decodes, however long that takes.
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "seconds",
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    outputs: Option<u32>,
    /// Tree to compare with 'auto', as for 'generate --tree'. May be repeated.
    ///
    /// [default: paths:1,1, paths:1,2, paths:1,4, paths:2,2, paths:2,4 and paths:4,3]
    #[arg(long = "tree", value_name = "TREE")]
    trees: Vec<TreeName>,
    /// File with the costs of passes, as for 'generate --costs'.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The method of adaptive draft length.
const AUTO: &str = "auto";
/// Trees beside the adaptive one.
const FIXED: [&str; 6] =
    ["paths:1,1", "paths:1,2", "paths:1,4", "paths:2,2", "paths:2,4", "paths:4,3"];
/// Steps of a method before the next one's turn: enough for its weights to be in the caches as when
/// it is alone.
const STEPS: usize = 8;
/// Tokens of a tree at most, for which there must be room after every sequence.
const TREE: usize = 64;
/// Ratios nearer to plain decoding than this are taken for the machine's noise.
const NOISE: f64 = 0.03;

/// One method, and its generations.
struct Way {
    name: String,
    settings: Settings,
    texts: Vec<Statistics>,
}

/// Measures and prints.
///
/// # Errors
/// Options that contradict each other; models that cannot be loaded.
pub fn run(args: Args) -> Result<()> {
    let sampling = Sampling { temperature: args.temperature, ..Sampling::default() };
    sampling.validate().map_err(UsageError::error)?;
    let fixed = fixed(&args)?;
    let prompts = args.prompts.read()?;
    let mut models = args.models.options().load(true, &Terminal)?;
    if models.engine.drafter_count() == 0 {
        let message = "bench speed compares drafts with plain decoding: name a draft, not none";
        return Err(UsageError::error(message));
    }
    let mut ways = vec![Way {
        name: "none".to_owned(),
        settings: Settings { sampling, speculation: None },
        texts: Vec::new(),
    }];
    let verifier = "nested-priority".parse()?;
    let costs = costs::find_or_measure(
        args.costs.as_deref(),
        &args.models.options(),
        &mut models,
        [&sampling; 2],
        &verifier,
        &Terminal,
    )?;
    let auto = Auto { costs: costs.clone(), ..Auto::default() };
    let auto = Speculation::new(verifier, PolicyKind::Auto(auto), sampling);
    for mut tree in fixed {
        let name = tree.to_string();
        // Such as auto:4, or auto cut.
        if let Some(auto) = tree.auto_mut() {
            auto.costs = costs.clone();
        }
        let fixed = Speculation { tree, ..auto.clone() };
        ways.push(Way {
            name,
            settings: Settings { sampling, speculation: Some(fixed) },
            texts: Vec::new(),
        });
    }
    ways.insert(
        1,
        Way {
            name: AUTO.to_owned(),
            settings: Settings { sampling, speculation: Some(auto) },
            texts: Vec::new(),
        },
    );
    let prompts = prompts::encode(&prompts, &models)?;
    let interrupted = measure(&args, &costs, &mut models, &prompts, &mut ways)?;
    let report = report(&args, &models, costs, &ways);
    if args.json {
        output::json(&report)?;
    } else {
        report.print()?;
    }
    output::done(interrupted)
}

/// The fixed trees, that of one token first: it shows how often a drafted token is accepted.
fn fixed(args: &Args) -> Result<Vec<PolicyKind>> {
    let verifier: VerifierKind = "nested-priority".parse()?;
    let names: Vec<TreeName> = match &args.trees[..] {
        [] => FIXED.iter().map(|tree| tree.parse()).collect::<polydraft::Result<_>>()?,
        trees => trees.to_vec(),
    };
    let described = Description { models: args.models.options(), ..Description::default() };
    let acceptance = described.acceptance()?;
    let choice = TreeChoice {
        verifier: Some(&verifier),
        acceptance: acceptance.as_deref(),
        ..TreeChoice::default()
    };
    let chosen = names.iter().map(|name| name.choose(&choice).map_err(UsageError::error));
    let mut trees: Vec<PolicyKind> = chosen.collect::<Result<_>>()?;
    let chain = PolicyKind::chain(1);
    trees.retain(|tree| *tree != chain);
    trees.insert(0, chain);
    for tree in &trees {
        let speculation = Speculation::new(verifier.clone(), tree.clone(), Sampling::default());
        speculation.build().map_err(UsageError::error)?;
    }
    Ok(trees)
}

/// Prompt by prompt until the time is up, all methods at once, each some steps in its turn: a drift
/// of the machine hits all alike, instead of the method that runs at that time. Returns whether the
/// user interrupted.
fn measure(
    args: &Args,
    costs: &Costs,
    models: &mut Models,
    prompts: &[Vec<Token>],
    ways: &mut [Way],
) -> Result<bool> {
    let orderly = InterruptGuard::begin();
    let start = Instant::now();
    let all = args.outputs.map_or(args.seconds, u64::from);
    let done = |texts: u64| args.outputs.map_or(start.elapsed().as_secs(), |_| texts).min(all);
    let bar = ProgressBar::new(all)
        .with_style(ProgressStyle::with_template("measuring [{bar:30}] {percent} %, {eta} left")?);
    let limits = Limits { max_tokens: Some(args.max_tokens as usize), ..Limits::default() };
    for number in 0.. {
        if number > 0 && (done(number) == all || orderly.asked()) {
            break;
        }
        let prompt = &prompts[number as usize % prompts.len()];
        let at_once = at_once(models, prompt.len() + args.max_tokens as usize);
        // A model with little room takes them in groups, one after the other.
        for ways in ways.chunks_mut(at_once) {
            in_turn(models, costs, prompt, ways, &limits, number)?;
            bar.set_position(done(number));
        }
    }
    bar.finish_and_clear();
    Ok(orderly.asked())
}

/// How many sequences of so many tokens there is room for, beside the trees.
fn at_once(models: &Models, tokens: usize) -> usize {
    let most = models.engine.info().max_sequences;
    models.engine.token_capacity().map_or(most, |room| most.min(room / (tokens + TREE))).max(1)
}

/// One prompt by each of some methods, a few steps of each in turn. The order is drawn anew for
/// every round: after a method with other weights a CPU's cache has lost those of the next method,
/// and after one with the same weights it has not.
fn in_turn(
    models: &mut Models,
    costs: &Costs,
    prompt: &[Token],
    ways: &mut [Way],
    limits: &Limits,
    seed: u64,
) -> Result<()> {
    let Models { engine, language, .. } = models;
    let mut sessions = Vec::new();
    let done = (|| -> Result<()> {
        for way in ways.iter() {
            let mut request = way.settings.request(language, prompt, limits, seeded(seed))?;
            if way.name != AUTO {
                request = request.map_speculation(|drawn| {
                    drawn.map_policy(|policy| Box::new(ByCosts::new(policy, costs.clone())))
                })?;
            }
            sessions.push(engine.open(request)?);
        }
        for session in &mut sessions {
            while engine.prepare(session, usize::MAX)? > 0 {}
        }
        let (mut random, mut turns) = (seeded(seed), sessions.iter_mut().collect::<Vec<_>>());
        while turns.iter().any(|session| !session.is_done()) {
            turns.shuffle(&mut random);
            for session in &mut turns {
                for _ in 0..STEPS {
                    engine.step(&mut [&mut **session])?;
                }
            }
        }
        Ok(())
    })();
    let generations: Vec<_> = sessions.into_iter().map(|session| engine.close(session)).collect();
    done?;
    for (way, generation) in ways.iter_mut().zip(generations) {
        way.texts.push(generation?.statistics);
    }
    Ok(())
}

fn report(args: &Args, models: &Models, costs: Costs, ways: &[Way]) -> Report {
    let results: Vec<Row> = ways.iter().map(|way| row(way, &ways[0])).collect();
    let fastest =
        results.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio)).map_or(&results[0], |row| row);
    let verdict = verdict(&results, fastest, &costs, &ways[2].texts);
    Report {
        made_by: MadeBy::here(),
        target: models.engine.info().name.clone(),
        draft: models.engine.drafter_name().unwrap_or_default().to_owned(),
        temperature: args.temperature,
        texts: ways[0].texts.len(),
        fastest: fastest.tree.clone(),
        costs,
        results,
        tried_before: tried_before(&ways[2..], clock)
            .map(|speed| speed / rate(&ways[0].texts, clock)),
        tried_before_by_costs: tried_before(&ways[2..], by_costs),
        verdict,
    }
}

fn row(way: &Way, plain: &Way) -> Row {
    let sum = |of: fn(&Statistics) -> f64| way.texts.iter().map(of).sum::<f64>();
    let speed = rate(&way.texts, clock);
    Row {
        tree: way.name.clone(),
        tokens_per_second: speed,
        ratio: speed / rate(&plain.texts, clock),
        block_efficiency: sum(|s| s.tokens as f64) / sum(|s| s.target_calls as f64),
        nodes_per_call: sum(|s| s.nodes as f64) / sum(|s| s.target_calls as f64),
        draft_share: sum(|s| s.draft_time.as_secs_f64()) / sum(|s| s.total_time.as_secs_f64()),
        by_costs: way.settings.speculation.is_some().then(|| rate(&way.texts, by_costs)),
    }
}

/// What a generation gave, and what it took.
type Account = fn(&Statistics) -> (f64, f64);

/// Tokens, and seconds.
fn clock(text: &Statistics) -> (f64, f64) {
    (text.tokens as f64, text.total_time.as_secs_f64())
}

/// Seconds that plain decoding would have taken, and those it took, both by the costs of passes.
fn by_costs(text: &Statistics) -> (f64, f64) {
    text.choices.as_ref().map_or((0.0, 0.0), |choices| (choices.plain_seconds, choices.seconds))
}

/// What all generations together gave by what they took. Methods that take turns have had the same
/// machine, so that no median is needed, and what one generation gained by luck counts as much as
/// what another lost.
fn rate<'s>(texts: impl IntoIterator<Item = &'s Statistics>, of: Account) -> f64 {
    let add = |(gave, took): (f64, f64), text: (f64, f64)| (gave + text.0, took + text.1);
    let (gave, took) = texts.into_iter().map(of).fold((0.0, 0.0), add);
    gave / took
}

/// As [`Report::tried_before`], not yet relative to anything.
fn tried_before(fixed: &[Way], of: Account) -> Option<f64> {
    let texts = fixed[0].texts.len();
    if texts < 3 {
        return None;
    }
    let mut had = Vec::new();
    for text in 0..texts {
        let others = |way: &Way| {
            rate(way.texts.iter().enumerate().filter(|(n, _)| *n != text).map(|(_, s)| s), of)
        };
        had.push(&fixed.iter().max_by(|a, b| others(a).total_cmp(&others(b)))?.texts[text]);
    }
    Some(rate(had, of))
}

/// The recommended settings, and the reason; `chain` are the generations with one drafted token a
/// step.
fn verdict(results: &[Row], fastest: &Row, costs: &Costs, chain: &[Statistics]) -> String {
    let auto = &results[1];
    let of_one = StepContext::default();
    let (plain, pass) = (costs.target.seconds(1, &of_one), costs.draft.seconds(1, &of_one));
    let accepted: usize = chain.iter().flat_map(|s| s.accepted.first()).sum();
    let drafted: usize = chain.iter().flat_map(|s| s.drafted.first()).sum();
    let why = format!(
        "a drafted token is accepted {:.0} % of the time; a pass of the draft costs {:.2} of the \
         target's, and the target's pass over 4 tokens {:.2} of that over one, from which auto \
         estimates {:.2}",
        100.0 * accepted as f64 / (drafted as f64).max(1.0),
        pass / plain,
        costs.target.seconds(4, &of_one) / plain,
        auto.by_costs.unwrap_or(1.0)
    );
    if auto.ratio > 1.0 + NOISE && auto.ratio >= fastest.ratio * (1.0 - NOISE) {
        format!(
            "use --tree auto, the default: {:.2} times as fast as plain decoding; {why}",
            auto.ratio
        )
    } else if fastest.ratio > 1.0 + NOISE {
        format!(
            "use --tree {}: {:.2} times as fast as plain decoding ({:.2} with --tree auto); {why}",
            fastest.tree, fastest.ratio, auto.ratio
        )
    } else {
        format!(
            "nothing is faster than plain decoding here, --verifier none (auto: {:.2}); {why}",
            auto.ratio
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// With so many tokens per second in each text.
    fn way(name: &str, speeds: &[usize]) -> Way {
        let text = |&tokens: &usize| Statistics {
            tokens,
            total_time: Duration::from_secs(1),
            ..Statistics::default()
        };
        let settings = Settings { sampling: Sampling::default(), speculation: None };
        Way { name: name.to_owned(), settings, texts: speeds.iter().map(text).collect() }
    }

    #[test]
    fn rng_does_not_make_a_tree_fast() {
        // Each is lucky once: whoever goes by the other outputs never has the lucky one.
        let lucky = [way("a", &[16, 10, 10]), way("b", &[10, 16, 10]), way("c", &[10, 10, 16])];
        assert_eq!(tried_before(&lucky, clock), Some(10.0));
        // One that is the best everywhere is had everywhere.
        let good = [way("a", &[12, 12, 12]), way("b", &[11, 11, 11])];
        assert_eq!(tried_before(&good, clock), Some(12.0));
        assert_eq!(tried_before(&[way("none", &[10, 10])], clock), None);
    }
}
