//! Comparison of the answers of two servers: the tested one and a reference without speculation.

use super::Check;
use crate::error::Result;
use crate::evidence::{Pairs, p_value};
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::Request;
use crate::setting::Setting;
use crate::state::AuditState;

/// Pairs per round, maximum number of pairs, minimum for a verdict, and tokens per answer.
const ROUND: usize = 48;
const PAIRS: usize = 20_000;
const ENOUGH: usize = 1000;
const TOKENS: usize = 8;

/// Comparison with a reference server.
pub struct Reference {
    openings: Vec<usize>,
    pairs: Pairs,
    skip_reason: Option<&'static str>,
}

impl Reference {
    /// Creates a comparison without observations.
    pub fn new(tolerance: f64) -> Self {
        Self { openings: Vec::new(), pairs: Pairs::new(tolerance), skip_reason: None }
    }
}

impl Check for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn title(&self) -> String {
        "answers compared with the reference's".to_owned()
    }

    fn is_statistical(&self) -> bool {
        true
    }

    fn round(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<bool> {
        let Some(reference) = &state.reference else {
            self.skip_reason = Some("no reference was given");
            return Ok(true);
        };
        if state.has_distributions() {
            self.skip_reason =
                Some("the distributions are known, and checks of them find smaller errors");
            return Ok(true);
        }
        // Both servers take the prompt as text.
        let chat = reference.capabilities.dialect == crate::server::Dialect::Chat
            || state.server.capabilities.dialect == crate::server::Dialect::Chat;
        if chat && reference.capabilities.dialect != state.server.capabilities.dialect {
            self.skip_reason = Some("only one of the servers has completions");
            return Ok(true);
        }
        if self.openings.is_empty() {
            self.openings = state.choose(Kind::Plain, 2)?;
            self.openings.extend(state.choose(Kind::Repeating, 1)?);
        }
        let prompts: Vec<usize> = (0..ROUND).map(|at| at % self.openings.len()).collect();
        let requests: Vec<Request> = prompts
            .iter()
            .map(|at| {
                let text = state.openings[self.openings[*at]].text.clone();
                Request::new(crate::server::Prompt::Text(text), TOKENS, Setting::default())
            })
            .collect();
        let tested = state.send(&requests, usize::MAX)?;
        let Some(reference) = &state.reference else { return Ok(true) };
        let other = reference.send_all(&requests, usize::MAX, state.listener)?;
        for ((prompt, tested), other) in prompts.iter().zip(&tested).zip(&other) {
            self.pairs.observe(*prompt, &tested.first().text, &other.first().text);
        }
        Ok(self.pairs.wealth().peak() >= threshold || self.pairs.pairs() >= PAIRS)
    }

    fn outcome(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<Outcome> {
        if let Some(skip_reason) = self.skip_reason {
            return Ok(Outcome::not_applicable(skip_reason));
        }
        let most = self.pairs.wealth().peak();
        let seen = self.pairs.pairs();
        let summary = match self.pairs.widest() {
            None => String::new(),
            Some((text, tested, other)) => {
                let text = text.split_once(':').map_or("", |(_, text)| text);
                format!(
                    "{text:?} is in {tested} of {seen} answers, and in {other} of the reference's"
                )
            }
        };
        let verdict = match () {
            () if most >= threshold => Verdict::Fault,
            () if seen < ENOUGH => Verdict::NotEnoughData,
            () => Verdict::Passed,
        };
        let mut outcome = Outcome::certain(verdict, seen, summary.clone());
        outcome.p_value = Some(p_value(most));
        if verdict == Verdict::Fault {
            let opening = self.openings[0];
            let request = state.continuation(opening, TOKENS, &Setting::default());
            outcome.evidence.push(Evidence {
                what: summary,
                curl: state.server.curl(&state.server.call(&request)),
            });
        }
        Ok(outcome)
    }
}
