//! `polydraft bench speed`: the settings to use for these models on this machine, the speed-up, and
//! the reason.

mod ratios;
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
use ratios::{Measure, by_costs, by_time, interval, rate};
pub use report::{Report, Row};

/// Recommend settings for a target and its draft, with the speed-up and the reason.
///
/// Compares plain decoding, adaptive draft length ('auto') and some fixed trees, alternating every
/// few steps, so that a drift of the machine's speed affects all alike. Ratios are reported twice:
/// from measured times, and estimated from the costs of passes as 'auto' does. The estimates are
/// free of timing noise: with --outputs and --costs repeated runs give the same numbers.
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
    ///
    /// [default: 64; fewer, but at least 16, if --seconds is too short for three prompts]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    max_tokens: Option<u32>,
    /// Approximate duration in seconds; twice as long if three prompts need it.
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

/// Name of the method with adaptive draft length.
const AUTO: &str = "auto";
/// Trees to compare the adaptive one with.
const FIXED: [&str; 6] =
    ["paths:1,1", "paths:1,2", "paths:1,4", "paths:2,2", "paths:2,4", "paths:4,3"];
/// Consecutive steps of a method: enough for its weights to be in the caches as when it runs alone.
const STEPS: usize = 8;
/// Tokens per generation, if there is time.
const DEFAULT_TOKENS: usize = 64;
/// Tokens per generation, however short the time is.
const MIN_TOKENS: usize = 16;
/// Maximum tokens of a tree, reserved after every sequence.
const TREE: usize = 64;

/// Compared method with the statistics of its generations.
struct Method {
    name: String,
    settings: Settings,
    generations: Vec<Statistics>,
}

/// Measures and prints.
///
/// # Errors
/// Fails if options contradict each other, or a model cannot be loaded.
pub fn run(args: Args) -> Result<()> {
    let sampling = Sampling { temperature: args.temperature, ..Sampling::default() };
    sampling.validate().map_err(UsageError::error)?;
    let fixed_trees = fixed_trees(&args)?;
    let prompts = args.prompts.read()?;
    let mut models = args.models.options().load(true, &Terminal)?;
    if models.engine.drafter_count() == 0 {
        let message =
            "bench speed compares drafts with plain decoding: give a draft other than none";
        return Err(UsageError::error(message));
    }
    let mut methods = vec![Method {
        name: "none".to_owned(),
        settings: Settings { sampling, speculation: None },
        generations: Vec::new(),
    }];
    let verifier = "nested-priority".parse()?;
    let costs = costs::read_or_measure(
        args.costs.as_deref(),
        &mut models,
        [&sampling; 2],
        &verifier,
        &Terminal,
    )?;
    let auto = Auto { costs: costs.clone(), ..Auto::default() };
    let auto = Speculation::new(verifier, PolicyKind::Auto(auto), sampling);
    for mut tree in fixed_trees {
        let name = tree.to_string();
        // For example auto:4, or auto with a stopping threshold.
        if let Some(auto) = tree.auto_mut() {
            auto.costs = costs.clone();
        }
        let speculation = Speculation { tree, ..auto.clone() };
        methods.push(Method {
            name,
            settings: Settings { sampling, speculation: Some(speculation) },
            generations: Vec::new(),
        });
    }
    methods.insert(
        1,
        Method {
            name: AUTO.to_owned(),
            settings: Settings { sampling, speculation: Some(auto) },
            generations: Vec::new(),
        },
    );
    let prompts = prompts::encode(&prompts, &models)?;
    let max_tokens = max_tokens(&args, &costs, methods.len());
    let interrupted =
        measure_methods(&args, &costs, max_tokens, &mut models, &prompts, &mut methods)?;
    let report = report(&args, &models, costs, max_tokens, &methods);
    if args.json {
        output::json(&report)?;
    } else {
        report.print()?;
    }
    output::finish(interrupted)
}

/// Returns the fixed trees, the chain of one token first: it shows how often a drafted token is
/// accepted.
fn fixed_trees(args: &Args) -> Result<Vec<PolicyKind>> {
    let verifier: VerifierKind = "nested-priority".parse()?;
    let names: Vec<TreeName> = match &args.trees[..] {
        [] => FIXED.iter().map(|tree| tree.parse()).collect::<polydraft::Result<_>>()?,
        trees => trees.to_vec(),
    };
    let description = Description { models: args.models.options(), ..Description::default() };
    let acceptance = description.acceptance()?;
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

/// Returns the tokens of a generation: as given, or as many as leave time for three prompts, since
/// an interval needs three. The mean method is assumed to take twice as long as plain decoding.
fn max_tokens(args: &Args, costs: &Costs, methods: usize) -> usize {
    let seconds = args.seconds as f64 / 3.0 / (2 * methods) as f64;
    let in_time = seconds / costs.target.seconds(1, &StepContext::default());
    match (args.max_tokens, args.outputs) {
        (Some(given), _) => given as usize,
        (None, Some(_)) => DEFAULT_TOKENS,
        (None, None) => (in_time as usize).clamp(MIN_TOKENS, DEFAULT_TOKENS),
    }
}

/// Decodes prompt by prompt until the time is up, interleaving all methods: a drift of the
/// machine's speed affects all alike. Returns whether the user interrupted.
fn measure_methods(
    args: &Args,
    costs: &Costs,
    max_tokens: usize,
    models: &mut Models,
    prompts: &[Vec<Token>],
    methods: &mut [Method],
) -> Result<bool> {
    let guard = InterruptGuard::install();
    let start = Instant::now();
    let all = args.outputs.map_or(args.seconds, u64::from);
    let done =
        |generations: u64| args.outputs.map_or(start.elapsed().as_secs(), |_| generations).min(all);
    let bar = ProgressBar::new(all)
        .with_style(ProgressStyle::with_template("measuring [{bar:30}] {percent} %, {eta} left")?);
    let limits = Limits { max_tokens: Some(max_tokens), ..Limits::default() };
    for number in 0.. {
        let enough = number >= 3 || start.elapsed().as_secs() >= 2 * args.seconds;
        let ends = done(number) == all && (args.outputs.is_some() || enough);
        if number > 0 && (ends || guard.is_interrupted()) {
            break;
        }
        let prompt = &prompts[number as usize % prompts.len()];
        let group = concurrent_sequences(models, prompt.len() + max_tokens);
        // If memory does not suffice for all methods, they run in groups.
        for methods in methods.chunks_mut(group) {
            interleave(models, costs, prompt, methods, &limits, number)?;
            bar.set_position(done(number));
        }
    }
    bar.finish_and_clear();
    Ok(guard.is_interrupted())
}

/// Returns the number of sequences of `tokens` tokens that fit into memory, trees included.
fn concurrent_sequences(models: &Models, tokens: usize) -> usize {
    let most = models.engine.info().max_sequences;
    models
        .engine
        .token_capacity()
        .map_or(most, |capacity| most.min(capacity / (tokens + TREE)))
        .max(1)
}

/// Decodes one prompt by each method, a few steps of each in turn. The order is random in every
/// round: after a method with other weights, the CPU cache no longer contains the weights of the
/// next method; after one with the same weights it does.
fn interleave(
    models: &mut Models,
    costs: &Costs,
    prompt: &[Token],
    methods: &mut [Method],
    limits: &Limits,
    seed: u64,
) -> Result<()> {
    let Models { engine, language, .. } = models;
    let mut sessions = Vec::new();
    let done = (|| -> Result<()> {
        for method in methods.iter() {
            let mut request = method.settings.request(language, prompt, limits, seeded(seed))?;
            if method.name != AUTO {
                request = request.map_speculation(|drawn| {
                    drawn.map_policy(|policy| Box::new(ByCosts::new(policy, costs.clone())))
                })?;
            }
            sessions.push(engine.open(request)?);
        }
        for session in &mut sessions {
            while engine.prepare(session, usize::MAX)? > 0 {}
        }
        let (mut random, mut active) = (seeded(seed), sessions.iter_mut().collect::<Vec<_>>());
        while active.iter().any(|session| !session.is_done()) {
            active.shuffle(&mut random);
            for session in &mut active {
                for _ in 0..STEPS {
                    engine.step(&mut [&mut **session])?;
                }
            }
        }
        Ok(())
    })();
    let generations: Vec<_> = sessions.into_iter().map(|session| engine.close(session)).collect();
    done?;
    for (method, generation) in methods.iter_mut().zip(generations) {
        method.generations.push(generation?.statistics);
    }
    Ok(())
}

fn report(
    args: &Args,
    models: &Models,
    costs: Costs,
    max_tokens: usize,
    methods: &[Method],
) -> Report {
    let results: Vec<Row> = methods.iter().map(|method| row(method, &methods[0])).collect();
    let fastest =
        results.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio)).map_or(&results[0], |row| row);
    let verdict = verdict(&results, fastest, &costs, &methods[2].generations);
    Report {
        made_by: MadeBy::current(),
        target: models.engine.info().name.clone(),
        draft: models.engine.drafter_name().unwrap_or_default().to_owned(),
        temperature: args.temperature,
        generations: methods[0].generations.len(),
        max_tokens,
        fastest: fastest.tree.clone(),
        costs,
        results,
        tried_before: tried_before(&methods[2..], by_time)
            .map(|speed| speed / rate(&methods[0].generations, by_time)),
        tried_before_by_costs: tried_before(&methods[2..], by_costs),
        verdict,
    }
}

fn row(method: &Method, plain: &Method) -> Row {
    let sum = |measure: fn(&Statistics) -> f64| method.generations.iter().map(measure).sum::<f64>();
    let speed = rate(&method.generations, by_time);
    Row {
        tree: method.name.clone(),
        tokens_per_second: speed,
        ratio: speed / rate(&plain.generations, by_time),
        interval: interval(&method.generations, &plain.generations),
        block_efficiency: sum(|s| s.tokens as f64) / sum(|s| s.target_calls as f64),
        nodes_per_call: sum(|s| s.nodes as f64) / sum(|s| s.target_calls as f64),
        draft_share: sum(|s| s.draft_time.as_secs_f64()) / sum(|s| s.total_time.as_secs_f64()),
        by_costs: method
            .settings
            .speculation
            .is_some()
            .then(|| rate(&method.generations, by_costs)),
    }
}

/// Returns [`Report::tried_before`] in absolute terms.
fn tried_before(fixed_trees: &[Method], measure: Measure) -> Option<f64> {
    let generations = fixed_trees[0].generations.len();
    if generations < 3 {
        return None;
    }
    let mut chosen = Vec::new();
    for generation in 0..generations {
        let others = |method: &Method| {
            rate(
                method
                    .generations
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| *n != generation)
                    .map(|(_, s)| s),
                measure,
            )
        };
        chosen.push(
            &fixed_trees.iter().max_by(|a, b| others(a).total_cmp(&others(b)))?.generations
                [generation],
        );
    }
    Some(rate(chosen, measure))
}

/// Returns the recommended settings and the reason; `chain` are the generations with one drafted
/// token per step.
fn verdict(results: &[Row], fastest: &Row, costs: &Costs, chain: &[Statistics]) -> String {
    let auto = &results[1];
    let context = StepContext::default();
    let (plain, pass) = (costs.target.seconds(1, &context), costs.draft.seconds(1, &context));
    let accepted: usize = chain.iter().flat_map(|s| s.accepted.first()).sum();
    let drafted: usize = chain.iter().flat_map(|s| s.drafted.first()).sum();
    let why = format!(
        "a drafted token is accepted {:.0} % of the time; a draft pass takes {:.2} times a target \
         pass, and a target pass over 4 tokens {:.2} times a pass over one; from this auto \
         estimates a speed-up of {:.2}",
        100.0 * accepted as f64 / (drafted as f64).max(1.0),
        pass / plain,
        costs.target.seconds(4, &context) / plain,
        auto.by_costs.unwrap_or(1.0)
    );
    // Between texts, of the difference to plain decoding; the fastest of many may be so by luck.
    let Some((of_auto, of_fastest)) = auto.interval.zip(fastest.interval) else {
        return format!(
            "too few texts for a recommendation: {}; give more --seconds; {why}",
            chain.len()
        );
    };
    if auto.ratio - of_auto > 1.0 && fastest.ratio - of_fastest <= auto.ratio {
        format!(
            "use --tree auto, the default: {:.2} times as fast as plain decoding; {why}",
            auto.ratio
        )
    } else if fastest.ratio - of_fastest > 1.0 {
        format!(
            "use --tree {}: {:.2} times as fast as plain decoding ({:.2} with --tree auto); {why}",
            fastest.tree, fastest.ratio, auto.ratio
        )
    } else if auto.ratio + of_auto < 1.0 {
        format!(
            "nothing is faster than plain decoding here, --verifier none (auto: {:.2}); {why}",
            auto.ratio
        )
    } else {
        format!(
            "nothing differs from plain decoding by more than noise: give more --seconds, or keep \
             the default (auto: {:.2}); {why}",
            auto.ratio
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Creates a method with these tokens per second in each generation.
    fn method(name: &str, speeds: &[usize]) -> Method {
        let generation = |&tokens: &usize| Statistics {
            tokens,
            total_time: Duration::from_secs(1),
            ..Statistics::default()
        };
        let settings = Settings { sampling: Sampling::default(), speculation: None };
        Method {
            name: name.to_owned(),
            settings,
            generations: speeds.iter().map(generation).collect(),
        }
    }

    #[test]
    fn tried_before_ignores_lucky_generations() {
        // Each method is lucky once; a choice by the other generations never has the lucky one.
        let lucky =
            [method("a", &[16, 10, 10]), method("b", &[10, 16, 10]), method("c", &[10, 10, 16])];
        assert_eq!(tried_before(&lucky, by_time), Some(10.0));
        // A method that is always the best is always chosen.
        let good = [method("a", &[12, 12, 12]), method("b", &[11, 11, 11])];
        assert_eq!(tried_before(&good, by_time), Some(12.0));
        assert_eq!(tried_before(&[method("none", &[10, 10])], by_time), None);
    }
}
