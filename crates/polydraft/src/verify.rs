//! Verifiers: which tokens to emit, given a draft and the target's distributions at its nodes.
//!
//! A verifier is a pure function of the draft, the target's distributions and random decisions. It
//! does not depend on models, caches or tokenizers. Whatever the draft's distributions are, its
//! output has exactly the target's distribution.
//!
//! To add a verifier: one file here, one line in [`VerifierKind`].

mod block;
mod greedy_block;
mod invariant;
pub mod nested_priority;
mod pooled;
mod token;
mod traversal;
pub mod walk;

use std::fmt;
use std::str::FromStr;

use crate::coupling::priority;
use crate::coupling::registry::{RuleRegistry, WalkRule};
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::registry::NoSettings;
use crate::{Distribution, Error, RandomSource, Result, Token};

/// The target's next-token distributions at the nodes of a draft, the root included.
///
/// A trait, so that a distribution is made from logits only where a verifier uses it. Verifiers may
/// call it from several threads at once.
pub trait TargetDistributions: Sync {
    /// The target's distribution after this node.
    ///
    /// # Errors
    /// Logits that are not a valid distribution (NaN, or only −∞).
    fn target(&self, node: NodeId) -> Result<&Distribution>;
}

/// Distributions by node id.
impl TargetDistributions for Vec<Distribution> {
    fn target(&self, node: NodeId) -> Result<&Distribution> {
        self.get(node).ok_or_else(|| Error::Length {
            operation: "target's distributions",
            expected: format!("at least {}, one for each node,", node + 1),
            got: self.len(),
        })
    }
}

/// Target distributions checked to have the draft's vocabulary size: otherwise tokens of two
/// vocabularies would be confused silently.
struct CheckedTargets<'a> {
    target: &'a dyn TargetDistributions,
    /// The draft's vocabulary size, if anything was drawn.
    vocabulary: Option<usize>,
}

impl<'a> CheckedTargets<'a> {
    fn new(draft: &Draft, target: &'a dyn TargetDistributions) -> Self {
        Self {
            target,
            vocabulary: draft.distribution(DraftTree::ROOT).map(Distribution::vocabulary),
        }
    }
}

impl TargetDistributions for CheckedTargets<'_> {
    fn target(&self, node: NodeId) -> Result<&Distribution> {
        let probs = self.target.target(node)?;
        match self.vocabulary {
            Some(got) if got != probs.vocabulary() => {
                let expected = format!("{} as the target has", probs.vocabulary());
                Err(Error::Length { operation: "draft", expected, got })
            }
            _ => Ok(probs),
        }
    }
}

/// Decision of a verifier for one draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The accepted nodes, from a child of the root downwards; possibly empty.
    pub accepted: Vec<NodeId>,
    /// The token to emit after them. No node below the last accepted one has this token.
    pub token: Token,
}

/// Decides which tokens of a draft to emit.
///
/// ```
/// use polydraft::{Distribution, Draft, Growth, Draws, VerifierKind};
/// use rand::SeedableRng;
///
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
/// let probs = Distribution::new(vec![0.5, 0.3, 0.2])?;
/// let mut draft = Draft::new();
/// draft.draw(0, probs.clone(), Growth::Fresh(Draws::iid(3)), &mut rng)?;
///
/// // The target's distributions. Here they are the draft's own, so a draft is always accepted.
/// let target = vec![probs; draft.tree().len()];
/// let mut verifier = "nested-priority".parse::<VerifierKind>()?.build()?;
/// verifier.supports(draft.form())?;
/// let outcome = verifier.verify(&draft, &target, &mut rng)?;
/// assert_eq!(outcome.accepted.len(), 1);
/// # Ok::<(), polydraft::Error>(())
/// ```
///
/// `crates/polydraft/examples/own_verifier` is a custom verifier, with its proof.
pub trait Verifier: Send {
    /// Checks that this verifier is exact for drafts of this form, in constant time.
    ///
    /// # Errors
    /// An unsupported form; the error names the supported ones.
    fn supports(&self, form: &Form) -> Result<()>;

    /// Emits a path of the draft and one more token, such that the output has the target's
    /// distribution.
    ///
    /// # Errors
    /// A draft of an unsupported form; a target distribution that cannot be made, or over another
    /// vocabulary than the draft's.
    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome>;

    /// The priorities of the last verification, if the verifier uses priorities.
    fn as_priority_intervals(&self) -> Option<&dyn PriorityIntervals> {
        None
    }

    /// True if the verifier decides by the randomness shared with its drafts ([`crate::gumbel`]),
    /// where available.
    fn uses_shared_randomness(&self) -> bool {
        false
    }

    /// Number of nodes so far at which a slower or weaker algorithm decided because the verifier's
    /// own one failed. The distribution stays exact.
    fn fallbacks(&self) -> u64 {
        0
    }
}

/// A verifier that assigns priorities to drafts, for plots of a step.
pub trait PriorityIntervals {
    /// Returns, after a verification, the distribution of the priority of drafts of `token` at a
    /// node, as intervals of [0, 1]: start, length and probability; they may overlap. Empty where
    /// nothing was divided among several drafts.
    ///
    /// # Errors
    /// A target distribution that cannot be made.
    fn priorities(
        &self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        node: NodeId,
        token: Token,
    ) -> Result<Vec<[f64; 3]>>;
}

/// The trait of every verifier's settings.
pub trait VerifierSettings {
    /// Builds the verifier.
    ///
    /// # Errors
    /// A setting out of range.
    fn build(&self) -> Result<Box<dyn Verifier>>;
}

impl<A: Verifier + Default + 'static> VerifierSettings for NoSettings<A> {
    fn build(&self) -> Result<Box<dyn Verifier>> {
        Ok(Box::new(A::default()))
    }
}

crate::registry! {
    /// A verifier and its settings. To add one, write its file and add its line here.
    ///
    /// ```
    /// use polydraft::{Form, VerifierKind};
    ///
    /// let walk: VerifierKind = "walk:k-seq".parse()?;
    /// assert_eq!(walk.to_string(), "spectr");
    /// // Each verifier reports which forms it is exact for.
    /// let four_paths =
    ///     |kind: &VerifierKind| kind.build().is_ok_and(|v| v.supports(&Form::paths(4)).is_ok());
    /// let all = VerifierKind::all();
    /// let names: Vec<String> =
    ///     all.iter().filter(|kind| four_paths(kind)).map(|kind| kind.to_string()).collect();
    /// assert!(names.contains(&"nested-priority".to_owned()));
    /// assert!(!names.contains(&"block".to_owned()));
    /// # Ok::<(), polydraft::Error>(())
    /// ```
        pub enum VerifierKind, tag "verifier", settings VerifierSettings,
        nesting WalkRule as
        /// A token-level rule at every node, from the root down (Sun et al. 2023, Miao et al.
        /// 2023).
        Walk = "walk";
    /// A single path, token by token (Leviathan et al. 2023, Chen et al. 2023).
    Token(NoSettings<token::TokenByToken>) = "token",
    /// A single path as a block (Sun et al. 2024).
    Block(NoSettings<block::Block>) = "block",
    /// Traversal from the leaves up (Weng et al. 2025).
    Traversal(NoSettings<traversal::Traversal>) = "traversal",
    /// Pooled layers: the nodes of a level share its capacity; any but distinct drafts.
    Pooled(NoSettings<pooled::Pooled>) = "pooled",
    /// The path of highest ratios, verified as a block (GBV).
    GreedyBlock(NoSettings<greedy_block::GreedyBlock>) = "greedy-block",
    /// The path that priorities select node by node, verified as a block.
    PriorityBlock(priority::Settings) = "priority-block",
    /// The path of highest priority, verified as a block.
    NestedPriority(nested_priority::Settings) = "nested-priority",
    /// Gumbel coupling: the output for a seed is the same for every draft and tree.
    Invariant(NoSettings<invariant::Invariant>) = "invariant",
}

/// Aliases of walks with a certain rule.
const ALIASES: [(&str, &str); 2] = [("spectr", "k-seq"), ("specinfer", "recursive")];
const WALK: &str = "walk:";
/// Verifiers by decreasing acceptance. The others are exact for no further trees.
const BY_PREFERENCE: [&str; 6] =
    ["nested-priority", "pooled", "traversal", "walk:hub", "specinfer", "walk:naive"];

impl VerifierKind {
    /// All verifiers with their default settings, and a walk with each built-in rule.
    pub fn all() -> Vec<Self> {
        Self::all_with(&RuleRegistry::built_in())
    }

    /// All verifiers with their default settings, and a walk with each of these rules.
    pub fn all_with(rules: &RuleRegistry) -> Vec<Self> {
        let walks = rules.all().iter().cloned().map(Self::Walk);
        Self::NAMES.iter().filter_map(|name| Self::named(name)).chain(walks).collect()
    }

    /// Verifiers for trees whose verifier is not named: the first that is exact for a tree and
    /// suits it ([`PolicyKind::suits`](crate::PolicyKind::suits)) accepts most there.
    pub fn by_preference() -> impl Iterator<Item = Self> {
        BY_PREFERENCE.iter().filter_map(|name| name.parse().ok())
    }

    /// Creates the walk with a rule.
    pub fn walk(rule: impl Into<WalkRule>) -> Self {
        Self::Walk(rule.into())
    }

    /// Parses a verifier's name, where walks may use the given rules.
    ///
    /// # Errors
    /// An unknown name: neither a verifier's nor `walk:` with one of the rules.
    pub fn parse_with(name: &str, rules: &RuleRegistry) -> Result<Self> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, rule)| *rule);
        if let Some(rule) = alias.or_else(|| name.strip_prefix(WALK)) {
            return rules.named(rule).map(Self::Walk);
        }
        Self::named(name).ok_or_else(|| {
            let aliases = ALIASES.map(|(alias, rule)| format!("{alias} (= {WALK}{rule})"));
            let (names, aliases, rules) =
                (Self::NAMES.join(", "), aliases.join(", "), rules.names());
            Error::Name {
                kind: "verifier",
                expected: format!("{names}, {aliases}, {WALK}RULE (RULE one of {rules})"),
                got: name.to_owned(),
            }
        })
    }

    /// Builds the verifier.
    ///
    /// # Errors
    /// Settings out of range.
    pub fn build(&self) -> Result<Box<dyn Verifier>> {
        match self.settings() {
            Ok((_, settings)) => settings.build(),
            Err(rule) => walk::build(rule),
        }
    }
}

impl fmt::Display for VerifierKind {
    /// Writes the name that users type, without settings.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.settings() {
            Ok((name, _)) => f.pad(name),
            Err(rule) => match ALIASES.iter().find(|(_, name)| *name == rule.name()) {
                Some((alias, _)) => f.pad(alias),
                None => f.pad(&format!("{WALK}{rule}")),
            },
        }
    }
}

impl FromStr for VerifierKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::parse_with(name, &RuleRegistry::built_in())
    }
}

/// Minimum total size of distributions, in tokens, for which several threads pay off.
const MIN_PARALLEL_TOKENS: usize = 1 << 15;

/// True if work over the distributions at these nodes should run on the caller's thread pool.
fn pays_to_parallelize(draft: &Draft, nodes: &[NodeId]) -> bool {
    let work: usize = nodes
        .iter()
        .filter_map(|&node| draft.distribution(node))
        .map(Distribution::vocabulary)
        .sum();
    nodes.len() > 1 && work > MIN_PARALLEL_TOKENS && rayon::current_num_threads() > 1
}
