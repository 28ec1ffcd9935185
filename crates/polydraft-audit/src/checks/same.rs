//! Seeds, and independence of requests and choices.

use super::Check;
use crate::answer::{Answer, Choice, Key};
use crate::error::{Error, Result};
use crate::evidence::{Matches, p_value};
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::Request;
use crate::setting::Setting;
use crate::state::AuditState;

/// Number of seeds, and tokens per answer.
const SEEDS: u64 = 12;
const TOKENS: usize = 16;

/// Checks that equal seeds give equal answers.
pub fn seeds(state: &mut AuditState<'_>) -> Result<Outcome> {
    let opening = state.choose(Kind::Plain, 1)?[0];
    let request = state.continuation(opening, TOKENS, &Setting::default());
    let requests: Vec<Request> = (0..SEEDS)
        .flat_map(|seed| [seed, seed])
        .map(|seed| Request { seed: Some(1000 + seed), ..request.clone() })
        .collect();
    // One request at a time: concurrent requests may change the arithmetic.
    let answers = state.send(&requests, 1)?;
    let outputs: Vec<String> = answers.iter().map(|answer| answer.first().text).collect();
    let equal = outputs.chunks(2).filter(|pair| pair[0] == pair[1]).count();
    let all_equal = outputs.iter().all(|text| *text == outputs[0]);
    let summary =
        format!("{equal} of {SEEDS} pairs of requests with equal seeds gave equal answers");
    let curl = || state.server.curl(&state.server.call(&requests[0]));
    Ok(match () {
        () if all_equal => Outcome {
            evidence: vec![Evidence { what: summary, curl: curl() }],
            ..Outcome::certain(
                Verdict::Fault,
                outputs.len(),
                format!("all seeds give one answer, {:?}", outputs[0]),
            )
        },
        // One pair may differ by a tie that rounding broke.
        () if equal + 1 >= SEEDS as usize => {
            Outcome::certain(Verdict::Passed, outputs.len(), summary)
        }
        () => {
            // Drafts play no part in first tokens.
            let choices: Vec<Choice> = answers.iter().map(Answer::first).collect();
            let mut differs_at_once = false;
            for pair in choices.chunks(2) {
                let tokens = [state.tokens(&pair[0])?.0, state.tokens(&pair[1])?.0];
                let starts = [&pair[0], &pair[1]].map(|choice| choice.text.chars().next());
                differs_at_once |= tokens[0].first() != tokens[1].first() || starts[0] != starts[1];
            }
            let verdict = if differs_at_once { Verdict::Ignored } else { Verdict::Fault };
            Outcome {
                evidence: vec![Evidence { what: summary.clone(), curl: curl() }],
                ..Outcome::certain(verdict, outputs.len(), summary)
            }
        }
    })
}

/// Pairs per round, pairs in total, and number of tokens compared per answer.
const ROUND: usize = 32;
const PAIRS: usize = 192;
const COMPARED: usize = 4;

/// Checks that independent answers are equal no more often than at random.
pub struct Independence {
    name: &'static str,
    title: &'static str,
    /// Whether a pair consists of two choices of one request instead of two concurrent requests.
    choices: bool,
    openings: Vec<usize>,
    matches: Matches,
    skip_reason: Option<String>,
}

/// Two answers to an opening, as token keys.
struct Pair {
    opening: usize,
    first: Vec<Key>,
    second: Vec<Key>,
}

impl Independence {
    /// Compares concurrent requests without seeds.
    pub fn between_requests() -> Self {
        Self {
            name: "independence",
            title: "requests share no random numbers",
            choices: false,
            openings: Vec::new(),
            matches: Matches::default(),
            skip_reason: None,
        }
    }

    /// Compares the choices of a request.
    pub fn between_choices() -> Self {
        let summary = Self::between_requests();
        Self {
            name: "choices",
            title: "the choices of a request are independent",
            choices: true,
            ..summary
        }
    }

    fn pairs(&self, state: &mut AuditState<'_>) -> Result<Vec<Pair>> {
        let opening = |at: usize| self.openings[at % self.openings.len()];
        let copies = if self.choices { 1 } else { 2 };
        let requests: Vec<Request> = (0..ROUND)
            .flat_map(|at| std::iter::repeat_n(at, copies))
            .map(|at| Request {
                choices: if self.choices { 2 } else { 1 },
                ..state.continuation(opening(at), COMPARED, &Setting::default())
            })
            .collect();
        let answers = state.send(&requests, usize::MAX)?;
        let choices: Vec<_> = answers.into_iter().flat_map(|answer| answer.choices).collect();
        let mut pairs = Vec::new();
        for (at, pair) in choices.chunks_exact(2).enumerate() {
            let (first, _) = state.tokens(&pair[0])?;
            let (second, _) = state.tokens(&pair[1])?;
            pairs.push(Pair { opening: opening(at), first, second });
        }
        Ok(pairs)
    }
}

impl Check for Independence {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> String {
        self.title.to_owned()
    }

    fn is_statistical(&self) -> bool {
        true
    }

    fn round(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<bool> {
        use crate::server::Dialect;
        if !state.has_distributions() {
            self.skip_reason = Some(
                "log-probabilities are needed to compute how often answers are equal at random"
                    .to_owned(),
            );
            return Ok(true);
        }
        if self.choices && state.server.capabilities.dialect == Dialect::Llama {
            self.skip_reason = Some("llama.cpp's /completion returns one choice".to_owned());
            return Ok(true);
        }
        if self.openings.is_empty() {
            self.openings = state.choose(Kind::Plain, 3)?;
        }
        let pairs = match self.pairs(state) {
            Err(Error::Refused { reason, .. }) if self.matches.counts().0 == 0 => {
                self.skip_reason = Some(reason);
                return Ok(true);
            }
            pairs => pairs?,
        };
        for Pair { opening, first, second } in pairs {
            // Probability that the second answer equals the first.
            if let Some(probability) = state.probability(opening, &first)? {
                let slack = state.options.tolerance * COMPARED as f64;
                self.matches.observe(first == second, probability + slack);
            }
        }
        let (seen, _) = self.matches.counts();
        Ok(self.matches.wealth().peak() >= threshold || seen >= PAIRS)
    }

    fn outcome(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<Outcome> {
        if let Some(skip_reason) = &self.skip_reason {
            return Ok(Outcome::not_applicable(skip_reason.clone()));
        }
        let (seen, equal) = self.matches.counts();
        let most = self.matches.wealth().peak();
        let summary =
            format!("{equal} of {seen} pairs had their first {COMPARED} tokens in common");
        let verdict = match () {
            () if most >= threshold => Verdict::Fault,
            () if seen < PAIRS / 2 => Verdict::NotEnoughData,
            () => Verdict::Passed,
        };
        let mut outcome = Outcome::certain(verdict, seen, summary.clone());
        outcome.p_value = Some(p_value(most));
        if verdict == Verdict::Fault {
            let request = state.continuation(self.openings[0], COMPARED, &Setting::default());
            let request = Request { choices: if self.choices { 2 } else { 1 }, ..request };
            let curl = state.server.curl(&state.server.call(&request));
            outcome.evidence.push(Evidence { what: summary, curl });
        }
        Ok(outcome)
    }
}
