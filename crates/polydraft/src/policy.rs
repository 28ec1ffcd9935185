//! Policies: where a draft tree grows, and how its tokens are drawn.
//!
//! A policy is asked node by node, before anything is drawn there. It knows the past, the tokens on
//! the path to the node and the draft's distributions along it, and nothing of what was drawn
//! elsewhere in the same tree: that is the condition under which every verifier that supports the
//! form is exact, and the signature states it. A drawn token is never dropped because of its own
//! probability: decide from the distribution before drawing, or stop after the token.
//!
//! To add a policy: one file here, one line in [`PolicyKind`].

mod auto;
mod budget;
mod costs;
mod delayed;
mod distinct;
mod estimate;
mod fixed;
mod levels;
mod name;
mod paths;
mod stop_below;
mod topology;

use std::fmt;
use std::str::FromStr;

use crate::draft::{Draft, Form, Path};
use crate::drafting::{Drafting, Growth};
use crate::verify::Outcome;
use crate::{Distribution, Error, Result, VerifierKind};

pub use auto::Settings as Auto;
pub use budget::Settings as Budget;
pub use costs::{Costs, MeasuredTimes, Pass, Passes};
pub use delayed::Settings as Delayed;
pub use distinct::Settings as Distinct;
pub use estimate::{Choices, CostEstimate};
pub use fixed::Settings as Fixed;
pub use levels::Settings as Levels;
pub use name::{DEFAULT_DEPTH, TreeChoice, TreeName};
pub use paths::Settings as Paths;
pub use stop_below::Settings as StopBelow;
pub use topology::Topology;

/// What a policy knows before a step. It must not depend on what is drawn in the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepContext {
    /// Sequences in the batch of the step's forward pass, this one included.
    pub batch_size: usize,
    /// Tokens of the sequence so far.
    pub context_length: usize,
    /// Levels of a tree that the draft has distributions for, where that is not any number.
    pub levels: Option<usize>,
}

/// Decides where a draft tree grows.
///
/// A custom policy: two draws at the root, and from there each path goes on while the draft's
/// confidence is high.
///
/// ```
/// use polydraft::conformance::tree::{exact, random_pair};
/// use polydraft::{Distribution, Draws, Form, Growth, Path, Policy, VerifierKind};
/// use rand::SeedableRng;
///
/// struct WhileSure;
///
/// impl Policy for WhileSure {
///     fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
///         match path.depth() {
///             0 => Some(Growth::Fresh(Draws::iid(2))),
///             // The distribution is looked at before anything is drawn from it.
///             1 | 2 => (probs.collision() > 0.4).then_some(Growth::Continue),
///             _ => None,
///         }
///     }
///
///     fn depth(&self) -> usize {
///         3
///     }
///
///     fn form(&self) -> Form {
///         Form::paths(2)
///     }
/// }
///
/// // Whatever the draft's distribution is, the output has the target's.
/// let pair = random_pair(2, 3, 0.5, false, &mut rand_chacha::ChaCha8Rng::seed_from_u64(1))?;
/// let mut verifier = "nested-priority".parse::<VerifierKind>()?.build()?;
/// let found = exact(verifier.as_mut(), &WhileSure, &pair.target, &pair.draft, &mut |_| ())?;
/// assert!(found.deviation < 1e-12);
/// # Ok::<(), polydraft::Error>(())
/// ```
pub trait Policy: Send {
    /// Whether anything may be drawn at the end of `path`. Asked first: where nothing may, the
    /// draft need not compute its distribution.
    fn may_grow(&self, path: &Path) -> bool {
        path.depth() < self.depth()
    }

    /// How to go on at the end of `path`, where the draft's next-token distribution is `probs`;
    /// `None` for a leaf.
    ///
    /// It must depend on its arguments and on the past only: its state may change in
    /// [`observe`](Self::observe), nowhere else.
    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth>;

    /// Tokens from the root to the deepest leaf, at most.
    fn depth(&self) -> usize;

    /// The kinds of draws that its trees have, at most.
    fn form(&self) -> Form;

    /// Called before a step with what its costs depend on.
    fn begin_step(&mut self, _context: &StepContext) {}

    /// Called between steps with the outcome of a draft.
    fn observe(&mut self, _draft: &Draft, _outcome: &Outcome) {}

    /// Its timing side, if it has one.
    fn timed(&self) -> Option<&dyn Timed> {
        None
    }

    /// Its timing side, to be given times, if it has one.
    fn timed_mut(&mut self) -> Option<&mut dyn Timed> {
        None
    }
}

/// A policy that goes by what steps cost, and compares that with the time that they took.
pub trait Timed {
    /// Called after [`Policy::observe`] with the wall-clock time of the step, all the sequences in
    /// it included. Where that time changes what is drawn for the same sequence, a seed does not
    /// reproduce the output.
    fn record_time(&mut self, seconds: f64);

    /// Its choices so far.
    fn choices(&self) -> &Choices;
}

/// Draws at a node that a budget of distinct tokens allows at most, for each token of the budget.
const DRAWS_PER_DISTINCT: usize = 8;
/// The deepest tree and the most draws at a node. More is a slip of the finger.
const LIMIT: usize = 4096;
/// The largest tree: its target logits alone take gigabytes.
const MOST_NODES: f64 = 16384.0;

/// What every policy's settings have.
pub(crate) trait Described: fmt::Display {
    /// Takes settings from what users type after the name.
    fn configure(&mut self, text: &str) -> Result<()>;

    /// The policy itself.
    ///
    /// # Errors
    /// A number that is 0 or absurdly large; a scheme that cannot draw this tree.
    fn build(&self) -> Result<Box<dyn Policy>>;

    /// A description for people.
    fn describe(&self) -> String;

    /// Distinct tokens in a tree, at most; for budgets as expected.
    fn nodes(&self) -> f64;

    /// Draws in a tree over `vocabulary` tokens, at most.
    fn most_draws(&self, vocabulary: usize) -> f64;
}

/// Refuses a number that is 0 or absurdly large.
fn within(setting: &'static str, value: usize) -> Result<()> {
    match value {
        1..=LIMIT => Ok(()),
        _ => Err(Error::Setting { setting, expected: "from 1 to 4096", got: value.to_string() }),
    }
}

/// Refuses schemes that a tree cannot be drawn by.
fn drawn_by(scheme: Drafting, supported: &[Drafting]) -> Result<()> {
    if supported.contains(&scheme) {
        return Ok(());
    }
    let names: Vec<_> = supported.iter().map(|scheme| scheme.name()).collect();
    let (operation, expected) = ("tree", format!("drafting {}", names.join(" or ")));
    Err(Error::Unsupported { operation, expected, got: scheme.to_string() })
}

/// Nodes and draws of a tree with so many draws at every node of a level: (nodes, draws).
fn level_sizes(counts: impl Iterator<Item = usize>, vocabulary: usize) -> (f64, f64) {
    let (mut level, mut nodes, mut draws) = (1.0, 0.0, 0.0);
    for count in counts {
        draws += level * count as f64;
        level *= count.min(vocabulary) as f64;
        nodes += level;
    }
    (nodes, draws)
}

fn list<T: FromStr>(text: &str, expected: &'static str) -> Result<Vec<T>> {
    let parts: Option<Vec<T>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    parts.ok_or_else(|| Error::Setting { setting: "tree", expected, got: format!("{text:?}") })
}

fn numbers<T: FromStr, const N: usize>(text: &str, expected: &'static str) -> Result<[T; N]> {
    list(text, expected)?.try_into().map_err(|_| Error::Setting {
        setting: "tree",
        expected,
        got: format!("{text:?}"),
    })
}

/// `text` without a scheme that follows a slash, and that scheme.
fn split_scheme(text: &str) -> Result<(&str, Option<Drafting>)> {
    match text.split_once('/') {
        None => Ok((text, None)),
        Some((text, scheme)) => Ok((text, Some(scheme.parse()?))),
    }
}

fn joined<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

crate::registry! {
    /// A policy and its settings. To add one, write its file and add its line here.
    ///
    /// Users type the name and, after a colon, the settings: `paths:2,3`. Numbers alone are levels:
    /// `3,2,1`.
    ///
    /// ```
    /// use polydraft::PolicyKind;
    ///
    /// let policy: PolicyKind = "delayed:1,2,3".parse()?;
    /// assert_eq!((policy.nodes(), policy.build()?.depth()), (7.0, 4));
    /// assert_eq!("3,2,1".parse::<PolicyKind>()?.to_string(), "levels:3,2,1");
    /// # Ok::<(), polydraft::Error>(())
    /// ```
        pub enum PolicyKind, tag "tree", settings Described;
    /// Independent paths, common prefixes merged.
    Paths(paths::Settings) = "paths",
    /// Paths of several drafts, common prefixes merged.
    Distinct(distinct::Settings) = "distinct",
    /// One path, from whose end several go on.
    Delayed(delayed::Settings) = "delayed",
    /// The same number of draws at every distinct node of a level.
    Levels(levels::Settings) = "levels",
    /// As many draws as give so many distinct tokens.
    Budget(budget::Settings) = "budget",
    /// A tree laid down beforehand.
    Fixed(fixed::Settings) = "fixed",
    /// Another tree without the nodes that are unlikely to be reached.
    StopBelow(stop_below::Settings) = "stop-below",
    /// Adaptive draft length: one path, before each step and at each node as deep as gives the most
    /// tokens per second.
    Auto(auto::Settings) = "auto",
}

impl PolicyKind {
    /// All of them with their default settings.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name)).collect()
    }

    /// `paths` independent paths of `depth` tokens.
    pub fn paths(paths: usize, depth: usize) -> Self {
        Self::Paths(Paths { paths, depth })
    }

    /// One path of `depth` tokens.
    pub fn chain(depth: usize) -> Self {
        Self::paths(1, depth)
    }

    /// The same number of draws at every distinct node of a level, the root's first.
    pub fn levels(counts: &[usize], drafting: Drafting) -> Self {
        Self::Levels(Levels { counts: counts.to_vec(), drafting })
    }

    /// The settings of the adaptive draft length (`auto`), where this policy is `auto` or cuts it.
    pub fn auto_mut(&mut self) -> Option<&mut Auto> {
        match self {
            Self::Auto(auto) => Some(auto),
            Self::StopBelow(cut) => cut.policy.auto_mut(),
            _ => None,
        }
    }

    /// The working policy.
    ///
    /// # Errors
    /// A number that is 0 or absurdly large; a scheme that cannot draw this tree; more than 16,384
    /// nodes.
    pub fn build(&self) -> Result<Box<dyn Policy>> {
        let policy = self.settings().build()?;
        let nodes = self.nodes();
        if nodes > MOST_NODES {
            // A power has more digits than anybody reads.
            let nodes = if nodes < 1e15 { format!("{nodes:.0}") } else { format!("{nodes:.1e}") };
            return Err(Error::TooLarge {
                operation: "tree",
                expected: format!("at most {MOST_NODES} nodes"),
                got: format!("{nodes} in {} levels", policy.depth()),
            });
        }
        Ok(policy)
    }

    /// Whether a verifier is exact for such trees.
    pub fn is_supported_by(&self, verifier: &VerifierKind) -> bool {
        let (Ok(verifier), Ok(policy)) = (verifier.build(), self.build()) else { return false };
        verifier.supports(&policy.form()).is_ok()
    }

    /// A description for people: `2 paths of 3`.
    pub fn describe(&self) -> String {
        self.settings().describe()
    }

    /// Distinct tokens in a tree, at most; for budgets as expected.
    pub fn nodes(&self) -> f64 {
        self.settings().nodes()
    }

    /// Draws in a tree over `vocabulary` tokens, at most.
    pub fn most_draws(&self, vocabulary: usize) -> f64 {
        self.settings().most_draws(vocabulary)
    }
}

impl fmt::Display for PolicyKind {
    /// What users type.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&format!("{}:{}", self.name(), self.settings()))
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name, Some(settings)),
            None if text.starts_with(|c: char| c.is_ascii_digit()) => ("levels", Some(text)),
            None => (text, None),
        };
        let mut kind = Self::named(name).ok_or_else(|| Error::Name {
            kind: "tree",
            expected: Self::all().iter().map(Self::to_string).collect::<Vec<_>>().join("; "),
            got: text.to_owned(),
        })?;
        if let Some(settings) = settings {
            kind.settings_mut().configure(settings)?;
        }
        Ok(kind)
    }
}
