//! Adaptive draft length: before each step, and at each node, the length of one path with the most
//! tokens per second; plain decoding where drafting does not pay.
//!
//! Problem: the best draft length depends on what passes cost (a staircase in their tokens), on how
//! good the draft is for this output, and on its confidence in the next token. Too much drafting is
//! slower than none.
//! Source: ours. Renewal reward: with λ the highest achievable rate in tokens per second, drawing
//! more is worth it while the expected tokens exceed λ times the seconds that they cost. Pass costs
//! are given ([`Costs`]), the acceptance is fitted to the output ([`acceptance`]). λ is the rate of
//! the best chain of average nodes: the maximum of E/(c + d) over its lengths, with E tokens
//! expected in a step of c seconds of the target and d of the draft.
//! Method:
//! 1. Before a step, a draft pass is run only if its expected gain exceeds the cost of its time.
//!    The expected gain is an average over the last roots; a root at which nothing should be drawn
//!    counts as 0.
//! 2. At a node, with the draft's distribution known, a token is drawn if drawing up to some length
//!    is worth its cost. The next draft pass is run if it is worth its cost at a node of average
//!    acceptance.
//! 3. Where a draft pass is not worth its cost, one token is still drafted occasionally (a probe),
//!    and where drafts pay, a few steps are occasionally plain, so that measured times can be
//!    compared: each so often that it costs one percent of the time.
//! 4. With other sequences in a pass, costs are estimated for a pass in which all sequences draft
//!    as much as this one. Drafts shrink as sequences join, down to none.
//!
//! Several paths are not considered. Estimated from costs, they never beat the best chain in any of
//! 54 combinations of model, draft, kind of output and temperature (`docs/drafts.md`).
//!
//! Decisions are functions of the past, of the distributions on the way to a node, and of the
//! node's distribution before anything is drawn from it, so every verifier that is exact for one
//! path stays exact. Measured times change nothing within a sequence: they correct the costs of the
//! next one without a seed ([`Costs::learn`]).
//! Complexity: a few hundred operations per step. Deviations: none.

mod acceptance;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Choices, CostEstimate, Costs, Policy, PolicySettings, StepContext, Timed, parse_numbers,
};
use crate::draft::{Draft, DraftTree, Form, Path};
use crate::drafting::{Draws, Growth};
use crate::verify::Outcome;
use crate::{Distribution, Error, Result};
use acceptance::Acceptance;

/// Settings of the adaptive draft length. Typed `auto`, or `auto:L` for at most L drafted tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum number of drafted tokens, from 1 to 64. Default 64.
    pub depth: usize,
    /// Costs of steps, and the expected quality of the draft.
    pub costs: Costs,
    /// Whether a sequence starts with a few plain steps, whose times the costs can be learned from
    /// however short it is.
    #[serde(skip)]
    pub times_plain: bool,
}

/// Maximum number of drafted tokens.
const DEPTH: usize = 64;
/// Number of recent roots whose uncertainty is stored; before the first step all count as
/// uncertain. With four the demo pair lost 0.02; sixteen gain nothing.
const ROOTS: usize = 8;
/// Initial uncertainty of a draft, and upper bound of its initial rejection rate. With a higher
/// value too little would be drafted to correct it.
const INITIAL: f64 = 0.5;
/// Fraction of the time that may be spent on finding out whether plain decoding, or drafting, has
/// become faster.
const PROBING: f64 = 0.01;
/// Time that probes may lose in addition, in plain steps: a draft whose first tokens are rejected,
/// as happens even to the best drafts, is tried until this much is lost. With 0.5, two rejected
/// tokens, as in a third of the outputs at T = 1, ended drafting for good, because reading the
/// missed tokens makes probes ever more expensive: 0.02 less on average, in some combinations of
/// model and output 0.1. With 2 the gain is 0.01 more, and the loss 0.01 where nothing pays.
const FREE_LOSS: f64 = 1.0;
/// Additional gain required of drafting, in plain steps: costs are estimated, or learned from
/// noisy times. Estimated from costs, this loses nothing.
const MARGIN: f64 = 0.03;
/// Plain steps in a row where drafts pay. The first one is not counted as plain
/// ([`MeasuredTimes`]).
///
/// [`MeasuredTimes`]: super::MeasuredTimes
const PLAIN_RUN: u32 = 3;
/// Plain steps at the start of a sequence from which costs are learned; the first one is not
/// counted.
const FIRST_RUN: u32 = 5;
/// Minimum fraction of its time that a plain step in place of drafting is assumed to lose, when
/// scheduling plain steps: where drafts gain next to nothing, plain steps would otherwise be
/// scheduled all the time.
const MIN_LOSS: f64 = 0.1;

impl Default for Settings {
    fn default() -> Self {
        Self { depth: DEPTH, costs: Costs::default(), times_plain: false }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.depth)
    }
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        [self.depth] = parse_numbers(text, "auto:L, such as auto:8")?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        if !(1..=DEPTH).contains(&self.depth) {
            let expected = "from 1 to 64 tokens";
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

    fn max_draws(&self, _: usize) -> f64 {
        self.nodes()
    }
}

#[derive(Default)]
struct Auto {
    /// Maximum number of drafted tokens, by the settings.
    settings_depth: usize,
    /// Maximum number of drafted tokens in the next step.
    step_depth: usize,
    /// True if the next step is a probe: one token is drafted although it is not expected to pay.
    probes: bool,
    estimate: CostEstimate,
    acceptance: Acceptance,
    /// λ, in tokens per second: the rate that additional tokens must exceed.
    rate: f64,
    /// Uncertainty of the draft (1 − confidence) at the last roots, most recent first.
    roots: [f64; ROOTS],
    /// Seconds lost by probes so far.
    lost: f64,
    /// Seconds since the last step that measured plain decoding.
    since_plain: f64,
    /// Plain steps that are due.
    due: u32,
}

impl Auto {
    fn new(Settings { depth, costs, times_plain }: Settings) -> Self {
        let acceptance = Acceptance::new(costs.rejected.min(INITIAL));
        let estimate = CostEstimate::new(costs);
        let roots = [INITIAL; ROOTS];
        let due = if times_plain { FIRST_RUN } else { 0 };
        let mut new =
            Self { settings_depth: depth, acceptance, estimate, roots, due, ..Self::default() };
        new.plan_step();
        new
    }

    /// Decides whether the next step drafts, probes or decodes plainly.
    fn plan_step(&mut self) {
        let (plain, first) =
            (self.estimate.target_seconds(1), self.estimate.first_draft_seconds(false));
        let chains = self.chain_gains(0, 1.0, self.acceptance.average);
        let rates = chains.map(|(gain, took)| (1.0 + gain) / (plain + first + took));
        self.rate = rates.fold(1.0 / plain, f64::max);
        let worth =
            |uncertain| self.net_gain(0, 1.0, self.acceptance.rejection(uncertain)).max(0.0);
        let worth = self.roots.map(worth).iter().sum::<f64>() / ROOTS as f64;
        // Where a draft pass takes next to no time, as with n-grams, querying the draft loses
        // nothing.
        let drafts = worth > self.rate * first - PROBING;
        let probe =
            self.estimate.first_draft_seconds(true) + self.estimate.target_seconds(2) - plain;
        let loss = probe - (1.0 - self.acceptance.average) * plain;
        let allowed = FREE_LOSS * plain + PROBING * self.estimate.choices.seconds;
        self.probes = !drafts && self.lost + loss <= allowed;
        self.step_depth = match drafts && self.due == 0 {
            true => self.max_depth(),
            false => usize::from(self.probes),
        };
    }

    /// Maximum depth of the next tree.
    fn max_depth(&self) -> usize {
        self.settings_depth.min(self.estimate.context.levels.unwrap_or(usize::MAX))
    }

    /// Expected gain in tokens and cost in seconds of drawing from depth `from` down, for each
    /// possible end depth. `reached` is the probability that verification reaches the node, `here`
    /// the probability that the token drawn there is rejected.
    fn chain_gains(
        &self,
        from: usize,
        reached: f64,
        here: f64,
    ) -> impl Iterator<Item = (f64, f64)> {
        let (before, pass) =
            (self.estimate.target_seconds(1 + from), self.estimate.draft_seconds(1));
        let before = if from == 0 { (1.0 - MARGIN) * before } else { before };
        let (mut accepted, mut gain) = (reached * (1.0 - here), 0.0);
        (from + 1..=self.max_depth()).map(move |depth| {
            gain += accepted;
            accepted *= 1.0 - self.acceptance.average;
            let drafted = (depth - from - 1) as f64 * pass;
            (gain, self.estimate.target_seconds(1 + depth) - before + drafted)
        })
    }

    /// Net gain of the best depth: expected tokens less λ times their seconds.
    fn net_gain(&self, from: usize, reached: f64, here: f64) -> f64 {
        let gains =
            self.chain_gains(from, reached, here).map(|(gain, took)| gain - self.rate * took);
        gains.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The probability that verification reaches the end of a path.
    fn reach_probability(&self, path: &Path) -> f64 {
        path.confidence()
            .map(|confidence| 1.0 - self.acceptance.rejection(1.0 - confidence))
            .product()
    }
}

impl Policy for Auto {
    fn may_grow(&self, path: &Path) -> bool {
        let (depth, average) = (path.depth(), self.acceptance.average);
        let net_gain = || self.net_gain(depth, self.reach_probability(path), average);
        depth < self.step_depth
            && (depth == 0 || net_gain() > self.rate * self.estimate.draft_seconds(1))
    }

    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        let (depth, here) = (path.depth(), self.acceptance.rejection(1.0 - probs.confidence()));
        let net_gain = || self.net_gain(depth, self.reach_probability(path), here);
        (depth < self.step_depth && (self.probes || net_gain() > 0.0)).then(|| match depth {
            0 => Growth::Fresh(Draws::iid(1)),
            _ => Growth::Continue,
        })
    }

    fn depth(&self) -> usize {
        self.step_depth
    }

    fn form(&self) -> Form {
        Form::paths(1)
    }

    fn begin_step(&mut self, context: &StepContext) {
        self.estimate.context = *context;
        self.plan_step();
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        let plain = self.estimate.target_seconds(1);
        let seconds = self.estimate.observe(draft, outcome);
        if self.probes {
            self.lost += seconds - (outcome.accepted.len() + 1) as f64 * plain;
        }
        self.due = self.due.saturating_sub(1);
        self.since_plain = if self.estimate.is_plain() { 0.0 } else { self.since_plain + seconds };
        let loss = (1.0 - 1.0 / self.estimate.choices.gain()).max(MIN_LOSS);
        if f64::from(PLAIN_RUN) * plain * loss < PROBING * self.since_plain {
            self.due = PLAIN_RUN;
        }
        if !draft.pass_sizes().is_empty() {
            self.roots.rotate_right(1);
            // If nothing was drawn, the draft counts as entirely uncertain.
            let probs = draft.distribution(DraftTree::ROOT);
            self.roots[0] = probs.map_or(1.0, |probs| 1.0 - probs.confidence());
        }
        let mut node = DraftTree::ROOT;
        for next in outcome.accepted.iter().copied().map(Some).chain([None]) {
            if let Some(probs) = draft.distribution(node) {
                self.acceptance.observe(1.0 - probs.confidence(), next.is_none());
                self.estimate.choices.verified += 1;
                self.estimate.choices.rejected += u64::from(next.is_none());
            }
            node = next.unwrap_or(node);
        }
        self.plan_step();
    }

    fn timed(&self) -> Option<&dyn Timed> {
        Some(self)
    }

    fn timed_mut(&mut self) -> Option<&mut dyn Timed> {
        Some(self)
    }
}

impl Timed for Auto {
    fn record_time(&mut self, seconds: f64, draft_seconds: f64) {
        self.estimate.record_time(seconds, draft_seconds);
    }

    fn choices(&self) -> &Choices {
        &self.estimate.choices
    }
}

#[cfg(test)]
mod tests;
