//! Seeds, and requests that have nothing to do with each other.

use super::Check;
use crate::answer::Key;
use crate::error::{Error, Result};
use crate::evidence::{Matches, p_value};
use crate::lab::Lab;
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::Ask;
use crate::setting::Setting;

/// Seeds that are tried, and tokens of an answer.
const SEEDS: u64 = 12;
const TOKENS: usize = 16;

/// The same seed gives the same answer.
pub fn seeds(lab: &mut Lab<'_>) -> Result<Outcome> {
    let opening = lab.choose(Kind::Plain, 1)?[0];
    let ask = lab.continuation(opening, TOKENS, &Setting::default());
    let asks: Vec<Ask> = (0..SEEDS)
        .flat_map(|seed| [seed, seed])
        .map(|seed| Ask { seed: Some(1000 + seed), ..ask.clone() })
        .collect();
    // One after the other: what others do at the same time may change the arithmetic.
    let answers = lab.ask(&asks, 1)?;
    let texts: Vec<String> = answers.iter().map(|answer| answer.first().text).collect();
    let equal = texts.chunks(2).filter(|pair| pair[0] == pair[1]).count();
    let all_equal = texts.iter().all(|text| *text == texts[0]);
    let of = format!("{equal} of {SEEDS} pairs of requests with equal seeds were answered alike");
    let curl = || lab.server.curl(&lab.server.call(&asks[0]));
    Ok(match () {
        () if all_equal => Outcome {
            evidence: vec![Evidence { what: of, curl: curl() }],
            ..Outcome::certain(
                Verdict::Fault,
                texts.len(),
                format!("all seeds give one answer, {:?}", texts[0]),
            )
        },
        // One may be a tie that rounding has broken.
        () if equal + 1 >= SEEDS as usize => Outcome::certain(Verdict::Passed, texts.len(), of),
        () => Outcome {
            evidence: vec![Evidence { what: of.clone(), curl: curl() }],
            ..Outcome::certain(Verdict::Fault, texts.len(), of)
        },
    })
}

/// Pairs of a round, pairs in all, and the tokens of an answer that are compared.
const ROUND: usize = 32;
const PAIRS: usize = 192;
const COMPARED: usize = 4;

/// Answers that have nothing to do with each other equal each other at random.
pub struct Independence {
    name: &'static str,
    title: &'static str,
    /// Whether a pair is two choices of one request, rather than two requests at the same time.
    choices: bool,
    openings: Vec<usize>,
    matches: Matches,
    lacking: Option<String>,
}

/// Two answers to an opening, as tokens.
struct Pair {
    opening: usize,
    first: Vec<Key>,
    second: Vec<Key>,
}

impl Independence {
    /// Of requests at the same time, without seeds.
    pub fn of_requests() -> Self {
        Self {
            name: "independence",
            title: "requests share no random numbers",
            choices: false,
            openings: Vec::new(),
            matches: Matches::default(),
            lacking: None,
        }
    }

    /// Of the choices of a request.
    pub fn of_choices() -> Self {
        let of = Self::of_requests();
        Self {
            name: "choices",
            title: "the choices of a request are independent",
            choices: true,
            ..of
        }
    }

    fn pairs(&self, lab: &mut Lab<'_>) -> Result<Vec<Pair>> {
        let opening = |at: usize| self.openings[at % self.openings.len()];
        let copies = if self.choices { 1 } else { 2 };
        let asks: Vec<Ask> = (0..ROUND)
            .flat_map(|at| std::iter::repeat_n(at, copies))
            .map(|at| Ask {
                choices: if self.choices { 2 } else { 1 },
                ..lab.continuation(opening(at), COMPARED, &Setting::default())
            })
            .collect();
        let answers = lab.ask(&asks, usize::MAX)?;
        let choices: Vec<_> = answers.into_iter().flat_map(|answer| answer.choices).collect();
        let mut pairs = Vec::new();
        for (at, pair) in choices.chunks_exact(2).enumerate() {
            let (first, _) = lab.tokens(&pair[0])?;
            let (second, _) = lab.tokens(&pair[1])?;
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

    fn round(&mut self, lab: &mut Lab<'_>, bar: f64) -> Result<bool> {
        use crate::server::Dialect;
        if !lab.knows() {
            self.lacking = Some("log-probabilities are needed to know how likely it is".to_owned());
            return Ok(true);
        }
        if self.choices && lab.server.abilities.dialect == Dialect::Llama {
            self.lacking = Some("the server's own interface has one choice".to_owned());
            return Ok(true);
        }
        if self.openings.is_empty() {
            self.openings = lab.choose(Kind::Plain, 3)?;
        }
        let pairs = match self.pairs(lab) {
            Err(Error::Refused { reason, .. }) if self.matches.counts().0 == 0 => {
                self.lacking = Some(reason);
                return Ok(true);
            }
            pairs => pairs?,
        };
        for Pair { opening, first, second } in pairs {
            // That the second one is what the first one is.
            if let Some(probability) = lab.probability(opening, &first)? {
                let slack = lab.options.tolerance * COMPARED as f64;
                self.matches.see(first == second, probability + slack);
            }
        }
        let (seen, _) = self.matches.counts();
        Ok(self.matches.wealth().most() >= bar || seen >= PAIRS)
    }

    fn outcome(&mut self, lab: &mut Lab<'_>, bar: f64) -> Result<Outcome> {
        if let Some(lacking) = &self.lacking {
            return Ok(Outcome::not_applicable(lacking.clone()));
        }
        let (seen, equal) = self.matches.counts();
        let most = self.matches.wealth().most();
        let said = format!("{equal} of {seen} pairs had their first {COMPARED} tokens in common");
        let verdict = match () {
            () if most >= bar => Verdict::Fault,
            () if seen < PAIRS / 2 => Verdict::NotEnoughData,
            () => Verdict::Passed,
        };
        let mut outcome = Outcome::certain(verdict, seen, said.clone());
        outcome.p_value = Some(p_value(most));
        if verdict == Verdict::Fault {
            let ask = lab.continuation(self.openings[0], COMPARED, &Setting::default());
            let ask = Ask { choices: if self.choices { 2 } else { 1 }, ..ask };
            let curl = lab.server.curl(&lab.server.call(&ask));
            outcome.evidence.push(Evidence { what: said, curl });
        }
        Ok(outcome)
    }
}
