//! Distribution of the tokens after the first one.
//!
//! Problem: tokens that speculation takes part in must be distributed as the model's next-token
//! distribution at their prefix.
//! Source: `evidence`; the model's distributions come from requests of one token each, which
//! involve no draft.
//! Complexity: one request per answer, and one per prefix that is tested.
//! Deviations: (1) not every position is tested: those whose prefix earlier answers have passed,
//! and one at random in every answer. The selection depends on the prefix, never on the token, so
//! the bet stays fair. (2) Where prompts come back with log-probabilities, one request returns the
//! distributions of all positions of an answer.

mod cases;
mod deviation;
mod ignored;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use rand::RngExt;

use cases::{Case, Prepared, Skipped, cases};
use deviation::deviation;
use ignored::IgnoredSetting;

use super::Check;
use crate::answer::{Answer, Key};
use crate::error::{Error, Result};
use crate::evidence::{Bettor, Context, LARGEST, Odds, Trail, p_value, smallest_found, would_find};
use crate::report::{Outcome, Verdict};
use crate::server::{Request, is_end};
use crate::setting::{Cell, Counting, PartialDistribution, Setting, is_prefix_of_words};
use crate::state::{AuditState, Prefix};

/// Wealth above which a check continues although its power suffices.
const SUSPICION: f64 = 20.0;
/// Answers per round.
const ROUND: usize = 48;
/// Number of valid answers that suffices under a grammar if their distribution cannot be known.
const ENOUGH_VALID: usize = 480;
/// Maximum number of tokens of a check that does not reach the required power.
const MAX_TOKENS: usize = 40_000;

/// Check of a distribution.
pub struct DistributionCheck {
    case: Case,
    prepared: Option<Prepared>,
    /// Reason why the check is not made.
    skipped: Option<Skipped>,
    /// Tokens after the first, with one bettor per way to count penalties.
    bettors: Vec<(Counting, Bettor)>,
    /// Maximum over time of the smallest log-wealth of these bettors.
    peak: f64,
    /// Bettors on first tokens, which involve no draft, and the maximum of their smallest
    /// log-wealth.
    firsts: Vec<Bettor>,
    peak_of_first: f64,
    /// Hypothesis that the setting is ignored, unless it changes nothing.
    ignored: Option<IgnoredSetting>,
    trail: Trail,
    visits: HashMap<Prefix, usize>,
    /// Contexts with a bet.
    contexts: HashMap<Prefix, Rc<PartialDistribution>>,
    answers: usize,
    requests: usize,
    /// Number of tokens at which power is computed next, and whether it sufficed for the target
    /// error.
    next_power_check: usize,
    has_power: bool,
    /// Whether not even the largest simulated error would have been found at the last computation.
    is_blind: bool,
    /// Answer that no lossless server gives.
    impossible: Option<(Request, String)>,
}

/// Observation at a prefix.
enum Observed {
    Token(Key),
    End,
}

/// Creates all checks of distributions.
pub fn all(sensitivity: f64, tolerance: f64) -> Vec<DistributionCheck> {
    cases(sensitivity).into_iter().map(|case| DistributionCheck::new(case, tolerance)).collect()
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns a prefix in the form that a bettor uses.
fn context(prefix: &Prefix, emitted: &PartialDistribution) -> Context {
    let before = |back: usize| prefix.1.iter().rev().nth(back).map_or(0, hash);
    Context {
        prefix: hash(prefix),
        position: prefix.1.len(),
        before: [before(0), before(1)],
        tokens: emitted.cells.iter().map(|cell| hash(&cell.key)).collect(),
    }
}

/// Merges the tokens that end an answer into one cell, since servers do not report which one it
/// was. Also returns its key.
fn merge_end_tokens(
    mut emitted: PartialDistribution,
    ends: &[u32],
) -> (PartialDistribution, Option<Key>) {
    let ending =
        |cell: &Cell| is_end(&cell.text) || ends.iter().any(|end| cell.key == Key::Id(*end));
    let all: f64 = emitted.cells.iter().filter(|cell| ending(cell)).map(|c| c.probability).sum();
    let mut end_key = None;
    emitted.cells.retain_mut(|cell| {
        if !ending(cell) {
            return true;
        }
        let first = end_key.is_none();
        if first {
            end_key = Some(cell.key.clone());
            cell.probability = all;
        }
        first
    });
    emitted.cells.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    (emitted, end_key)
}

fn odds(emitted: &PartialDistribution) -> Odds {
    Odds::new(emitted.cells.iter().map(|cell| cell.probability), emitted.slack)
}

fn rejected(status: u16, reason: &str) -> Skipped {
    Skipped::NotApplicable(format!("the server rejected the request ({status}): {reason}"))
}

/// Returns the cell of an observation; `end` is the key of the cell of end tokens.
fn cell_of(
    emitted: &PartialDistribution,
    odds: &Odds,
    observed: &Observed,
    end: Option<Key>,
) -> usize {
    let key = match observed {
        Observed::Token(key) => Some(key),
        Observed::End => end.as_ref(),
    };
    let cell = key.and_then(|key| emitted.cells.iter().position(|cell| cell.key == *key));
    cell.unwrap_or(odds.rest()).min(odds.rest())
}

impl DistributionCheck {
    fn new(case: Case, tolerance: f64) -> Self {
        let bettors = case.countings.iter().map(|c| (*c, Bettor::new(tolerance))).collect();
        let firsts = case.countings.iter().map(|_| Bettor::new(tolerance)).collect();
        Self {
            case,
            prepared: None,
            skipped: None,
            bettors,
            peak: 0.0,
            firsts,
            peak_of_first: 0.0,
            ignored: None,
            trail: Trail::new(),
            visits: HashMap::new(),
            contexts: HashMap::new(),
            answers: 0,
            requests: 0,
            next_power_check: 500,
            has_power: false,
            is_blind: true,
            impossible: None,
        }
    }

    fn tokens(&self) -> usize {
        self.bettors[0].1.tokens()
    }

    /// Requests a round of answers; returns them with their openings.
    fn sample(&mut self, state: &mut AuditState<'_>) -> Result<Vec<(usize, Answer)>> {
        let Some(prepared) = &self.prepared else { return Ok(Vec::new()) };
        let openings: Vec<usize> = (0..ROUND)
            .map(|at| prepared.openings[(self.answers + at) % prepared.openings.len()])
            .collect();
        let mut requests: Vec<Request> = openings
            .iter()
            .map(|at| state.continuation(*at, self.case.tokens, &prepared.setting))
            .collect();
        if self.case.crowded {
            // Concurrent requests with other settings, interleaved; their answers are ignored.
            let others = [
                Setting { temperature: 0.0, ..Setting::default() },
                Setting { temperature: 0.5, top_p: Some(0.5), ..Setting::default() },
            ];
            for (at, other) in (0..ROUND / 2).zip(others.iter().cycle()) {
                let length = self.case.tokens * (1 + at % 4);
                requests.insert(3 * at + 2, state.continuation(openings[at], length, other));
            }
        }
        let at_most = if self.case.alone { 1 } else { usize::MAX };
        let answers = match prepared.grammar {
            None => state.send(&requests, at_most)?,
            Some(grammar) => {
                let calls: Vec<_> = requests
                    .iter()
                    .map(|request| state.server.grammar_call(request, grammar))
                    .collect();
                let replies = state.server.client.send_all(&calls, at_most, state.listener)?;
                let read = |(call, reply)| state.server.read(call, reply);
                calls.iter().zip(&replies).map(read).collect::<Result<Vec<_>>>()?
            }
        };
        let measured = answers.into_iter().enumerate();
        let measured =
            measured.filter(|(at, _)| !self.case.crowded || at % 3 != 2 || *at >= 3 * ROUND / 2);
        let measured: Vec<Answer> = measured.map(|(_, answer)| answer).collect();
        self.answers += ROUND;
        Ok(openings.into_iter().zip(measured).collect())
    }

    /// Selects the prefixes of the answers to test, with the token observed at each. The selection
    /// does not depend on that token.
    fn prefixes(
        &mut self,
        state: &mut AuditState<'_>,
        answers: &[(usize, Answer)],
    ) -> Result<Vec<(Prefix, Observed)>> {
        let Some(prepared) = &self.prepared else { return Ok(Vec::new()) };
        let (setting, length) = (prepared.setting.clone(), self.case.tokens);
        let mut found = Vec::new();
        for (opening, answer) in answers {
            let choice = answer.first();
            let (keys, stopped) = state.tokens(&choice)?;
            let listed = |key: &Key| setting.ends.iter().any(|end| *key == Key::Id(*end));
            let named = keys.last().is_some_and(listed);
            // Some servers return the token that ended the answer, others do not.
            let token_count = keys.len() - usize::from(stopped && named);
            let ended = stopped.then_some(Observed::End);
            let chosen = state.rng.random_range(1..length.max(2));
            let observed = keys[..token_count].iter().cloned().map(Observed::Token).chain(ended);
            for (at, observed) in observed.enumerate().take(length) {
                let prefix = (*opening, keys[..at.min(keys.len())].to_vec());
                let visits = self.visits.entry(prefix.clone()).or_default();
                let looked_at = at == 0
                    || *visits > 0
                    || at == chosen
                    || state.has_echo()
                    || state.is_known(&prefix);
                *visits += 1;
                if looked_at {
                    found.push((prefix, observed));
                }
            }
        }
        Ok(found)
    }

    /// Bets on an observation.
    fn bet(
        &mut self,
        state: &mut AuditState<'_>,
        prefix: Prefix,
        observed: &Observed,
    ) -> Result<()> {
        let Some(prepared) = &self.prepared else { return Ok(()) };
        let mut setting = prepared.setting.clone();
        if setting.min_tokens > 0
            && let Some(distribution) = state.known_distribution(&prefix)
        {
            // Before `min_tokens` tokens no end token is possible, including the model's own.
            let ends = distribution.cells.iter().filter(|cell| is_end(&cell.text));
            setting.ends.extend(ends.filter_map(|cell| match cell.key {
                Key::Id(id) => Some(id),
                Key::Text(_) => None,
            }));
        }
        if let Some(ignored) = &mut self.ignored
            && let Some(emitted) = state.emitted(&prefix, &ignored.setting, Counting::Answer)?
        {
            let (emitted, end) = merge_end_tokens(emitted, &ignored.setting.ends);
            let (context, odds) = (context(&prefix, &emitted), odds(&emitted));
            ignored.observe(&context, &odds, cell_of(&emitted, &odds, observed, end));
        }
        for index in 0..self.bettors.len() {
            let counting = self.bettors[index].0;
            let Some(emitted) = state.emitted(&prefix, &setting, counting)? else { continue };
            let (emitted, end) = merge_end_tokens(emitted, &setting.ends);
            let (context, odds) = (context(&prefix, &emitted), odds(&emitted));
            let cell = cell_of(&emitted, &odds, observed, end);
            if prefix.1.is_empty() {
                self.firsts[index].observe(&context, &odds, cell);
                continue;
            }
            self.bettors[index].1.observe(&context, &odds, cell);
            if index == 0 {
                let odds = Rc::new(odds);
                if self.bettors.len() == 1 {
                    state.bet_overall(&context, &odds, cell, self.ignored.is_none());
                }
                self.trail.push(odds);
                self.contexts.entry(prefix.clone()).or_insert_with(|| Rc::new(emitted));
            }
        }
        // The server may count penalties either way, so the smaller wealth is the evidence.
        let poorest = |all: &mut dyn Iterator<Item = &Bettor>| {
            all.map(|bettor| bettor.wealth().current()).fold(f64::INFINITY, f64::min)
        };
        let after = poorest(&mut self.bettors.iter().map(|(_, bettor)| bettor));
        self.peak = self.peak.max(after);
        self.peak_of_first = self.peak_of_first.max(poorest(&mut self.firsts.iter()));
        Ok(())
    }

    /// Returns whether the check has enough observations.
    fn is_done(&mut self, state: &mut AuditState<'_>, threshold: f64) -> bool {
        if self.peak.max(self.peak_of_first) >= threshold {
            let decided = self.ignored.as_mut().is_none_or(|ignored| ignored.is_decided(threshold));
            return decided || self.tokens() > MAX_TOKENS;
        }
        if self.tokens() >= self.next_power_check {
            self.next_power_check = self.tokens() * 5 / 4;
            let target_error = self.case.target_error(state);
            let finds = |size| would_find(&self.trail, state.options.tolerance, threshold, size);
            self.has_power = finds(target_error);
            self.is_blind = !self.has_power && self.is_grammar() && !finds(LARGEST);
        }
        // A suspicious check continues.
        let now = self.bettors.iter().map(|(_, bettor)| bettor.wealth().current());
        if now.fold(f64::INFINITY, f64::min) > SUSPICION.ln() {
            return self.tokens() > MAX_TOKENS;
        }
        let reached = self.has_power
            && self.requests as f64 >= self.case.share * state.options.requests as f64;
        let has_enough_valid = self.is_blind && self.is_grammar() && self.answers >= ENOUGH_VALID;
        (reached && (!self.case.main || state.has_overall_power(threshold)))
            || has_enough_valid
            || self.tokens() > MAX_TOKENS
    }

    /// Returns whether the check first looks for answers that violate a grammar.
    fn is_grammar(&self) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.grammar.is_some())
    }
}

impl Check for DistributionCheck {
    fn name(&self) -> &'static str {
        self.case.name
    }

    fn title(&self) -> String {
        self.case.title.to_owned()
    }

    fn is_statistical(&self) -> bool {
        true
    }

    fn round(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<bool> {
        if self.skipped.is_some() {
            return Ok(true);
        }
        if self.prepared.is_none() {
            match self.case.prepare(state) {
                Ok(Ok(prepared)) => {
                    let tolerance = state.options.tolerance;
                    self.ignored = IgnoredSetting::new(&prepared.setting, tolerance);
                    self.prepared = Some(prepared);
                }
                Ok(Err(skipped)) => self.skipped = Some(skipped),
                Err(Error::Refused { status, reason, .. }) => {
                    self.skipped = Some(rejected(status, &reason));
                }
                Err(error) => return Err(error),
            }
            if self.skipped.is_some() {
                return Ok(true);
            }
        }
        let sent = state.server.client.sent();
        let answers = match self.sample(state) {
            Err(Error::Refused { status, reason, .. }) if self.answers == 0 => {
                self.skipped = Some(rejected(status, &reason));
                return Ok(true);
            }
            answers => answers?,
        };
        if let Some(prepared) = &self.prepared
            && !prepared.setting.words.is_empty()
        {
            let words = &prepared.setting.words;
            let invalid = answers.iter().find(|(_, a)| !is_prefix_of_words(words, &a.first().text));
            if let Some((opening, answer)) = invalid {
                let request = state.continuation(*opening, self.case.tokens, &prepared.setting);
                self.impossible = Some((request, answer.first().text));
                return Ok(true);
            }
        }
        let prefixes = self.prefixes(state, &answers)?;
        let unknown: Vec<Prefix> = prefixes.iter().map(|(prefix, _)| prefix.clone()).collect();
        state.fetch_distributions(&unknown)?;
        for (prefix, observed) in prefixes {
            self.bet(state, prefix, &observed)?;
        }
        self.requests += state.server.client.sent() - sent;
        Ok(self.is_done(state, threshold))
    }

    fn outcome(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<Outcome> {
        match &self.skipped {
            Some(Skipped::NotApplicable(reason)) => {
                return Ok(Outcome::not_applicable(reason.clone()));
            }
            Some(Skipped::Ignored(curl)) => return Ok(ignored::outcome(curl.clone())),
            None => {}
        }
        if let Some((request, text)) = &self.impossible {
            let prepared = self.prepared.as_ref().expect("there was an answer");
            let mut outcome = Outcome::certain(
                Verdict::Fault,
                self.answers,
                format!("an answer that the grammar does not allow: {text:?}"),
            );
            if let Some(grammar) = prepared.grammar {
                let curl = state.server.curl(&state.server.grammar_call(request, grammar));
                outcome
                    .evidence
                    .push(crate::report::Evidence { what: outcome.summary.clone(), curl });
            }
            return Ok(outcome);
        }
        let peak = self.peak.max(self.peak_of_first);
        let would_find = match peak < threshold {
            true => smallest_found(&self.trail, state.options.tolerance, threshold),
            false => None,
        };
        let ignored = self.ignored.as_mut().is_some_and(|ignored| ignored.is_ignored(threshold));
        let verdict = match peak >= threshold {
            true if ignored => Verdict::Ignored,
            true => Verdict::Fault,
            // A power somewhat worse than the target is still worth reporting.
            false
                if would_find.is_some_and(|found| found <= 2.0 * self.case.target_error(state)) =>
            {
                Verdict::Passed
            }
            false if self.is_grammar() && self.answers >= ENOUGH_VALID => Verdict::Passed,
            false => Verdict::NotEnoughData,
        };
        let mut outcome = Outcome {
            verdict,
            p_value: Some(p_value(peak)),
            would_find,
            seen: self.tokens(),
            summary: String::new(),
            evidence: Vec::new(),
        };
        deviation(self, state, &mut outcome);
        Ok(outcome)
    }
}
