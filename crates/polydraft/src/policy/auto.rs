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
//! models, drafts, outputs and temperatures (`docs/drafts.md`).
//!
//! All of it is a function of the past, of the distributions on the way to a node and of the one at
//! it before anything is drawn, so every verifier that is exact for one path stays exact. The clock
//! changes nothing within a text: what it says goes into the costs of the next one
//! ([`Costs::calibrate`]).
//! Complexity: some hundred operations a step. Deviations: none.

mod acceptance;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Choices, CostEstimate, Costs, Described, Policy, StepContext, Timed, numbers};
use crate::draft::{Draft, DraftTree, Form, Path};
use crate::drafting::{Draws, Growth};
use crate::verify::Outcome;
use crate::{Distribution, Error, Result};
use acceptance::Acceptance;

/// Typed `auto`, or `auto:L` for at most L drafted tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Drafted tokens at most, from 1 to 16. Default 16.
    pub depth: usize,
    /// What steps cost, and what to expect of the draft.
    pub costs: Costs,
}

/// Drafted tokens, at most.
const DEPTH: usize = 16;
/// Roots that are remembered, at first uncertain ones: with four the demo pair lost 0.02, with
/// sixteen nothing is gained.
const ROOTS: usize = 8;
/// How uncertain a draft is taken for, and how often rejected, of which nothing better is known:
/// who expects less asks little, and does not learn that it was wrong.
const USUAL: f64 = 0.5;
/// The part of the time that may go into finding out whether plain decoding, or drafting, has
/// become the better one.
const PROBING: f64 = 0.01;
/// Plain steps that probes may lose besides: a draft whose first tokens were rejected, as happens
/// to the best, is tried until it has lost so much. With a half two rejected tokens, at T = 1 those
/// of a third of the outputs, ended drafting for good, as reading what it missed makes a probe ever
/// dearer: 0.02 less on average, in some cells 0.1. Two gain 0.01 more, and lose 0.01 where nothing
/// pays.
const FREE: f64 = 1.0;
/// What drafting must gain besides, in plain steps: costs are measured on a machine that is never
/// quiet, and are believed while they are wrong by less than a twentieth. By costs it loses
/// nothing.
const CAUTION: f64 = 0.03;
/// Plain steps in a row where drafts pay. The first one does not count ([`MeasuredTimes::plain`]).
///
/// [`MeasuredTimes::plain`]: super::MeasuredTimes::plain
const RUN: u32 = 3;
/// The part of its time that a plain step in place of drafting loses at least, as far as its
/// rhythm goes: where drafts gain next to nothing it would come all the time.
const LOSS: f64 = 0.1;

impl Default for Settings {
    fn default() -> Self {
        Self { depth: DEPTH, costs: Costs::default() }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.depth)
    }
}

impl Described for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        [self.depth] = numbers(text, "auto:L, such as auto:8")?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        if !(1..=DEPTH).contains(&self.depth) {
            let expected = "from 1 to 16 tokens";
            return Err(Error::Setting { setting: "auto", expected, got: self.to_string() });
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

#[derive(Default)]
struct Auto {
    /// Drafted tokens, at most; and in the step that comes.
    longest: usize,
    most: usize,
    /// Whether one token is drafted in it, worth it or not.
    probes: bool,
    estimate: CostEstimate,
    acceptance: Acceptance,
    /// λ: tokens per second that more tokens must bring.
    rate: f64,
    /// How uncertain the draft was at the last roots.
    roots: [f64; ROOTS],
    /// Seconds that probes lost.
    lost: f64,
    /// Seconds since a step told what plain decoding takes, and plain steps that are due.
    drafting: f64,
    due: u32,
}

impl Auto {
    fn new(Settings { depth, costs, .. }: Settings) -> Self {
        let acceptance = Acceptance::new(costs.rejected.min(USUAL));
        let estimate = CostEstimate::new(costs);
        let roots = [USUAL; ROOTS];
        let mut new = Self { longest: depth, acceptance, estimate, roots, ..Self::default() };
        new.think();
        new
    }

    /// Settles what is done in the next step.
    fn think(&mut self) {
        let (plain, first) = (self.estimate.target(1), self.estimate.first(false));
        let chains = self.chain(0, 1.0, self.acceptance.average);
        let rates = chains.map(|(gain, took)| (1.0 + gain) / (plain + first + took));
        self.rate = rates.fold(1.0 / plain, f64::max);
        let worth = |uncertain| self.worth(0, 1.0, self.acceptance.rejection(uncertain)).max(0.0);
        let worth = self.roots.map(worth).iter().sum::<f64>() / ROOTS as f64;
        // Where asking takes next to nothing, as with n-grams, nothing is missed by it.
        let asks = worth > self.rate * first - PROBING;
        let probe = self.estimate.first(true) + self.estimate.target(2) - plain;
        let loss = probe - (1.0 - self.acceptance.average) * plain;
        let may = FREE * plain + PROBING * self.estimate.choices.seconds;
        self.probes = !asks && self.lost + loss <= may;
        self.most = match asks && self.due == 0 {
            true => self.longest(),
            false => usize::from(self.probes),
        };
    }

    /// As deep as a tree may be.
    fn longest(&self) -> usize {
        self.longest.min(self.estimate.context.levels.unwrap_or(usize::MAX))
    }

    /// What drawing at a node and on from there brings, by the depth that it comes to: tokens, and
    /// the seconds that they take. `reached` is the probability that verification comes to the
    /// node, `here` that what is drawn there is rejected.
    fn chain(&self, from: usize, reached: f64, here: f64) -> impl Iterator<Item = (f64, f64)> {
        let (before, pass) = (self.estimate.target(1 + from), self.estimate.draft(1));
        let before = if from == 0 { (1.0 - CAUTION) * before } else { before };
        let (mut accepted, mut gain) = (reached * (1.0 - here), 0.0);
        (from + 1..=self.longest()).map(move |depth| {
            gain += accepted;
            accepted *= 1.0 - self.acceptance.average;
            let drafted = (depth - from - 1) as f64 * pass;
            (gain, self.estimate.target(1 + depth) - before + drafted)
        })
    }

    /// Tokens gained by the best depth, less what its seconds are worth.
    fn worth(&self, from: usize, reached: f64, here: f64) -> f64 {
        let worth = self.chain(from, reached, here).map(|(gain, took)| gain - self.rate * took);
        worth.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The probability that verification comes to the end of a path.
    fn reached(&self, path: &Path) -> f64 {
        path.confidence().map(|sure| 1.0 - self.acceptance.rejection(1.0 - sure)).product()
    }
}

impl Policy for Auto {
    fn may_grow(&self, path: &Path) -> bool {
        let (depth, average) = (path.depth(), self.acceptance.average);
        let worth = || self.worth(depth, self.reached(path), average);
        depth < self.most && (depth == 0 || worth() > self.rate * self.estimate.draft(1))
    }

    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        let (depth, here) = (path.depth(), self.acceptance.rejection(1.0 - probs.confidence()));
        let worth = || self.worth(depth, self.reached(path), here);
        (depth < self.most && (self.probes || worth() > 0.0)).then(|| match depth {
            0 => Growth::Fresh(Draws::iid(1)),
            _ => Growth::Continue,
        })
    }

    fn depth(&self) -> usize {
        self.most
    }

    fn form(&self) -> Form {
        Form::paths(1)
    }

    fn begin_step(&mut self, context: &StepContext) {
        self.estimate.context = *context;
        self.think();
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        let plain = self.estimate.target(1);
        let seconds = self.estimate.observe(draft, outcome);
        if self.probes {
            self.lost += seconds - (outcome.accepted.len() + 1) as f64 * plain;
        }
        self.due = self.due.saturating_sub(1);
        self.drafting = if self.estimate.is_plain() { 0.0 } else { self.drafting + seconds };
        let loss = (1.0 - 1.0 / self.estimate.choices.gain()).max(LOSS);
        if f64::from(RUN) * plain * loss < PROBING * self.drafting {
            self.due = RUN;
        }
        if !draft.pass_sizes().is_empty() {
            self.roots.rotate_right(1);
            // Where nothing was drawn, the draft was so uncertain that nothing was worth it.
            let probs = draft.distribution(DraftTree::ROOT);
            self.roots[0] = probs.map_or(1.0, |probs| 1.0 - probs.confidence());
        }
        let mut node = DraftTree::ROOT;
        for next in outcome.accepted.iter().copied().map(Some).chain([None]) {
            if let Some(probs) = draft.distribution(node) {
                self.acceptance.observe(1.0 - probs.confidence(), next.is_none());
            }
            node = next.unwrap_or(node);
        }
        self.think();
    }

    fn timed(&self) -> Option<&dyn Timed> {
        Some(self)
    }

    fn timed_mut(&mut self) -> Option<&mut dyn Timed> {
        Some(self)
    }
}

impl Timed for Auto {
    fn record_time(&mut self, seconds: f64) {
        self.estimate.record_time(seconds);
    }

    fn choices(&self) -> &Choices {
        &self.estimate.choices
    }
}

#[cfg(test)]
mod tests;
