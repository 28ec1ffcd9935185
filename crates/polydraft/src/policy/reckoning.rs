//! What steps cost by what passes cost: no clock, so the same seed gives the same numbers on any
//! machine, however busy.

use std::array;

use serde::Serialize;

use super::{Costs, Growth, Policy, StepContext};
use crate::Distribution;
use crate::draft::{Draft, DraftTree, Form, Path};
use crate::verify::Outcome;

/// What a policy did, and what it thinks of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Choices {
    /// Steps.
    pub steps: u64,
    /// Steps in which the draft was not asked: plain decoding.
    pub plain: u64,
    /// Steps by number of paths, 1 first, in which something was drawn.
    pub by_paths: Vec<u64>,
    /// Mean depth of the trees that were drawn; 0 where none was.
    pub depth: f64,
    /// Seconds that plain decoding would have taken for the same tokens, by the costs.
    pub plain_seconds: f64,
    /// Seconds that the steps took, by the costs.
    pub seconds: f64,
    /// Of them, the draft's passes.
    pub draft_seconds: f64,
}

impl Choices {
    /// How many times as fast as plain decoding the text was, by the costs; 1 before the first
    /// step.
    pub fn gain(&self) -> f64 {
        if self.seconds > 0.0 { self.plain_seconds / self.seconds } else { 1.0 }
    }
}

/// The steps of a text, reckoned.
pub(super) struct Reckoning {
    costs: Costs,
    /// Texts in the pass, this one among them: all do as this one does.
    texts: usize,
    /// Tokens of the text so far. Those of the others in the pass are taken for as long.
    tokens: usize,
    /// Seconds of passes of the target, by the rows of a text: who thinks asks for them some
    /// hundred times a step.
    target: [f64; LOOKED_UP],
    /// Tokens since the draft was last asked.
    pub unasked: usize,
    pub choices: Choices,
}

/// Rows of a text that are looked up.
const LOOKED_UP: usize = 40;

impl Reckoning {
    pub fn new(costs: Costs) -> Self {
        let target = [0.0; LOOKED_UP];
        let mut new =
            Self { costs, texts: 0, tokens: 0, target, unasked: 0, choices: Choices::default() };
        new.among(1);
        new
    }

    /// So many texts in a pass from here on. Whether that is new.
    pub fn among(&mut self, texts: usize) -> bool {
        self.look_up(texts.max(1), self.tokens)
    }

    /// So many tokens of the text. Whether that is new.
    pub fn behind(&mut self, tokens: usize) -> bool {
        self.look_up(self.texts, tokens)
    }

    fn look_up(&mut self, texts: usize, tokens: usize) -> bool {
        let is_new = (texts, tokens) != (self.texts, self.tokens);
        if is_new {
            (self.texts, self.tokens) = (texts, tokens);
            self.target = array::from_fn(|rows| self.computed(rows as f64));
        }
        is_new
    }

    /// [`target`](Self::target), not looked up.
    fn computed(&self, rows: f64) -> f64 {
        self.costs.target(self.texts as f64 * rows, self.tokens)
    }

    /// Seconds of a pass of the target in which every text has so many rows.
    pub fn target(&self, rows: f64) -> f64 {
        let below = rows as usize;
        let part = rows - below as f64;
        match self.target.get(below..below.saturating_add(2)) {
            // Costs are lines between whole rows; those of several texts have more of these on the
            // way.
            Some(ends) if self.texts == 1 || part == 0.0 => ends[0] + part * (ends[1] - ends[0]),
            _ => self.computed(rows),
        }
    }

    /// Seconds of a pass of the draft in which every text has so many rows.
    pub fn draft(&self, rows: f64) -> f64 {
        self.costs.draft(self.texts as f64 * rows, self.tokens)
    }

    /// Tokens that the draft has to read before it can be asked.
    fn unread(&self) -> f64 {
        if self.costs.follows { 0.0 } else { self.unasked as f64 }
    }

    /// Seconds of the first pass of a draft in a step, where it has read all that was decided.
    pub fn first_draft(&self) -> f64 {
        self.draft(1.0) + self.costs.first
    }

    /// Seconds more, in which it reads what was decided without it.
    pub fn reading(&self) -> f64 {
        self.draft(1.0 + self.unread()) - self.draft(1.0)
    }

    /// Seconds of verifying a tree of so many paths for every text, one after the other.
    pub fn verification(&self, paths: usize) -> f64 {
        self.texts as f64 * self.costs.verification.at(paths as f64)
    }

    /// Seconds that all texts wait for one that drafts a single token.
    pub fn probe(&self) -> f64 {
        let texts = self.texts as f64;
        // The draft reads first what was decided without it.
        let draft = self.costs.draft(1.0 + self.unread(), self.tokens) + self.costs.first;
        let row =
            self.costs.target(texts + 1.0, self.tokens) - self.costs.target(texts, self.tokens);
        texts * (draft + row + self.costs.verification.at(1.0))
    }

    /// Takes note of a step. Returns its seconds.
    pub fn note(&mut self, draft: &Draft, outcome: &Outcome) -> f64 {
        let (asked, decided) = (draft.asked(), outcome.accepted.len() + 1);
        let plain = self.target(1.0);
        let drafted = asked.split_first().map_or(0.0, |(root, inner)| {
            // What the draft had not read it read in the first pass.
            self.costs.first
                + self.draft(*root as f64 + self.unread())
                + inner.iter().map(|&rows| self.draft(rows as f64)).sum::<f64>()
        });
        let mut seconds = self.target(draft.tree().len() as f64) + drafted;
        let paths = draft.draws(DraftTree::ROOT).map(|draws| draws.count);
        seconds += paths.map_or(0.0, |paths| self.verification(paths));
        self.behind(self.tokens + decided);
        self.unasked = if asked.is_empty() { self.unasked + decided } else { 0 };

        let choices = &mut self.choices;
        choices.steps += 1;
        choices.plain += u64::from(asked.is_empty());
        if let Some(paths) = paths {
            let depth = draft.tree().levels().len() - 1;
            choices.by_paths.resize(choices.by_paths.len().max(paths), 0);
            choices.by_paths[paths - 1] += 1;
            let trees: u64 = choices.by_paths.iter().sum();
            choices.depth += (depth as f64 - choices.depth) / trees as f64;
        }
        choices.plain_seconds += decided as f64 * plain;
        choices.seconds += seconds;
        choices.draft_seconds += drafted;
        seconds
    }
}

/// Any policy, with what its steps take by the costs beside it ([`Policy::choices`]).
///
/// ```
/// use polydraft::conformance::tree::{draw, random_pair, TargetOf};
/// use polydraft::policy::{Costs, Passes, Reckoned};
/// use polydraft::{Policy, PolicyKind, VerifierKind};
/// use rand::SeedableRng;
///
/// let costs = Costs { draft: Passes::new(vec![(1, 0.25)])?, target: Passes::new(vec![(1, 1.0), (8, 1.0)])?, ..Costs::default() };
/// let mut policy = Reckoned::new("paths:1,2".parse::<PolicyKind>()?.build()?, costs);
/// let mut chance = rand_chacha::ChaCha8Rng::seed_from_u64(1);
/// let pair = random_pair(2, 3, 0.5, false, &mut chance)?;
/// let draft = draw(&policy, &pair.draft, &mut chance)?;
/// let mut verifier = "block".parse::<VerifierKind>()?.build()?;
/// let outcome = verifier.verify(&draft, &TargetOf::new(draft.tree(), &pair.target), &mut chance)?;
/// policy.observe(&draft, &outcome);
/// // A pass of the target, and two of the draft.
/// assert_eq!(policy.choices().map(|choices| choices.seconds), Some(1.5));
/// # Ok::<(), polydraft::Error>(())
/// ```
pub struct Reckoned {
    policy: Box<dyn Policy>,
    reckoning: Reckoning,
}

impl Reckoned {
    /// With these costs.
    pub fn new(policy: Box<dyn Policy>, costs: Costs) -> Self {
        Self { policy, reckoning: Reckoning::new(costs) }
    }
}

impl Policy for Reckoned {
    fn goes_on(&self, path: &Path) -> bool {
        self.policy.goes_on(path)
    }

    fn draws(&self, path: &Path, law: &Distribution) -> Option<Growth> {
        self.policy.draws(path, law)
    }

    fn depth(&self) -> usize {
        self.policy.depth()
    }

    fn form(&self) -> Form {
        self.policy.form()
    }

    fn begin_step(&mut self, context: &StepContext) {
        self.reckoning.among(context.batch_size);
        self.reckoning.behind(context.context_length);
        self.policy.begin_step(context);
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        self.reckoning.note(draft, outcome);
        self.policy.observe(draft, outcome);
    }

    fn choices(&self) -> Option<&Choices> {
        Some(&self.reckoning.choices)
    }
}
