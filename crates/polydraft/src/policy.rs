//! Policies: where a draft tree grows, and how its tokens are drawn.
//!
//! A policy decides node by node, before anything is drawn there. It may use the past, the tokens
//! on the path to the node and the draft's distributions along it, and nothing drawn elsewhere in
//! the same tree. Under this condition, which the signature enforces, every verifier that supports
//! the form is exact. A drawn token is never dropped because of its own probability: decide from
//! the distribution before drawing, or stop after the token.
//!
//! To add a policy: one file here, one line in [`PolicyKind`].

mod auto;
mod budget;
mod costs;
mod delayed;
mod distinct;
mod estimate;
mod estimated;
mod fixed;
mod learned;
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
pub use costs::{Costs, Learned, MeasuredTimes, Pass, Passes};
pub use delayed::Settings as Delayed;
pub use distinct::Settings as Distinct;
pub use estimate::{Choices, CostEstimate, StepSample};
pub use estimated::{DraftShape, PassShape};
pub use fixed::Settings as Fixed;
pub use levels::Settings as Levels;
pub use name::{DEFAULT_DEPTH, TreeChoice, TreeName};
pub use paths::Settings as Paths;
pub use stop_below::Settings as StopBelow;
pub use topology::Topology;

/// Information available to a policy before a step. It must not depend on what is drawn in the
/// step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepContext {
    /// Number of sequences in the batch of the step's forward pass, this one included.
    pub batch_size: usize,
    /// Number of tokens of the sequence so far.
    pub context_length: usize,
    /// Maximum number of tree levels that the draft has distributions for; `None` if unlimited.
    pub levels: Option<usize>,
}

/// Decides where a draft tree grows.
///
/// Example of a custom policy: two draws at the root; each path then continues while the draft's
/// confidence is high.
///
/// ```
/// use polydraft::conformance::tree::{exact, random_pair};
/// use polydraft::{Distribution, Draws, Form, Growth, Path, Policy, VerifierKind};
/// use rand::SeedableRng;
///
/// struct WhileConfident;
///
/// impl Policy for WhileConfident {
///     fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
///         match path.depth() {
///             0 => Some(Growth::Fresh(Draws::iid(2))),
///             // Decides from the distribution, before anything is drawn from it.
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
/// let found = exact(verifier.as_mut(), &WhileConfident, &pair.target, &pair.draft, &mut |_| ())?;
/// assert!(found.deviation < 1e-12);
/// # Ok::<(), polydraft::Error>(())
/// ```
pub trait Policy: Send {
    /// Returns false if nothing may be drawn at the end of `path`. Called before
    /// [`draws`](Self::draws), so that the draft need not compute its distribution there.
    fn may_grow(&self, path: &Path) -> bool {
        path.depth() < self.depth()
    }

    /// Decides how the tree grows at the end of `path`, where the draft's next-token distribution
    /// is `probs`; `None` for a leaf.
    ///
    /// The result must depend only on the arguments and the past: state may change only in
    /// [`observe`](Self::observe).
    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth>;

    /// Maximum number of tokens from the root to a leaf.
    fn depth(&self) -> usize;

    /// Upper bound of the kinds of draws in its trees.
    fn form(&self) -> Form;

    /// Called before a step, with the information that its costs depend on.
    fn begin_step(&mut self, _context: &StepContext) {}

    /// Called after a step with the verified draft and its outcome.
    fn observe(&mut self, _draft: &Draft, _outcome: &Outcome) {}

    /// The policy's interface for step times, if it uses them.
    fn timed(&self) -> Option<&dyn Timed> {
        None
    }

    /// Mutable form of [`timed`](Self::timed), to record times.
    fn timed_mut(&mut self) -> Option<&mut dyn Timed> {
        None
    }
}

/// A policy that decides from the costs of steps, and compares these with measured times.
pub trait Timed {
    /// Records the wall-clock time of a step with all its sequences, and the draft's part of it;
    /// called after [`Policy::observe`]. If that time changes what is drawn for the same sequence,
    /// a seed does not reproduce the output.
    fn record_time(&mut self, seconds: f64, draft_seconds: f64);

    /// Totals over the steps so far.
    fn choices(&self) -> &Choices;
}

/// Maximum number of draws at a node per distinct token of a budget.
const DRAWS_PER_DISTINCT: usize = 8;
/// Maximum depth of a tree and maximum number of draws at a node; more is likely a typing error.
const LIMIT: usize = 4096;
/// Maximum number of nodes of a tree: the target's logits for that many take gigabytes.
const MAX_NODES: f64 = 16384.0;

/// The trait of every policy's settings.
pub(crate) trait PolicySettings: fmt::Display {
    /// Parses settings as users type them after the name.
    fn configure(&mut self, text: &str) -> Result<()>;

    /// Builds the policy.
    ///
    /// # Errors
    /// A number that is 0 or above 4096; a scheme that cannot draw this tree.
    fn build(&self) -> Result<Box<dyn Policy>>;

    /// A description for people.
    fn describe(&self) -> String;

    /// Maximum number of distinct tokens in a tree; for budgets the expected number.
    fn nodes(&self) -> f64;

    /// Maximum number of draws in a tree over `vocabulary` tokens.
    fn max_draws(&self, vocabulary: usize) -> f64;
}

/// Checks that a number is from 1 to 4096.
fn check_range(setting: &'static str, value: usize) -> Result<()> {
    match value {
        1..=LIMIT => Ok(()),
        _ => Err(Error::Setting { setting, expected: "from 1 to 4096", got: value.to_string() }),
    }
}

/// Checks that a tree can be drawn with this scheme.
fn check_scheme(scheme: Drafting, supported: &[Drafting]) -> Result<()> {
    if supported.contains(&scheme) {
        return Ok(());
    }
    let names: Vec<_> = supported.iter().map(|scheme| scheme.name()).collect();
    let (operation, expected) = ("tree", format!("drafting {}", names.join(" or ")));
    Err(Error::Unsupported { operation, expected, got: scheme.to_string() })
}

/// Maximum numbers (nodes, draws) of a tree with `counts` draws at every node of each level.
fn level_sizes(counts: impl Iterator<Item = usize>, vocabulary: usize) -> (f64, f64) {
    let (mut level, mut nodes, mut draws) = (1.0, 0.0, 0.0);
    for count in counts {
        draws += level * count as f64;
        level *= count.min(vocabulary) as f64;
        nodes += level;
    }
    (nodes, draws)
}

fn parse_list<T: FromStr>(text: &str, expected: &'static str) -> Result<Vec<T>> {
    let parts: Option<Vec<T>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    parts.ok_or_else(|| Error::Setting { setting: "tree", expected, got: format!("{text:?}") })
}

fn parse_numbers<T: FromStr, const N: usize>(text: &str, expected: &'static str) -> Result<[T; N]> {
    parse_list(text, expected)?.try_into().map_err(|_| Error::Setting {
        setting: "tree",
        expected,
        got: format!("{text:?}"),
    })
}

/// Splits `TREE/SCHEME` into the tree and the scheme, if there is one.
fn split_scheme(text: &str) -> Result<(&str, Option<Drafting>)> {
    match text.split_once('/') {
        None => Ok((text, None)),
        Some((text, scheme)) => Ok((text, Some(scheme.parse()?))),
    }
}

fn join<T: ToString>(values: &[T]) -> String {
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
        pub enum PolicyKind, tag "tree", settings PolicySettings;
    /// Independent paths, common prefixes merged.
    Paths(paths::Settings) = "paths",
    /// Paths of several drafts, common prefixes merged.
    Distinct(distinct::Settings) = "distinct",
    /// One path that branches into several at its end.
    Delayed(delayed::Settings) = "delayed",
    /// The same number of draws at every distinct node of a level.
    Levels(levels::Settings) = "levels",
    /// The number of draws at a node whose expected number of distinct tokens is given.
    Budget(budget::Settings) = "budget",
    /// A tree of fixed shape.
    Fixed(fixed::Settings) = "fixed",
    /// Another policy's tree without the nodes that are unlikely to be reached.
    StopBelow(stop_below::Settings) = "stop-below",
    /// Adaptive draft length: one path, at each step and node as deep as gives the most tokens per
    /// second.
    Auto(auto::Settings) = "auto",
}

impl PolicyKind {
    /// All policies with their default settings.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name)).collect()
    }

    /// `paths` independent paths of `depth` tokens.
    pub fn paths(paths: usize, depth: usize) -> Self {
        Self::Paths(Paths { paths, depth })
    }

    /// A single path of `depth` tokens.
    pub fn chain(depth: usize) -> Self {
        Self::paths(1, depth)
    }

    /// Trees with `counts` draws at every distinct node of each level, the root's first.
    pub fn levels(counts: &[usize], drafting: Drafting) -> Self {
        Self::Levels(Levels { counts: counts.to_vec(), drafting })
    }

    /// The settings of the adaptive draft length (`auto`), where this policy is `auto` or cuts it.
    pub fn auto_mut(&mut self) -> Option<&mut Auto> {
        match self {
            Self::Auto(auto) => Some(auto),
            Self::StopBelow(stop_below) => stop_below.policy.auto_mut(),
            _ => None,
        }
    }

    /// Builds the policy.
    ///
    /// # Errors
    /// A number that is 0 or above 4096; a scheme that cannot draw this tree; more than 16,384
    /// nodes.
    pub fn build(&self) -> Result<Box<dyn Policy>> {
        let policy = self.settings().build()?;
        let nodes = self.nodes();
        if nodes > MAX_NODES {
            // Powers have too many digits to print in full.
            let nodes = if nodes < 1e15 { format!("{nodes:.0}") } else { format!("{nodes:.1e}") };
            return Err(Error::TooLarge {
                operation: "tree",
                expected: format!("at most {MAX_NODES} nodes"),
                got: format!("{nodes} in {} levels", policy.depth()),
            });
        }
        Ok(policy)
    }

    /// True if a verifier is exact for such trees.
    pub fn is_supported_by(&self, verifier: &VerifierKind) -> bool {
        let (Ok(verifier), Ok(policy)) = (verifier.build(), self.build()) else { return false };
        verifier.supports(&policy.form()).is_ok()
    }

    /// False if another verifier accepts more of such trees: pooled layers treat all that was drawn
    /// at a node alike, while in a fixed tree the first draws go on further (`docs/theory.md`).
    pub fn suits(&self, verifier: &VerifierKind) -> bool {
        let tree = match self {
            Self::StopBelow(stop_below) => &*stop_below.policy,
            tree => tree,
        };
        !matches!((tree, verifier), (Self::Fixed(_), VerifierKind::Pooled(_)))
    }

    /// A description for people: `2 paths of 3`.
    pub fn describe(&self) -> String {
        self.settings().describe()
    }

    /// Maximum number of distinct tokens in a tree; for budgets the expected number.
    pub fn nodes(&self) -> f64 {
        self.settings().nodes()
    }

    /// Maximum number of draws in a tree over `vocabulary` tokens.
    pub fn max_draws(&self, vocabulary: usize) -> f64 {
        self.settings().max_draws(vocabulary)
    }
}

impl fmt::Display for PolicyKind {
    /// Writes the policy as users type it.
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
