//! Adaptive draft length: before each step, and at each node, as many tokens of one path as give
//! the most tokens per second; plain decoding where none do.
//!
//! Problem: how much to draft depends on what passes cost (a staircase in their tokens), on how
//! good the draft is in this text, and on its confidence in the next token. Too much drafting is
//! slower than none.
//! Source: ours. Renewal reward: with λ the most tokens per second that can be had, drawing more is
//! worth it while the tokens to be expected exceed λ times the seconds that they cost. What passes
//! cost is given ([`Costs`]), what acceptance to expect is fitted to the text ([`acceptance`]). λ
//! is what the best chain of average nodes gives: the most of E/(c + d) over its lengths, with E
//! tokens expected in a step of c seconds of the target and d of the draft.
//! Method:
//! 1. Before a step: is asking the draft worth its pass, as it was at the last roots on average? A
//!    pass may show that nothing should be drawn, which is part of its worth.
//! 2. At a node, the draft's distribution known: is there a length up to which drawing is worth it?
//!    And before the next pass of the draft: is it, at a node of average acceptance?
//! 3. Where asking is not worth it, one token is drafted now and then all the same, and where
//!    drafts pay a few steps are plain now and then, so that the clock can compare them: each as
//!    often as costs a hundredth of the time.
//! 4. With other sequences in a pass the costs are those of a pass in which all do as this one
//!    does, in step with each other. Drafts shrink as sequences join, down to none.
//!
//! Several paths are not considered. By costs they never beat the best chain in any of 54 cells of
//! models, drafts, texts and temperatures (`docs/measurements.md`).
//!
//! All of it is a function of the past, of the distributions on the way to a node and of the one at
//! it before anything is drawn, so every verifier that is exact for one path stays exact. The clock
//! changes nothing within a text: what it says goes into the costs of the next one
//! ([`Costs::learn`]).
//! Complexity: some hundred operations a step. Deviations: none.

mod acceptance;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Choices, Costs, Described, Growth, Policy, Reckoning, StepContext, numbers};
use crate::draft::{Draft, DraftTree, Form, Path};
use crate::drafting::Draws;
use crate::verify::Outcome;
use crate::{Distribution, Error, Result};
use acceptance::Acceptance;

/// Typed `auto`, `auto:K` or `auto:K,L` for at most L drafted tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Paths at most, from 1 to 4: one is drawn, however many are allowed. Default 1.
    pub paths: usize,
    /// Drafted tokens at most, from 1 to 16. Default 16.
    pub depth: usize,
    /// What steps cost, and what to expect of the draft.
    pub costs: Costs,
}

/// Drafted tokens, at most.
const DEPTH: usize = 16;
/// The part of what asking is expected to be worth that comes from the last root at which the
/// draft was asked.
const LAST: f64 = 0.125;
/// Rejections that are expected of a draft of which nothing good is known: who expects less asks
/// little, and does not learn that it was wrong.
const USUAL: f64 = 0.5;
/// The part of the time that may go into finding out whether plain decoding, or drafting, has
/// become the better one.
const PROBING: f64 = 0.01;
/// Plain steps that probes may lose besides: a draft whose first tokens were rejected, as happens
/// to the best, is tried until it has lost so much.
const FREE: f64 = 0.5;
/// Plain steps in a row where drafts pay. The first one does not count ([`Clocked::plain`]).
///
/// [`Clocked::plain`]: super::Clocked::plain
const RUN: u32 = 3;
/// The part of its time that a plain step in place of drafting loses at least, as far as its
/// rhythm goes: where drafts gain next to nothing it would come all the time.
const LOSS: f64 = 0.1;

impl Default for Settings {
    fn default() -> Self {
        Self { paths: 1, depth: DEPTH, costs: Costs::default() }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{},{}", self.paths, self.depth)
    }
}

impl Described for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        const EXPECTED: &str = "auto:K or auto:K,L, such as auto:1,8";
        match text.contains(',') {
            true => [self.paths, self.depth] = numbers(text, EXPECTED)?,
            false => [self.paths] = numbers(text, EXPECTED)?,
        }
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        for (setting, value, most, expected) in [
            ("paths of an automatic tree", self.paths, 4, "from 1 to 4"),
            ("depth of an automatic tree", self.depth, DEPTH, "from 1 to 16"),
        ] {
            if !(1..=most).contains(&value) {
                return Err(Error::Setting { setting, expected, got: value.to_string() });
            }
        }
        self.costs.validate()?;
        Ok(Box::new(Auto::new(self.clone())))
    }

    fn describe(&self) -> String {
        "one path, as deep as is worth it".to_owned()
    }

    fn nodes(&self) -> f64 {
        self.depth as f64
    }

    fn most_draws(&self, _: usize) -> f64 {
        self.nodes()
    }
}

/// What is done in the step that comes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plan {
    /// Nothing is asked of the draft.
    Plain,
    /// A path, as deep as is worth it.
    Draft,
    /// One token, worth it or not.
    Probe,
}

struct Auto {
    depth: usize,
    reckoning: Reckoning,
    acceptance: Acceptance,
    plan: Plan,
    /// λ: tokens per second that more tokens must bring.
    rate: f64,
    /// Tokens that drawing was worth at the last roots, on average, nothing where it was not.
    asked: f64,
    /// Seconds that probes lost.
    lost: f64,
    /// Seconds since a step was plain, and plain steps that are due.
    drafting: f64,
    due: u32,
}

impl Auto {
    fn new(Settings { depth, costs, .. }: Settings) -> Self {
        let mut new = Self {
            depth,
            acceptance: Acceptance::new(costs.rejected.min(USUAL)),
            reckoning: Reckoning::new(costs),
            plan: Plan::Plain,
            rate: 0.0,
            asked: 0.0,
            lost: 0.0,
            drafting: 0.0,
            due: 0,
        };
        new.think();
        new.asked = new.worth(0, 1.0, new.acceptance.average).max(0.0);
        new.think();
        new
    }

    /// Settles what is done in the next step.
    fn think(&mut self) {
        let plain = self.reckoning.target(1);
        self.rate = self.best_chain();
        // With other sequences in the pass, or behind more context, not even a sure draft may pay.
        let most = self.worth(0, 1.0, self.acceptance.rejection(0.0));
        // Where asking takes next to nothing, as with n-grams, nothing is missed by it.
        if self.asked.min(most) > self.rate * self.reckoning.first(false) - PROBING {
            self.plan = if self.due > 0 { Plan::Plain } else { Plan::Draft };
            return;
        }
        let seconds = self.reckoning.first(true) + self.reckoning.target(2) - plain;
        let loss = seconds - (1.0 - self.acceptance.average) * plain;
        let may = FREE * plain + PROBING * self.reckoning.choices().seconds;
        self.plan = if self.lost + loss <= may { Plan::Probe } else { Plan::Plain };
    }

    /// Tokens per second of the best chain of average nodes, or of plain decoding.
    fn best_chain(&self) -> f64 {
        let accepted = 1.0 - self.acceptance.average;
        let mut drafted = self.reckoning.first(false);
        let (mut tokens, mut reached, mut best) = (1.0, 1.0, 1.0 / self.reckoning.target(1));
        for depth in 1..=self.depth {
            reached *= accepted;
            tokens += reached;
            best = f64::max(best, tokens / (self.reckoning.target(1 + depth) + drafted));
            drafted += self.reckoning.draft(1);
        }
        best
    }

    /// Tokens gained, less what the seconds are worth, by drawing at a node and on from there to
    /// the best depth; `reached` is the probability that verification comes to the node, `here`
    /// that what is drawn there is rejected.
    fn worth(&self, depth: usize, reached: f64, here: f64) -> f64 {
        let (before, later) = (self.reckoning.target(1 + depth), self.acceptance.average);
        let mut accepted = reached * (1.0 - here);
        let (mut gain, mut drafted, mut best) = (0.0, 0.0, f64::NEG_INFINITY);
        for depth in depth + 1..=self.depth {
            gain += accepted;
            accepted *= 1.0 - later;
            let seconds = self.reckoning.target(1 + depth) - before + drafted;
            best = f64::max(best, gain - self.rate * seconds);
            // More takes no less, and what can still be accepted is all that there is to gain.
            if gain + accepted / later - self.rate * seconds <= best {
                break;
            }
            drafted += self.reckoning.draft(1);
        }
        best
    }

    /// The probability that verification comes to the end of a path.
    fn reached(&self, path: &Path) -> f64 {
        path.confidence().map(|sure| 1.0 - self.acceptance.rejection(1.0 - sure)).product()
    }
}

impl Policy for Auto {
    fn goes_on(&self, path: &Path) -> bool {
        match (self.plan, path.depth()) {
            (Plan::Plain, _) => false,
            (_, 0) => true,
            (Plan::Probe, _) => false,
            (Plan::Draft, depth) => {
                let worth = self.worth(depth, self.reached(path), self.acceptance.average);
                worth > self.rate * self.reckoning.draft(1)
            }
        }
    }

    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        let here = self.acceptance.rejection(1.0 - probs.confidence());
        let is_drawn = match (self.plan, path.depth()) {
            (Plan::Plain, _) => false,
            (Plan::Probe, depth) => depth == 0,
            (Plan::Draft, depth) => self.worth(depth, self.reached(path), here) > 0.0,
        };
        is_drawn.then(|| match path.depth() {
            0 => Growth::Fresh(Draws::iid(1)),
            _ => Growth::Continue,
        })
    }

    fn depth(&self) -> usize {
        match self.plan {
            Plan::Plain => 0,
            Plan::Probe => 1,
            Plan::Draft => self.depth,
        }
    }

    fn form(&self) -> Form {
        Form::paths(1)
    }

    fn begin_step(&mut self, context: &StepContext) {
        self.reckoning.begin_step(context);
        self.think();
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        let plain = self.reckoning.target(1);
        let seconds = self.reckoning.observe(draft, outcome);
        if self.plan == Plan::Probe {
            self.lost += seconds - (outcome.accepted.len() + 1) as f64 * plain;
        }
        self.due = self.due.saturating_sub(1);
        self.drafting = if draft.tree().len() > 1 { self.drafting + seconds } else { 0.0 };
        let loss = (1.0 - 1.0 / self.reckoning.choices().gain()).max(LOSS);
        if f64::from(RUN) * plain * loss < PROBING * self.drafting {
            self.due = RUN;
        }

        let unsure = |node| draft.distribution(node).map(|probs| 1.0 - probs.confidence());
        if !draft.asked().is_empty() {
            // Where nothing was drawn, the draft was so unsure that nothing was worth it.
            let rejection = unsure(DraftTree::ROOT).map(|unsure| self.acceptance.rejection(unsure));
            let worth = rejection.map_or(0.0, |here| self.worth(0, 1.0, here).max(0.0));
            self.asked += LAST * (worth - self.asked);
        }
        let ends =
            outcome.accepted.iter().map(|&node| (node, false)).chain([(DraftTree::ROOT, true)]);
        let mut node = DraftTree::ROOT;
        for (next, rejected) in ends {
            if let Some(unsure) = unsure(node) {
                self.acceptance.observe(unsure, rejected);
            }
            node = next;
        }
        self.think();
    }

    fn clock(&mut self, seconds: f64) {
        self.reckoning.clock(seconds);
    }

    fn choices(&self) -> Option<&Choices> {
        Some(self.reckoning.choices())
    }
}

#[cfg(test)]
mod tests;
