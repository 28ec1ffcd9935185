//! `polydraft couple`: token-level rules on given laws.

mod laws;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use polydraft::coupling::{Coupling, Problem, TokenRule};
use polydraft::{Distribution, Drafting, Error, Proposal, Token, acceptance, couple};
use polydraft_reference::optimum;
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde::Serialize;

use crate::output::{self, Usage, note};
use crate::rules::Rule;

/// Run token-level rules on a target law and a draft law.
///
/// Tells how often a rule emits one of the drafts, how near that is to the best possible, and, with --given, the exact
/// law of the token it emits. Without --rule it compares all rules, the fast ones first, then the reference solvers
/// (linear-program, max-flow, slackness, global-resolution) as far as the problem is small enough for them.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The laws are one of
  a JSON file       {\"target\": [0.5, 0.3, 0.2], \"draft\": [0.2, 0.3, 0.5]}
  a .npy file       of shape [2, vocabulary], the target first
  a .safetensors    file with tensors 'target' and 'draft'
  --target, --draft .npy files of shape [vocabulary]
For distinct drafts 'draft' is a list of laws, one for each.

Examples:
  echo '{\"target\": [0.5, 0.3, 0.2], \"draft\": [0.2, 0.3, 0.5]}' | polydraft couple
  polydraft couple pair.json --rule priority --drafts 4 --json
  polydraft couple pair.json --rule recursive --drafting without-replacement --drafts 2 --given 2,1
  polydraft couple pair.json --rule importance --set truncation=8 --set alphabet=null
  polydraft couple pair.json --rule global-resolution --set tau=1e-4 --set mode=published
  polydraft couple --target p.npy --draft q.npy --drafts 8 --normalize")]
pub struct Args {
    /// The laws; '-' or nothing is JSON on standard input.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The target's law, a .npy file.
    #[arg(long, value_name = "FILE", requires = "draft", conflicts_with = "file")]
    target: Option<PathBuf>,
    /// The draft's law, a .npy file. For distinct drafts it is repeated.
    #[arg(long, value_name = "FILE", requires = "target")]
    draft: Vec<PathBuf>,
    /// Normalise laws that sum to 1 within 0.001 only.
    #[arg(long)]
    normalize: bool,
    /// The rule [default: all that fit].
    #[arg(long, short, value_name = "NAME", value_parser = rule_name)]
    rule: Option<String>,
    /// A setting of the rule, as its JSON name and value. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", requires = "rule", value_parser = setting)]
    set: Vec<(String, serde_json::Value)>,
    /// Number of drafts [default: 2, or as many as there are draft laws; 1 for 'single'].
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    drafts: Option<u32>,
    /// How drafts are drawn: iid, without-replacement, greedy, hub or distinct [default: iid; hub for 'hub', distinct for
    /// several draft laws; without a rule all].
    #[arg(long, value_name = "SCHEME")]
    drafting: Option<Drafting>,
    /// Print the law of the emitted token given these drafts, in the order drawn.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', requires = "rule")]
    given: Option<Vec<Token>>,
    /// Seed of the acceptances that have to be estimated.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print JSON: an object for one rule, else a list of them.
    #[arg(long)]
    json: bool,
}

fn rule_name(name: &str) -> Result<String, String> {
    Rule::named(name).map(|rule| rule.name().to_owned()).map_err(|error| error.to_string())
}

fn setting(text: &str) -> Result<(String, serde_json::Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((name.to_owned(), value))
}

/// What is found out about one rule.
#[derive(Serialize)]
struct Report {
    rule: &'static str,
    drafts: usize,
    drafting: Drafting,
    acceptance: f64,
    /// None where the best acceptance is too expensive to compute.
    optimal: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    law: Option<Vec<f64>>,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    standard_error: Option<f64>,
    /// How far the emitted law may be off (L1), and the acceptance, of a rule that is not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    off_by_at_most: Option<OffBy>,
    /// Another rule did the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<Fallback>,
    /// Microseconds to prepare the rule and to emit one token, the median.
    time_us: f64,
}

#[derive(Serialize)]
struct OffBy {
    law: f64,
    acceptance: f64,
}

#[derive(Serialize)]
struct Fallback {
    rule: &'static str,
    reason: String,
}

/// How the acceptance was found.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    Exact,
    Estimated,
}

/// Reads the laws, works, and prints.
pub fn run(args: Args) -> Result<()> {
    let laws = match &args.target {
        Some(target) => laws::from_arrays(target, &args.draft, args.normalize)?,
        None => laws::from_file(args.file.as_deref(), args.normalize)?,
    };
    let Some(name) = &args.rule else {
        return table(&compare(&args, &laws)?, args.json);
    };
    let rule = configured(name, &args.set)?;
    let scheme = match (args.drafting, rule.name()) {
        (Some(scheme), _) => scheme,
        _ if laws.drafts.len() > 1 => Drafting::Distinct,
        (_, "hub") => Drafting::Hub,
        _ => Drafting::Iid,
    };
    let default = if rule.name() == "single" { 1 } else { laws.default_count() };
    let count = args.drafts.map_or(default, |count| count as usize);
    let problem = laws.problem(scheme, count).map_err(Usage::error)?;
    let mut working = rule.build().map_err(Usage::error)?;
    let mut report = report(&rule, working.as_mut(), problem, args.seed)?;
    if let Some(given) = &args.given {
        let mut coupling = coupling(working.as_mut(), problem)?;
        let law = coupling.law(given).map_err(Usage::error)?;
        if problem.proposal.probability(given) == 0.0 {
            return Err(Usage::error(format!("drafts {} are never drawn by {scheme} drafting", list(given))));
        }
        report.law = Some(law.probabilities);
    }
    if args.json {
        return output::json(&report);
    }
    describe(&report, args.given.as_deref())
}

/// The rule with its settings.
fn configured(name: &str, settings: &[(String, serde_json::Value)]) -> Result<Rule> {
    let mut fields = serde_json::Map::new();
    fields.insert("rule".to_owned(), name.into());
    for (setting, value) in settings {
        if setting == "rule" || fields.insert(setting.clone(), value.clone()).is_some() {
            return Err(Usage::error(format!("setting {setting} is given twice")));
        }
    }
    Rule::configured(fields).map_err(|error| Usage::error(format!("--set for {name}: {error}")))
}

fn coupling<'a>(rule: &'a mut dyn TokenRule, problem: Problem<'a>) -> Result<Coupling<'a>> {
    couple(rule, problem).map_err(|error| match error {
        Error::Unsupported { .. } => Usage::error(error),
        _ => error.into(),
    })
}

fn report(rule: &Rule, working: &mut dyn TokenRule, problem: Problem, seed: u64) -> Result<Report> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut coupling = coupling(working, problem)?;
    let acceptance = coupling.acceptance(&mut rng);
    let fallback = coupling.fallback().map(|f| Fallback { rule: f.rule, reason: f.reason.clone() });
    Ok(Report {
        rule: rule.name(),
        drafts: problem.proposal.count(),
        drafting: problem.proposal.scheme(),
        acceptance: acceptance.probability,
        optimal: acceptance::optimal(&problem)
            .ok()
            .or_else(|| optimum::by_minimum_cut(&problem).ok().map(|optimum| optimum.acceptance)),
        law: None,
        status: if acceptance.standard_error.is_some() { Status::Estimated } else { Status::Exact },
        standard_error: acceptance.standard_error,
        off_by_at_most: rule.bounds().map(|(law, acceptance)| OffBy { law, acceptance }),
        fallback,
        time_us: time(working, problem, &mut rng)?.as_secs_f64() * 1e6,
    })
}

/// The median of several times to prepare the rule and emit a token.
fn time(rule: &mut dyn TokenRule, problem: Problem, rng: &mut ChaCha12Rng) -> Result<Duration> {
    let mut drafts = Vec::new();
    let mut times = Vec::new();
    let begin = Instant::now();
    for _ in 0..100 {
        problem.proposal.draw(rng, &mut drafts);
        let start = Instant::now();
        coupling(rule, problem)?.emit(&drafts, rng)?;
        times.push(start.elapsed());
        if begin.elapsed() > Duration::from_millis(50) {
            break;
        }
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// All rules, each with all schemes it is made for.
fn compare(args: &Args, laws: &laws::Laws) -> Result<Vec<Report>> {
    let count = args.drafts.map_or(laws.default_count(), |count| count as usize);
    let schemes = match args.drafting {
        Some(scheme) => vec![scheme],
        None if laws.drafts.len() > 1 => vec![Drafting::Distinct],
        None => Drafting::ALL.into_iter().filter(|scheme| *scheme != Drafting::Distinct).collect(),
    };
    let mut reports = Vec::new();
    for rule in Rule::all_quick()? {
        let mut working = rule.build()?;
        // One draft is drawn in the same way by all schemes.
        let (schemes, count) = if rule.name() == "single" && laws.drafts.len() == 1 {
            (&[Drafting::Iid][..], 1)
        } else {
            (&schemes[..], count)
        };
        for &scheme in schemes {
            let problem = laws.problem(scheme, count).map_err(Usage::error)?;
            let prepared = couple(working.as_mut(), problem).map(|_| ());
            match prepared {
                Ok(()) => reports.push(report(&rule, working.as_mut(), problem, args.seed)?),
                Err(Error::Unsupported { .. }) => {}
                Err(error @ (Error::TooLarge { .. } | Error::Solver { .. })) => {
                    note(format_args!("left out, {scheme} drafts: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(reports)
}

fn table(reports: &[Report], json: bool) -> Result<()> {
    if json {
        return output::json(&reports);
    }
    let mut text = String::new();
    let bold = Style::new().bold();
    writeln!(
        text,
        "{bold}{:<17} {:<20} {:>6} {:>12} {:>12} {:>9} {:>10}{bold:#}",
        "rule", "drafting", "drafts", "acceptance", "optimum", "share", "time"
    )?;
    for report in reports {
        let optimal = report.optimal.map_or("-".to_owned(), |optimal| format!("{optimal:.6}"));
        writeln!(
            text,
            "{:<17} {:<20} {:>6} {:>12} {optimal:>12} {:>9} {:>10}{}{}",
            report.rule,
            report.drafting,
            report.drafts,
            format!("{:.6}", report.acceptance),
            share(report),
            microseconds(report.time_us),
            report.standard_error.map_or(String::new(), |error| format!("  (± {error:.6})")),
            report.fallback.as_ref().map_or(String::new(), |fallback| format!("  (by {})", fallback.rule))
        )?;
    }
    print(&text)
}

fn share(report: &Report) -> String {
    let optimal = report.optimal.filter(|optimal| *optimal > 0.0);
    optimal.map_or("-".to_owned(), |optimal| format!("{:.2} %", 100.0 * report.acceptance / optimal))
}

fn microseconds(time: f64) -> String {
    if time < 1e3 { format!("{time:.2} µs") } else { format!("{:.2} ms", time / 1e3) }
}

fn list(tokens: &[Token]) -> String {
    tokens.iter().map(Token::to_string).collect::<Vec<_>>().join(", ")
}

/// Tokens of a law that are printed for people; --json has all.
const SHOWN: usize = 20;
/// A probability this small is a rounding error.
const ROUNDING: f64 = 1e-15;

fn describe(report: &Report, given: Option<&[Token]>) -> Result<()> {
    let mut text = String::new();
    writeln!(text, "rule        {}, {} drafts, {}", report.rule, report.drafts, report.drafting)?;
    let error = report.standard_error.map_or(String::new(), |error| format!(" ± {error:.6}"));
    writeln!(text, "acceptance  {:.6}{error}", report.acceptance)?;
    match report.optimal {
        Some(optimal) => writeln!(text, "optimum     {optimal:.6}, share {}", share(report))?,
        None => writeln!(text, "optimum     too expensive to compute for these drafts")?,
    }
    writeln!(text, "time        {}", microseconds(report.time_us))?;
    if let Some(OffBy { law, acceptance }) = &report.off_by_at_most {
        writeln!(
            text,
            "not exact   published bounds: law off by {law:.1e} in L1, acceptance by {acceptance:.1e}"
        )?;
    }
    if let Some(Fallback { rule, reason }) = &report.fallback {
        writeln!(text, "fallback    {rule}, since {reason}")?;
    }
    if let (Some(law), Some(given)) = (&report.law, given) {
        writeln!(text, "\nthe emitted token, given {}:", list(given))?;
        let mut tokens: Vec<_> = law.iter().copied().enumerate().filter(|(_, p)| *p > ROUNDING).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        let green = Style::new().fg_color(Some(AnsiColor::Green.into()));
        for (token, probability) in tokens.iter().take(SHOWN) {
            let drafted = given.contains(&(*token as Token));
            let (style, mark) = if drafted { (green, "drafted") } else { (Style::new(), "not drafted") };
            writeln!(text, "{style}{token:>8}  {probability:.6}  {mark}{style:#}")?;
        }
        let rest: f64 = tokens.iter().skip(SHOWN).map(|(_, p)| p).sum();
        if tokens.len() > SHOWN {
            writeln!(text, "  others  {rest:.6}  {} tokens", tokens.len() - SHOWN)?;
        }
    }
    print(&text)
}

fn print(text: &str) -> Result<()> {
    let mut out = anstream::AutoStream::auto(io::stdout().lock());
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// The laws that a problem is made of.
impl laws::Laws {
    /// As many drafts as there are laws for them; two if one law serves all.
    fn default_count(&self) -> usize {
        self.drafts.len().max(2)
    }

    fn problem(&self, scheme: Drafting, count: usize) -> Result<Problem<'_>, Error> {
        let drafts: &[Distribution] = &self.drafts;
        Problem::new(&self.target, Proposal::new(scheme, drafts, count)?)
    }
}
