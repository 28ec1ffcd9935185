//! Two servers answer alike: the one that is tested, and one that does not speculate.

use super::Check;
use crate::error::Result;
use crate::evidence::{Pairs, p_value};
use crate::lab::Lab;
use crate::prompts::Kind;
use crate::report::{Evidence, Outcome, Verdict};
use crate::server::Ask;
use crate::setting::Setting;

/// Pairs of a round, pairs at most, such as are worth a verdict, and tokens of an answer.
const ROUND: usize = 48;
const PAIRS: usize = 20_000;
const ENOUGH: usize = 1000;
const TOKENS: usize = 8;

/// Compares answers.
pub struct Reference {
    openings: Vec<usize>,
    pairs: Pairs,
    lacking: Option<&'static str>,
}

impl Reference {
    /// Nothing is seen.
    pub fn new(tolerance: f64) -> Self {
        Self { openings: Vec::new(), pairs: Pairs::new(tolerance), lacking: None }
    }
}

impl Check for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn title(&self) -> String {
        "answers beside the reference's".to_owned()
    }

    fn is_statistical(&self) -> bool {
        true
    }

    fn round(&mut self, lab: &mut Lab<'_>, bar: f64) -> Result<bool> {
        let Some(reference) = &lab.reference else {
            self.lacking = Some("no reference was given");
            return Ok(true);
        };
        if lab.knows() {
            self.lacking = Some("the distributions are known, which tells more");
            return Ok(true);
        }
        // Both take the prompt as text.
        let chat = reference.abilities.dialect == crate::server::Dialect::Chat
            || lab.server.abilities.dialect == crate::server::Dialect::Chat;
        if chat && reference.abilities.dialect != lab.server.abilities.dialect {
            self.lacking = Some("one of the servers has completions, the other one has not");
            return Ok(true);
        }
        if self.openings.is_empty() {
            self.openings = lab.choose(Kind::Plain, 2)?;
            self.openings.extend(lab.choose(Kind::Repeating, 1)?);
        }
        let prompts: Vec<usize> = (0..ROUND).map(|at| at % self.openings.len()).collect();
        let asks: Vec<Ask> = prompts
            .iter()
            .map(|at| {
                let text = lab.openings[self.openings[*at]].text.clone();
                Ask::new(crate::server::Prompt::Text(text), TOKENS, Setting::default())
            })
            .collect();
        let own = lab.ask(&asks, usize::MAX)?;
        let Some(reference) = &lab.reference else { return Ok(true) };
        let other = reference.ask_all(&asks, usize::MAX, lab.listener)?;
        for ((prompt, own), other) in prompts.iter().zip(&own).zip(&other) {
            self.pairs.see(*prompt, &own.first().text, &other.first().text);
        }
        Ok(self.pairs.wealth().most() >= bar || self.pairs.pairs() >= PAIRS)
    }

    fn outcome(&mut self, lab: &mut Lab<'_>, bar: f64) -> Result<Outcome> {
        if let Some(lacking) = self.lacking {
            return Ok(Outcome::not_applicable(lacking));
        }
        let most = self.pairs.wealth().most();
        let seen = self.pairs.pairs();
        let said = match self.pairs.widest() {
            None => String::new(),
            Some((text, own, other)) => {
                let text = text.split_once(':').map_or("", |(_, text)| text);
                format!("{text:?} is in {own} of {seen} answers, and in {other} of the reference's")
            }
        };
        let verdict = match () {
            () if most >= bar => Verdict::Fault,
            () if seen < ENOUGH => Verdict::NotEnoughData,
            () => Verdict::Passed,
        };
        let mut outcome = Outcome::certain(verdict, seen, said.clone());
        outcome.p_value = Some(p_value(most));
        if verdict == Verdict::Fault {
            let opening = self.openings[0];
            let ask = lab.continuation(opening, TOKENS, &Setting::default());
            outcome
                .evidence
                .push(Evidence { what: said, curl: lab.server.curl(&lab.server.call(&ask)) });
        }
        Ok(outcome)
    }
}
