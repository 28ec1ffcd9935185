//! Order of an audit: selection, rounds and end of the checks.

use std::collections::HashMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::checks::{self, Check};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::evidence::{p_value, smallest_found};
use crate::journal::Journal;
use crate::report::{Finding, Outcome, Report, Verdict, emitted};
use crate::server::{Dialect, Server};
use crate::speculation::{Counters, summary};
use crate::state::{AuditState, Overall};
use crate::{Address, Listener, Options, probe};

/// A check with the requests and time that it took.
struct Running {
    check: Box<dyn Check>,
    requests: usize,
    seconds: f64,
    done: bool,
}

/// Listener that also stops requests at the time limit, since a round may be long.
struct Deadline<'l> {
    listener: &'l dyn Listener,
    until: Option<Instant>,
}

impl Deadline<'_> {
    fn is_past(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

impl Listener for Deadline<'_> {
    fn progress(&self, done: usize, total: usize, requests: usize, check: &str) {
        self.listener.progress(done, total, requests, check);
    }

    fn found(&self, finding: &Finding) {
        self.listener.found(finding);
    }

    fn note(&self, text: &str) {
        self.listener.note(text);
    }

    fn is_stopped(&self) -> bool {
        self.listener.is_stopped() || self.is_past()
    }
}

/// Name of the test over all checks of distributions together.
const OVERALL: &str = "overall";

/// Audits a server.
///
/// # Errors
/// Fails if the server cannot be reached, has no supported interface, or fails during the audit's
/// first requests; if the file of answers belongs to another audit; if a name in `checks` is
/// unknown; if the listener stopped it.
pub fn audit(options: &Options, listener: &dyn Listener) -> Result<Report> {
    let start = Instant::now();
    let deadline = Deadline { listener, until: options.time.map(|time| start + time) };
    let listener = &deadline;
    let checks = select_checks(options)?;
    let mut server = connect(&options.server, options, None, listener)?;
    let mut reference = match &options.reference {
        None => None,
        Some(address) => Some(connect(address, options, Some("reference"), listener)?),
    };
    if let Some(reference) = &mut reference {
        match_token_keys(&mut server, reference, listener)?;
    }
    let before = Counters::read(&server.client);
    let mut state = AuditState {
        server,
        reference,
        options,
        listener,
        rng: ChaCha8Rng::seed_from_u64(options.seed),
        openings: Vec::new(),
        chosen: HashMap::new(),
        known: HashMap::new(),
        overall: Overall::new(options.tolerance),
        overall_without_settings: Overall::new(options.tolerance),
        next_power_check: 4000,
        has_power: false,
        drafted: (0, 0),
    };
    let statistical = checks.iter().filter(|running| running.check.is_statistical()).count();
    // One more test is over all checks of distributions together.
    let threshold = ((statistical + 1) as f64 / options.error_rate).ln();
    let (mut findings, cut_short) = rounds(&mut state, checks, threshold, &deadline)?;
    // The settings that a server ignores are known only now, so both bets were made all along. The
    // error rate stays: a lossless server for which the second counts has lost another check.
    let ignores = findings.iter().any(|finding| finding.outcome.verdict == Verdict::Ignored);
    let bets = if ignores { &state.overall_without_settings } else { &state.overall };
    if let Some(finding) = overall(bets, &state, threshold) {
        listener.found(&finding);
        findings.insert(0, finding);
    }
    let speculation = summary(before, Counters::read(&state.server.client), state.drafted);
    let verdict = match verdict(&findings) {
        Verdict::Passed if cut_short.is_some() => Verdict::NotEnoughData,
        verdict => verdict,
    };
    let requests = state.server.client.sent()
        + state.reference.as_ref().map_or(0, |reference| reference.client.sent());
    let date = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Report {
        url: state.server.client.url(""),
        model: state.server.model.clone(),
        server: description(&state.server),
        truth: truth(&state),
        verdict,
        error_rate: options.error_rate,
        tolerance: options.tolerance,
        speculation,
        cut_short,
        findings,
        requests,
        seconds: start.elapsed().as_secs_f64(),
        date,
        version: env!("CARGO_PKG_VERSION"),
        seed: options.seed,
    })
}

fn select_checks(options: &Options) -> Result<Vec<Running>> {
    let mut checks = checks::all(options.sensitivity, options.tolerance);
    let known: Vec<&str> = checks.iter().map(|check| check.name()).collect();
    if let Some(unknown) = options.checks.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(Error::Untestable(format!(
            "unknown check {unknown:?}; expected one of {}",
            known.join(", ")
        )));
    }
    if !options.checks.is_empty() {
        checks.retain(|check| options.checks.iter().any(|name| name == check.name()));
    }
    let running = |check| Running { check, requests: 0, seconds: 0.0, done: false };
    Ok(checks.into_iter().map(running).collect())
}

fn connect(
    address: &Address,
    options: &Options,
    suffix: Option<&str>,
    listener: &dyn Listener,
) -> Result<Server> {
    let journal = match &options.save {
        None => Journal::default(),
        Some(path) => match suffix {
            None => Journal::open(path)?,
            Some(suffix) => {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{suffix}"));
                Journal::open(name.as_ref())?
            }
        },
    };
    let client = Client::new(&address.url, address.key.clone(), options.connections, journal);
    let server = probe::probe(client, address.model.clone(), listener)?;
    listener.note(&description(&server));
    Ok(server)
}

/// Makes both servers identify tokens in the same way: by their strings if one of them returns no
/// ids.
fn match_token_keys(
    server: &mut Server,
    reference: &mut Server,
    listener: &dyn Listener,
) -> Result<()> {
    let both = [&server.capabilities, &reference.capabilities];
    let compared = reference.capabilities.top > 0 && server.capabilities.returns_tokens();
    if !compared || both[0].ids == both[1].ids {
        return Ok(());
    }
    for side in [server, reference] {
        if side.capabilities.ids {
            probe::use_token_text(side, listener)?;
            listener.note(&description(side));
        }
    }
    Ok(())
}

/// Runs rounds of all checks in turn, until they are done or the limits are reached. Also returns
/// the reason for an early end; the findings until then are complete.
fn rounds(
    state: &mut AuditState<'_>,
    mut checks: Vec<Running>,
    threshold: f64,
    deadline: &Deadline<'_>,
) -> Result<(Vec<Finding>, Option<String>)> {
    let count = checks.len();
    let mut findings: Vec<Option<Finding>> = vec![None; count];
    let mut cut_short = None;
    while cut_short.is_none() {
        let mut worked = false;
        for at in 0..count {
            let running = &mut checks[at];
            let over = state.server.client.sent() >= state.options.requests || deadline.is_past();
            if running.done || over {
                continue;
            }
            worked = true;
            let done = findings.iter().flatten().count();
            let sent = state.server.client.sent();
            state.listener.progress(done, count, sent, running.check.name());
            let start = Instant::now();
            match running.check.round(state, threshold) {
                Ok(done) => running.done = done,
                Err(Error::Interrupted) if !deadline.listener.is_stopped() => {}
                Err(error @ (Error::Unreachable { .. } | Error::Interrupted)) => {
                    cut_short = Some(format!("in the check {}: {error}", running.check.name()));
                    break;
                }
                Err(error) => return Err(error),
            }
            running.requests += state.server.client.sent() - sent;
            running.seconds += start.elapsed().as_secs_f64();
            if running.done {
                let finding = finding(running, state, threshold)?;
                state.listener.found(&finding);
                findings[at] = Some(finding);
            }
        }
        if !worked {
            break;
        }
    }
    for (running, found) in checks.iter_mut().zip(&mut findings) {
        if found.is_none() {
            let finding = finding(running, state, threshold)?;
            state.listener.found(&finding);
            *found = Some(finding);
        }
    }
    Ok((findings.into_iter().flatten().collect(), cut_short))
}

fn finding(running: &mut Running, state: &mut AuditState<'_>, threshold: f64) -> Result<Finding> {
    let outcome = match running.check.outcome(state, threshold) {
        Err(Error::Unreachable { .. } | Error::Interrupted) => {
            Outcome::certain(Verdict::NotEnoughData, 0, "the connection to the server was lost")
        }
        outcome => outcome?,
    };
    Ok(Finding {
        check: running.check.name(),
        title: running.check.title(),
        outcome,
        requests: running.requests,
        seconds: running.seconds,
    })
}

/// Returns the test over all observed distributions.
fn overall(bets: &Overall, state: &AuditState<'_>, threshold: f64) -> Option<Finding> {
    let tokens = bets.bettor.tokens();
    if tokens == 0 {
        return None;
    }
    let most = bets.bettor.wealth().peak();
    let fault = most >= threshold;
    let would_find = match fault {
        true => None,
        false => smallest_found(&bets.trail, state.options.tolerance, threshold),
    };
    let verdict = match () {
        () if fault => Verdict::Fault,
        () if would_find.is_some_and(|found| found <= state.options.sensitivity) => Verdict::Passed,
        () => Verdict::NotEnoughData,
    };
    let top = bets.bettor.top();
    let summary = emitted(top.0, top.1, tokens);
    let outcome = Outcome {
        p_value: Some(p_value(most)),
        would_find,
        ..Outcome::certain(verdict, tokens, summary)
    };
    let title = "all checks of distributions as one test".to_owned();
    Some(Finding { check: OVERALL, title, outcome, requests: 0, seconds: 0.0 })
}

/// Returns a fault if any check found one; otherwise passed if all checks have enough data. If the
/// overall test passed, a check need not reach its own target error.
fn verdict(findings: &[Finding]) -> Verdict {
    let total = |verdict| findings.iter().any(|finding| finding.outcome.verdict == verdict);
    if total(Verdict::Fault) {
        return Verdict::Fault;
    }
    let short = findings.iter().any(|finding| {
        let counted = finding.outcome.verdict == Verdict::NotEnoughData;
        let main = findings
            .iter()
            .any(|other| other.check == OVERALL && other.outcome.verdict == Verdict::Passed);
        // Enough data for the overall test makes up for checks with too little data of their own.
        counted && !(main && finding.outcome.would_find.is_some())
    });
    if short || !total(Verdict::Passed) { Verdict::NotEnoughData } else { Verdict::Passed }
}

fn description(server: &Server) -> String {
    let capabilities = &server.capabilities;
    let dialect = match capabilities.dialect {
        Dialect::Completions => "/v1/completions",
        Dialect::Llama => "llama.cpp's /completion",
        Dialect::Chat => "/v1/chat/completions alone",
    };
    let tokens = match (capabilities.top, capabilities.ids) {
        (0, _) => "no log-probabilities".to_owned(),
        (top, true) => format!("tokens by id, the {top} likeliest"),
        (top, false) => format!("tokens as text, the {top} likeliest"),
    };
    format!("{} on {dialect}; {tokens}", server.model)
}

fn truth(state: &AuditState<'_>) -> String {
    let by = match &state.reference {
        Some(reference) if state.has_distributions() && reference.capabilities.top > 0 => {
            format!("log-probabilities of {} in requests of one token", reference.client.url(""))
        }
        Some(reference) => format!("answers of {}", reference.client.url("")),
        None if state.has_distributions() => {
            "the server's own log-probabilities in requests of one token, which involve no \
             draft"
                .to_owned()
        }
        None => {
            return "nothing: the server returns no log-probabilities, and there is no reference"
                .to_owned();
        }
    };
    format!("{by}, assumed correct within {} in total variation", state.options.tolerance)
}
