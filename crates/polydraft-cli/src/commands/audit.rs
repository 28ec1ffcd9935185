//! `polydraft audit`: is a server's speculative decoding lossless?

mod reference;

use std::path::PathBuf;
use std::time::Duration;

use crate::usage::is_usage;
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft_audit::{
    Address, Error, Finding, Listener, Options, Report, Verdict, audit, format_p_value,
    format_percent, page,
};

use crate::args::probability;
use crate::interrupts::{self, InterruptGuard};
use crate::output;
use crate::save::Save;
use reference::ReferenceServer;

/// Test over HTTP whether a server's speculative decoding is lossless.
///
/// Speculation promises the model's own distribution. The audit tests this promise from outside, on
/// any server with OpenAI's or llama.cpp's API. It compares the tokens after the first one of an
/// answer with the model's answers to requests of a single token, in which drafts play no part. It
/// also checks greedy outputs, penalties, biases, end tokens, stop strings, grammars,
/// log-probabilities, seeds, streams and the independence of requests. The exit code is 0 for
/// lossless as far as tested, 1 for a fault, 3 for too little data, and 2 if the audit could not be
/// made. A setting that the server takes and ignores is reported as such, and is no fault.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft audit http://127.0.0.1:8000
  polydraft audit http://gpu-box:8000/v1 --model Qwen/Qwen3-8B --html report.html
  polydraft audit URL --reference http://127.0.0.1:8001      # the same model, no speculation
  polydraft audit URL --target model.gguf                    # the truth computed here
  polydraft audit URL --minutes 30 --save answers.jsonl      # goes on where it was cut off
  polydraft audit URL --check temperature-1 --check greedy")]
pub struct Args {
    /// Address of the server, with or without /v1.
    #[arg(value_name = "URL", required_unless_present = "list")]
    url: Option<String>,
    /// Model name at the server [default: the only model].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Key that the server requires, sent as 'Authorization: Bearer KEY'.
    ///
    /// [default: the environment variable POLYDRAFT_API_KEY if it is set]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Server with the same model and no speculation, whose answers are the reference.
    ///
    /// Needed if the server returns no log-probabilities.
    #[arg(long, value_name = "URL", conflicts_with = "target")]
    reference: Option<String>,
    /// Model name at the reference server [default: the only model].
    #[arg(hide_short_help = true, long, value_name = "NAME", requires = "reference")]
    reference_model: Option<String>,
    /// File or directory of the same model: the reference is computed here.
    ///
    /// Computed without speculation.
    #[arg(long, value_name = "MODEL")]
    target: Option<String>,
    /// Run only this check. May be repeated [default: all].
    #[arg(long = "check", value_name = "NAME")]
    checks: Vec<String>,
    /// List the checks and exit.
    #[arg(long)]
    list: bool,
    /// Maximum number of requests.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    requests: u32,
    /// Maximum duration in minutes [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    minutes: Option<u32>,
    /// Number of concurrent requests.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=256),
    )]
    connections: u32,
    /// Maximum probability that a lossless server is accused, over all checks.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "P",
        default_value_t = 1e-3,
        value_parser = probability,
    )]
    error_rate: f64,
    /// Error that the audit finds in 19 of 20 runs, in total variation per token.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "TV",
        default_value_t = 0.03,
        value_parser = probability,
    )]
    sensitivity: f64,
    /// Differences up to this, in total variation, count as rounding.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "TV",
        default_value_t = 0.002,
        value_parser = probability,
    )]
    tolerance: f64,
    /// File in which all answers are stored.
    ///
    /// Answers that it already contains are not requested again: an interrupted audit continues,
    /// and can be evaluated without the server.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the report as an HTML page, with the requests that show a fault.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Seed of the audit's random decisions.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Runs the audit.
///
/// # Errors
/// Fails if the server cannot be reached, and on a verdict other than lossless.
pub fn run(args: Args) -> Result<()> {
    if args.list {
        let checks = polydraft_audit::names();
        let width = checks.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, title) in checks {
            anstream::println!("{name:width$}  {title}");
        }
        return Ok(());
    }
    // Exit code 1 means a fault of the server: all other failures have another code.
    let (report, interrupted) = run_audit(&args).map_err(|error| match error.downcast_ref() {
        Some(Error::Interrupted) => {
            output::print_error(error);
            output::ExitCode::error(interrupts::EXIT_CODE)
        }
        _ if is_usage(&error) => error,
        _ => {
            output::print_error(format_args!("{error:#}"));
            output::ExitCode::error(2)
        }
    })?;
    if args.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    match report.exit_code() {
        // The findings so far are reported.
        3 if interrupted => Err(output::ExitCode::error(interrupts::EXIT_CODE)),
        0 => Ok(()),
        code => Err(output::ExitCode::error(code)),
    }
}

/// Audits the server and writes the HTML report; also returns whether the user interrupted.
fn run_audit(args: &Args) -> Result<(Report, bool)> {
    let Some(url) = args.url.clone() else { bail!("an address is needed") };
    let html = args.html.as_deref().map(Save::prepare).transpose()?;
    let local_server = args.target.as_deref().map(ReferenceServer::start).transpose()?;
    let key = args
        .api_key
        .clone()
        .or_else(|| std::env::var("POLYDRAFT_API_KEY").ok().filter(|key| !key.is_empty()));
    let reference = match (&local_server, &args.reference) {
        (Some(server), _) => Some(Address { url: server.url(), model: None, key: None }),
        (None, Some(url)) => Some(Address {
            url: url.clone(),
            model: args.reference_model.clone(),
            key: key.clone(),
        }),
        (None, None) => None,
    };
    let options = Options {
        reference,
        checks: args.checks.clone(),
        requests: args.requests as usize,
        time: args.minutes.map(|minutes| Duration::from_secs(60 * u64::from(minutes))),
        connections: args.connections as usize,
        error_rate: args.error_rate,
        sensitivity: args.sensitivity,
        tolerance: args.tolerance,
        save: args.save.clone(),
        seed: args.seed,
        ..Options::new(Address { url, model: args.model.clone(), key })
    };
    let watch = Watch::new(u64::from(args.requests), !args.json)?;
    let report = audit(&options, &watch);
    watch.bar.finish_and_clear();
    let report = report?;
    if let Some(html) = html {
        html.finish(page(&report).as_bytes())?;
    }
    Ok((report, watch.guard.is_interrupted()))
}

/// Progress display.
struct Watch {
    bar: ProgressBar,
    findings: bool,
    guard: InterruptGuard,
}

impl Watch {
    fn new(requests: u64, findings: bool) -> Result<Self> {
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos} requests, {elapsed}")?;
        let bar = ProgressBar::new(requests).with_style(style);
        Ok(Self { bar, findings, guard: InterruptGuard::install() })
    }
}

impl Listener for Watch {
    fn progress(&self, done: usize, total: usize, requests: usize, check: &str) {
        self.bar.set_position(requests as u64);
        self.bar.set_message(format!("{done} of {total} checks done, running {check}"));
    }

    fn found(&self, finding: &Finding) {
        if self.findings {
            self.bar.suspend(|| anstream::println!("{}", line(finding)));
        }
    }

    fn note(&self, text: &str) {
        self.bar.suspend(|| output::note(text));
    }

    fn is_stopped(&self) -> bool {
        self.guard.is_interrupted()
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Fault => "FAULT",
        Verdict::Ignored => "IGNORED",
        Verdict::NotEnoughData => "not enough data",
        Verdict::NotApplicable => "not applicable",
    }
}

/// Formats a finding as one line.
fn line(finding: &Finding) -> String {
    let outcome = &finding.outcome;
    let mut facts = Vec::new();
    if let Some(p) = outcome.p_value {
        facts.push(format_p_value(p));
    }
    if let Some(level) = outcome.would_find {
        facts.push(format!("would find {}", format_percent(level)));
    }
    if outcome.seen > 0 {
        facts.push(format!("{} seen", outcome.seen));
    }
    let facts = match facts.is_empty() {
        true => String::new(),
        false => format!(" ({})", facts.join(", ")),
    };
    format!("{:15} {}{facts}: {}", finding.check, verdict_name(outcome.verdict), outcome.summary)
}

/// Summarises the faults.
fn fault_summary(report: &Report) -> String {
    let faults = report.findings.iter().filter(|f| f.outcome.verdict == Verdict::Fault);
    let (random, certain): (Vec<_>, Vec<_>) =
        faults.partition(|finding| finding.outcome.p_value.is_some());
    let check_names = |findings: &[&Finding]| {
        findings.iter().map(|finding| finding.check).collect::<Vec<_>>().join(", ")
    };
    match random.is_empty() {
        true => format!("FAULTS in {}; distributions without deviation", check_names(&certain)),
        false => format!(
            "NOT LOSSLESS: {}; a lossless server would look like this in at most {} of all audits",
            check_names(&[random, certain].concat()),
            report.error_rate
        ),
    }
}

fn print(report: &Report) {
    for finding in report.findings.iter().filter(|finding| !finding.outcome.evidence.is_empty()) {
        anstream::println!("\n{}: requests that show it", finding.check);
        for evidence in &finding.outcome.evidence {
            anstream::println!("  # {}\n  {}", evidence.what, evidence.curl);
        }
    }
    if let Some(why) = &report.cut_short {
        anstream::println!("\nended early: {why}");
    }
    let ignored = report.ignored();
    if !ignored.is_empty() {
        anstream::println!(
            "\nignored by the server, with and without drafts, so not a fault of speculation: {}",
            ignored.join(", ")
        );
    }
    let count = format!("{} requests in {:.0} s", report.requests, report.seconds);
    anstream::println!("\n{}; {count}\ntruth: {}", report.speculation, report.truth);
    let found = report.findings.iter().find(|finding| finding.check == "overall");
    let found = found.and_then(|finding| finding.outcome.would_find);
    let power = found.map_or(String::new(), |level| {
        format!(
            "; an error of {} total variation at every token would have been found in 19 of 20 \
             audits",
            format_percent(level)
        )
    });
    anstream::println!(
        "{}",
        match report.verdict {
            Verdict::Passed => format!("lossless as far as tested{power}"),
            Verdict::Fault => fault_summary(report),
            Verdict::NotEnoughData | Verdict::NotApplicable | Verdict::Ignored => {
                format!("not enough data{power}; raise --requests, or give a --reference")
            }
        }
    );
}
