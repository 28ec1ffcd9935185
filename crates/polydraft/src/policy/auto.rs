//! The tree that chooses itself: before each step, and at each node, what gives the most tokens per
//! second.
//!
//! Problem: how much to draft depends on what a pass costs (a staircase in its rows), on how good
//! the drafts are in this text, and on how sure the draft is of the next token. Too much drafting
//! is slower than none.
//! Source: ours. Renewal reward: with λ the most tokens per second that can be had, drawing more is
//! worth it while the tokens to be expected exceed λ times the seconds it costs. λ is what was
//! reached so far, or what a chain is expected to reach where that is more. What passes cost is
//! given ([`Costs`]); what acceptance to expect is fitted to this text ([`expect`]). Method:
//! 1. Before a step: for each number of paths, the worth of asking the draft at all, averaged over
//!    how sure it was at the last roots. The best number is taken; nothing is asked where none is
//!    worth it.
//! 2. At a node, the draft's distribution known: is there a depth up to which drawing is worth it?
//!    And before the next pass of the draft: is it, averaged likewise? A pass may show that nothing
//!    should be drawn, which is a part of its worth.
//! 3. Where that says no, one token is drafted all the same while the past may have been bad luck
//!    (one standard deviation, or two where a probe is cheap), and after that now and then, as
//!    often as costs a hundredth of the time.
//! 4. Among other texts in a pass ([`Policy::among`]) the costs are those of a pass in which all do
//!    as this one does, in step with each other: a row more is then as many rows, whose step on the
//!    staircase all of them pay and use. Trees shrink as texts join, down to none. A probe is one
//!    text's alone, and all wait for it.
//!
//! All of it is a function of the past, of the distributions on the way to a node and of the one at
//! it before anything is drawn, so every verifier that is exact for independent paths stays exact.
//! Complexity: some thousand operations a step: 6 µs with three nodes of one path, 11 with as many
//! of up to four, 26 with six (`cargo bench -p polydraft --bench policy`). Deviations: none.

mod expect;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::reckoning::Reckoning;
use super::{Choices, Costs, Described, Growth, Policy, StepContext, numbers};
use crate::draft::{Draft, DraftTree, Form, Path};
use crate::drafting::Draws;
use crate::verify::Outcome;
use crate::{Distribution, Error, Result};
use expect::Expected;

/// Typed `auto`, `auto:K` for at most K paths, or `auto:K,L` for at most L tokens of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Paths at most, from 1 to 4. Default 4.
    pub paths: usize,
    /// Tokens of a path at most, from 1 to 16. Default 16.
    pub depth: usize,
    /// What passes cost, and what to expect of the draft.
    pub costs: Costs,
}

/// Most paths that are considered: more are never worth their rows.
const PATHS: usize = 4;
/// Tokens of a path, at most.
const DEPTH: usize = 16;
/// Roots that are remembered: with twice as many trees were no better, and thinking took twice as
/// long.
const ROOTS: usize = 16;
/// The part of the time that may go into finding out whether drafting has become worth it.
const PROBING: f64 = 0.01;
/// The part that probes may have lost where the past may have been bad luck.
const TRYING: f64 = 0.01;
/// Plain steps that they may have lost besides: half of a hundredth of a text of some tens of
/// tokens, and enough for several cheap probes. A draft whose first two tokens were rejected was
/// given up for the rest of a text in which others like it made 1.3 of plain. On llama.cpp, whose
/// pass over two rows in q8_0 takes as long as two and a half over one, a probe loses one and a
/// half, and texts of 64 tokens lost up to a quarter.
const FREE: f64 = 0.5;
/// The part of what drafts have gained so far that probes may have lost besides: a text in which
/// they paid is likely to be one again.
const OF_GAINS: f64 = 0.25;
/// Plain steps that they may have lost besides for each node by which the guess is trusted: a copy
/// of the target whose first three tokens were rejected was given up for the rest of a text of
/// which it would have guessed nine in ten.
const OF_TRUST: f64 = 0.25;
/// The part of a plain step that a probe may take and be tried for longer: near the point where
/// drafts pay, trying costs next to nothing, and giving up at one standard deviation lost a
/// twentieth.
const CHEAP: f64 = 0.5;
/// A text begins as if so many tokens had been decoded plainly.
const START: f64 = 8.0;
/// How fast the past is forgotten, a step.
const DECAY: f64 = 0.98;
/// What a tree must gain besides, in plain passes: costs are measured on a machine that is never
/// quiet, and of many trees the one that seems best is likely to be one that was measured too
/// cheap.
const CAUTION: f64 = 0.03;

impl Default for Settings {
    fn default() -> Self {
        Self { paths: PATHS, depth: DEPTH, costs: Costs::default() }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{},{}", self.paths, self.depth)
    }
}

impl Described for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        const EXPECTED: &str = "auto:K or auto:K,L, such as auto:2,8";
        match text.contains(',') {
            true => [self.paths, self.depth] = numbers(text, EXPECTED)?,
            false => [self.paths] = numbers(text, EXPECTED)?,
        }
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        for (setting, value, most, expected) in [
            ("paths of an automatic tree", self.paths, PATHS, "from 1 to 4"),
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
        match self.paths {
            1 => "one path, as deep as is worth it".to_owned(),
            paths => format!("up to {paths} paths, as many and as deep as is worth it"),
        }
    }

    fn nodes(&self) -> f64 {
        (self.paths * self.depth) as f64
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
    /// So many paths, each as deep as is worth it.
    Paths(usize),
    /// One token, worth it or not.
    Probe,
}

struct Auto {
    /// Paths, and tokens of each, at most.
    paths: usize,
    depth: usize,
    expected: Expected,
    /// How unsure the draft was at the last roots, the oldest overwritten first.
    roots: Vec<f64>,
    next_root: usize,
    reckoning: Reckoning,
    /// Tokens, and time in plain steps of that time, the past forgotten by and by.
    tokens: f64,
    time: f64,
    /// Tokens per second that more tokens must bring: what plain decoding gives, what was reached
    /// so far, or what chains are expected to give, whatever is most. With the past alone time was
    /// worth too little where a text begins, and trees were too deep.
    rate: f64,
    /// Seconds that probes lost.
    lost: f64,
    plan: Plan,
    /// Tokens that asking the draft is expected to gain, if it has read the text.
    worth: f64,
    /// The same of the steps since it was last asked.
    missed: f64,
    /// Seconds that the draft needs to read what was decided without it, up to where asking it was
    /// last worth nothing.
    reading: f64,
    /// What one draw may meet where the draft is not asked yet.
    ahead: Vec<Ahead>,
}

/// What draws may meet at a node: one of those that there were, each as likely.
struct Ahead {
    /// How unsure the draft was.
    unsure: f64,
    /// The probability that one draw is rejected here, and at nodes below.
    here: f64,
    later: f64,
}

/// Where a tree stands that may be drawn further.
#[derive(Clone, Copy)]
struct Standing {
    /// Distinct tokens of a level, to be expected.
    wide: f64,
    depth: usize,
    /// The probability that verification comes here.
    reached: f64,
    /// Seconds of verification that drawing here brings, and [`CAUTION`]: all of it at the root,
    /// nothing where the tree has begun.
    verification: f64,
}

impl Auto {
    fn new(settings: Settings) -> Self {
        let mut new = Self {
            paths: settings.paths,
            depth: settings.depth,
            expected: Expected::new(settings.costs.guess),
            roots: Vec::new(),
            next_root: 0,
            reckoning: Reckoning::new(settings.costs),
            tokens: START,
            time: START,
            rate: 0.0,
            lost: 0.0,
            plan: Plan::Plain,
            worth: 0.0,
            missed: 0.0,
            reading: 0.0,
            ahead: Vec::new(),
        };
        new.think();
        new
    }

    /// Settles what is done in the next step.
    fn think(&mut self) {
        self.rate = (self.tokens / self.time).max(self.best_chain()) / self.reckoning.target(1.0);
        self.ahead = self.ahead(&self.expected);
        (self.plan, self.worth) = self.plan();
    }

    /// Tokens in the time of a plain step, of the best chain of nodes of average sureness; 1 where
    /// plain decoding is better.
    fn best_chain(&self) -> f64 {
        let (plain, accepted) = (self.reckoning.target(1.0), 1.0 - self.expected.average());
        let (first, draft) = (self.reckoning.first_draft(), self.reckoning.draft(1.0));
        let beside = self.reckoning.verification(1) + CAUTION * plain;
        let (mut tokens, mut reached, mut best) = (1.0, 1.0, 1.0_f64);
        for depth in 1..=self.depth {
            reached *= accepted;
            tokens += reached;
            let drafted = first + (depth - 1) as f64 * draft;
            let seconds = self.reckoning.target(1.0 + depth as f64) + drafted + beside;
            best = best.max(tokens * plain / seconds);
        }
        best
    }

    /// Tokens gained, less what the seconds are worth, by drawing below a node and on from there,
    /// to the best depth; `here` is the probability that all draws at the node are rejected,
    /// `later` the same at nodes below.
    fn worth(&self, at: Standing, here: f64, later: f64) -> f64 {
        let rows = |depth: usize| self.reckoning.target(1.0 + depth as f64 * at.wide);
        let (before, draft) = (rows(at.depth), self.reckoning.draft(at.wide));
        let (mut accepted, mut gain, mut best) =
            (at.reached * (1.0 - here), 0.0, f64::NEG_INFINITY);
        for more in 1..=self.depth.saturating_sub(at.depth) {
            gain += accepted;
            accepted *= 1.0 - later;
            let drafted = (more - 1) as f64 * draft;
            let seconds = self.rate * (rows(at.depth + more) - before + drafted + at.verification);
            best = best.max(gain - seconds);
            // More takes no less, and what can still be accepted is all that there is to gain.
            if gain + accepted / later - seconds <= best {
                break;
            }
        }
        best
    }

    /// The standing at a root where the draft is so unsure.
    fn root(&self, paths: usize, unsure: f64) -> Standing {
        let wide = 1.0 + (paths - 1) as f64 * self.expected.differ(unsure);
        let verification =
            self.reckoning.verification(paths) + CAUTION * self.reckoning.target(1.0);
        Standing { wide, depth: 0, reached: 1.0, verification }
    }

    /// What draws may meet where the draft is not asked yet: what they would at the last roots.
    fn ahead(&self, expected: &Expected) -> Vec<Ahead> {
        let ahead = |unsure| {
            let here = expected.rejection(unsure);
            // Sureness lasts: the nodes below are half like this one.
            Ahead { unsure, here, later: 0.5 * (here + expected.average()) }
        };
        expected.ahead(&self.roots, ROOTS).map(ahead).collect()
    }

    /// What drawing is worth on average where it comes to one of these, and nothing where it will
    /// turn out that the draft is too unsure.
    fn unseen(ahead: &[Ahead], worth: impl Fn(&Ahead) -> f64) -> f64 {
        ahead.iter().map(|node| worth(node).max(0.0)).sum::<f64>() / ahead.len() as f64
    }

    /// What asking the draft at a root is worth, with so many paths.
    fn asking(&self, paths: usize, ahead: &[Ahead]) -> f64 {
        let drawing = Self::unseen(ahead, |node| {
            let here = self.expected.all_rejected(node.here, node.unsure, paths);
            self.worth(self.root(paths, node.unsure), here, node.later)
        });
        drawing - self.rate * self.reckoning.first_draft()
    }

    /// What is done in the next step, and what asking the draft is worth.
    fn plan(&self) -> (Plan, f64) {
        // Fewer paths where more are worth no more.
        let most =
            |best: (f64, usize), next: (f64, usize)| if next.0 > best.0 { next } else { best };
        let paths = if self.expected.differ(1.0) > 0.0 { self.paths } else { 1 };
        let (worth, paths) = (1..=paths)
            .map(|paths| (self.asking(paths, &self.ahead), paths))
            .fold((f64::NEG_INFINITY, 1), most);
        // It reads what was decided without it once, however often it is asked then: that is worth
        // it when as much was missed.
        let is_worth_reading = self.missed + worth.max(0.0) >= self.rate * self.reading - PROBING;
        // Asking may cost next to nothing, as where n-grams draft: then nothing is missed by
        // asking.
        if worth > -PROBING && is_worth_reading {
            return (Plan::Paths(paths), worth);
        }
        let plain = self.reckoning.target(1.0);
        let (probe, since) = (self.reckoning.probe(), self.reckoning.unasked as f64 * plain);
        let luck = if probe < CHEAP * plain { 2.0 } else { 1.0 };
        let loss = probe - (1.0 - self.expected.average()) * plain;
        let Choices { seconds, plain_seconds, .. } = self.reckoning.choices;
        let gained = (plain_seconds - seconds).max(0.0);
        let trusted = OF_TRUST * self.expected.trust() * plain;
        let affordable =
            self.lost + loss <= TRYING * seconds + FREE * plain + OF_GAINS * gained + trusted;
        let unlucky = affordable && self.asking(1, &self.ahead(&self.expected.lucky(luck))) > 0.0;
        let plan = if unlucky || probe <= PROBING * since { Plan::Probe } else { Plan::Plain };
        (plan, worth)
    }

    /// The probability that all draws at a root are rejected, where the draft is so unsure.
    fn rejection(&self, unsure: f64, paths: usize) -> f64 {
        self.expected.all_rejected(self.expected.rejection(unsure), unsure, paths)
    }

    fn remember(&mut self, unsure: f64) {
        match self.roots.get_mut(self.next_root) {
            Some(old) => *old = unsure,
            None => self.roots.push(unsure),
        }
        self.next_root = (self.next_root + 1) % ROOTS;
    }

    /// The standing at the end of a path in this step's tree.
    fn standing(&self, path: &Path) -> Standing {
        let Plan::Paths(paths) = self.plan else { return self.root(1, 0.0) };
        let unsure: Vec<f64> = path.sureness().map(|sure| 1.0 - sure).collect();
        let Some((&root, inner)) = unsure.split_last() else { return self.root(paths, 0.0) };
        let inner: f64 =
            inner.iter().map(|&unsure| 1.0 - self.expected.rejection(unsure)).product();
        let reached = inner * (1.0 - self.rejection(root, paths));
        Standing { depth: unsure.len(), reached, verification: 0.0, ..self.root(paths, root) }
    }
}

impl Policy for Auto {
    fn goes_on(&self, path: &Path) -> bool {
        match (self.plan, path.depth()) {
            (Plan::Plain, _) => false,
            (_, 0) => true,
            (Plan::Probe, _) => false,
            (Plan::Paths(_), _) => {
                let at = self.standing(path);
                let drawing =
                    Self::unseen(&self.ahead, |node| self.worth(at, node.here, node.later));
                drawing > self.rate * self.reckoning.draft(at.wide)
            }
        }
    }

    fn draws(&self, path: &Path, law: &Distribution) -> Option<Growth> {
        let (unsure, average) = (1.0 - law.sureness(), self.expected.average());
        match (self.plan, path.depth()) {
            (Plan::Plain, _) => None,
            (Plan::Probe, depth) => (depth == 0).then_some(Growth::Fresh(Draws::iid(1))),
            (Plan::Paths(paths), 0) => {
                let here = self.rejection(unsure, paths);
                let worth = self.worth(self.root(paths, unsure), here, average);
                (worth > 0.0).then_some(Growth::Fresh(Draws::iid(paths)))
            }
            (Plan::Paths(_), _) => {
                let here = self.expected.rejection(unsure);
                let worth = self.worth(self.standing(path), here, average) > 0.0;
                worth.then_some(Growth::Continue)
            }
        }
    }

    fn depth(&self) -> usize {
        match self.plan {
            Plan::Plain => 0,
            Plan::Probe => 1,
            Plan::Paths(_) => self.depth,
        }
    }

    fn form(&self) -> Form {
        Form::paths(self.paths)
    }

    fn begin_step(&mut self, context: &StepContext) {
        if self.reckoning.among(context.batch_size) {
            self.think();
        }
        if self.reckoning.behind(context.context_length) {
            self.think();
        }
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        let seconds = self.reckoning.note(draft, outcome);
        self.tokens = DECAY * self.tokens + (outcome.accepted.len() + 1) as f64;
        self.time = DECAY * self.time + seconds / self.reckoning.target(1.0);
        if self.plan == Plan::Probe {
            self.lost += seconds - (outcome.accepted.len() + 1) as f64 * self.reckoning.target(1.0);
        }
        match draft.asked().is_empty() {
            false => (self.missed, self.reading) = (0.0, 0.0),
            true if self.worth > 0.0 => self.missed += self.worth,
            true => self.reading = self.reckoning.reading(),
        }

        let unsure = |node| draft.law(node).map(|law| 1.0 - law.sureness());
        if let Some(law) = draft.law(DraftTree::ROOT) {
            self.expected.see(law);
        }
        if !draft.asked().is_empty() {
            // Where nothing was drawn, the draft was so unsure that nothing was worth it.
            self.remember(unsure(DraftTree::ROOT).unwrap_or(1.0));
        }
        let ends =
            outcome.accepted.iter().map(|&node| (node, false)).chain([(DraftTree::ROOT, true)]);
        let mut node = DraftTree::ROOT;
        for (next, rejected) in ends {
            if let (Some(unsure), Some(draws)) = (unsure(node), draft.draws(node)) {
                self.expected.observe(unsure, draws.count, rejected);
            }
            node = next;
        }
        self.think();
    }

    fn choices(&self) -> Option<&Choices> {
        Some(&self.reckoning.choices)
    }
}

#[cfg(test)]
mod tests;
