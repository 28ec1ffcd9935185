//! Exact distributions and block efficiencies of verifiers on trees, by enumeration.
//!
//! Problem: a verifier with a policy is correct when its output, extended by the target to full
//! length, has the target's distribution.
//! Source: ours. Every possible draft and every decision of the verifier is enumerated; equal
//! drafts are verified once. Where both use shared randomness, it is enumerated too, and drawing
//! and verifying are one experiment.
//! Complexity: exponential in the number of draws: for tiny vocabularies only (see
//! [`count_drafts`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::draft::{Draft, DraftTree, NodeId};
use crate::drafting::Draws;
use crate::gumbel::{self, WithSharedRandomness};
use crate::policy::{Policy, PolicyKind};
use crate::random::{RandomSource, enumerate};
use crate::verify::{Outcome, TargetDistributions, Verifier};
use crate::{Distribution, Error, Result, Token};

/// The next-token distributions of a model, by the sequence so far.
pub trait ContextDistributions: Sync {
    /// The distribution after this sequence.
    ///
    /// # Errors
    /// A sequence that the model has no distribution for.
    fn distribution(&self, sequence: &[Token]) -> Result<&Distribution>;

    /// The distribution of one of several drafts after this sequence.
    ///
    /// # Errors
    /// A sequence that the draft has no distribution for.
    fn draft_distribution(&self, _draft: usize, sequence: &[Token]) -> Result<&Distribution> {
        self.distribution(sequence)
    }
}

/// Distributions of several drafts, by the draft's number.
impl<D: ContextDistributions> ContextDistributions for Vec<D> {
    /// The distribution of the first draft.
    fn distribution(&self, sequence: &[Token]) -> Result<&Distribution> {
        self.draft_distribution(0, sequence)
    }

    fn draft_distribution(&self, draft: usize, sequence: &[Token]) -> Result<&Distribution> {
        let missing = || Error::Length {
            operation: "drafts",
            expected: format!("at least {}", draft + 1),
            got: self.len(),
        };
        self.get(draft).ok_or_else(missing)?.distribution(sequence)
    }
}

/// Distributions by sequence.
impl ContextDistributions for HashMap<Vec<Token>, Distribution> {
    fn distribution(&self, sequence: &[Token]) -> Result<&Distribution> {
        self.get(sequence).ok_or_else(|| Error::Unsupported {
            operation: "table of distributions",
            expected: "a distribution for every sequence".to_owned(),
            got: format!("none for {sequence:?}"),
        })
    }
}

/// Exact results of a verifier on the drafts of a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact {
    /// Expected number of tokens emitted per draft.
    pub block_efficiency: f64,
    /// The largest difference between the probability of a full sequence, one token longer than the
    /// tree is deep, and its probability under the target.
    pub deviation: f64,
    /// Number of different drafts.
    pub trees: usize,
    /// Expected number of nodes per draft at which a fallback algorithm decided.
    pub fallbacks: f64,
}

/// Maximum number of drafts that can be drawn from distributions over `vocabulary` tokens, counting
/// orders of draws.
pub fn count_drafts(policy: &PolicyKind, vocabulary: usize) -> f64 {
    (vocabulary as f64).powf(policy.max_draws(vocabulary))
}

/// Target distributions at the nodes of one draft tree.
pub struct NodeTargets<'a> {
    sequences: Vec<Vec<Token>>,
    target: &'a dyn ContextDistributions,
}

impl<'a> NodeTargets<'a> {
    /// Looks up `target` after the sequence of every node of `tree`.
    pub fn new(tree: &DraftTree, target: &'a dyn ContextDistributions) -> Self {
        let sequence = |node| tree.path(node).into_iter().map(|node| tree.token(node)).collect();
        Self { sequences: (0..tree.len()).map(sequence).collect(), target }
    }
}

impl TargetDistributions for NodeTargets<'_> {
    fn target(&self, node: NodeId) -> Result<&Distribution> {
        self.target.distribution(&self.sequences[node])
    }
}

/// Draws a draft as `policy` decides.
///
/// # Errors
/// A sequence without a draft distribution; a policy that cannot be drawn.
pub fn draw(
    policy: &dyn Policy,
    draft: &dyn ContextDistributions,
    rng: &mut dyn RandomSource,
) -> Result<Draft> {
    let mut drawn = Draft::new();
    let mut node = DraftTree::ROOT;
    let distinct = policy.form().distinct();
    while node < drawn.tree().len() {
        if distinct > 0 && policy.may_grow(&drawn.path(node)) {
            let tokens = drawn.path(node).tokens();
            let drafts = match node {
                DraftTree::ROOT => (0..distinct).collect(),
                _ => drawn.drafts(node),
            };
            let distribution = |number: usize| -> Result<(usize, Distribution)> {
                Ok((number, draft.draft_distribution(number, &tokens)?.clone()))
            };
            let each = drafts.into_iter().map(distribution).collect::<Result<Vec<_>>>()?;
            drawn.grow_distinct(node, each, policy, rng)?;
        } else if policy.may_grow(&drawn.path(node)) {
            let probs = draft.distribution(&drawn.path(node).tokens())?.clone();
            drawn.grow(node, probs, policy, rng)?;
        }
        node += 1;
    }
    Ok(drawn)
}

/// A draft's tokens and how they were drawn at each node; for distinct drafts also which draft drew
/// which token.
type Identity = (DraftTree, Vec<Option<(Draws, bool, Vec<Token>)>>);

fn identity(draft: &Draft) -> Identity {
    let each = |node| draft.distinct_tokens(node).map_or(Vec::new(), <[Token]>::to_vec);
    let at = |node| draft.draws(node).map(|draws| (draws, draft.has_fresh_draws(node), each(node)));
    (draft.tree().clone(), (0..draft.tree().len()).map(at).collect())
}

/// Enumerates every draft of this policy, with its probability.
///
/// # Errors
/// As for [`draw`].
pub fn drafts(policy: &dyn Policy, draft: &dyn ContextDistributions) -> Result<Vec<(f64, Draft)>> {
    let mut all: HashMap<Identity, (f64, Draft)> = HashMap::new();
    for (probability, drawn) in enumerate(|rng| draw(policy, draft, rng)) {
        let drawn = drawn?;
        all.entry(identity(&drawn)).or_insert((0.0, drawn)).0 += probability;
    }
    let mut all: Vec<_> = all.into_values().collect();
    // Sorted, because sums must not depend on the order of a hash table.
    all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    Ok(all)
}

/// Computes the exact distribution and block efficiency of a verifier. `progress` receives the
/// fraction of the drafts that is done.
///
/// # Errors
/// Errors of the verifier; a sequence without a distribution.
///
/// ```
/// use polydraft::conformance::tree::{exact, random_pair};
/// use polydraft::{PolicyKind, VerifierKind};
/// use rand::SeedableRng;
///
/// let pair = random_pair(3, 2, 0.5, false, &mut rand_chacha::ChaCha8Rng::seed_from_u64(1))?;
/// let policy = PolicyKind::paths(2, 2).build()?;
/// let mut tokens = |name: &str| {
///     let mut verifier = name.parse::<VerifierKind>()?.build()?;
///     let found =
///         exact(verifier.as_mut(), policy.as_ref(), &pair.target, &pair.draft, &mut |_| ())?;
///     assert!(found.deviation < 1e-12);
///     Ok::<f64, polydraft::Error>(found.block_efficiency)
/// };
/// assert!(tokens("nested-priority")? > tokens("spectr")?);
/// # Ok::<(), polydraft::Error>(())
/// ```
pub fn exact(
    verifier: &mut dyn Verifier,
    policy: &dyn Policy,
    target: &dyn ContextDistributions,
    draft: &dyn ContextDistributions,
    progress: &mut dyn FnMut(f64),
) -> Result<Exact> {
    let Steps { emitted, trees, fallbacks } = steps(verifier, policy, target, draft, progress)?;
    let block_efficiency =
        emitted.iter().map(|(sequence, probability)| probability * sequence.len() as f64).sum();
    let mut deviation = 0.0;
    let mut sequence = Vec::new();
    compare(target, &emitted, policy.depth() + 1, 1.0, 0.0, &mut sequence, &mut deviation)?;
    Ok(Exact { block_efficiency, deviation, trees, fallbacks })
}

/// The exact distribution of the tokens (one or more) emitted in one step, and the number of
/// different drafts.
///
/// # Errors
/// As for [`exact`].
pub fn emitted(
    verifier: &mut dyn Verifier,
    policy: &dyn Policy,
    target: &dyn ContextDistributions,
    draft: &dyn ContextDistributions,
    progress: &mut dyn FnMut(f64),
) -> Result<(BTreeMap<Vec<Token>, f64>, usize)> {
    let steps = steps(verifier, policy, target, draft, progress)?;
    Ok((steps.emitted, steps.trees))
}

/// All possible steps from one context.
struct Steps {
    /// Probability of each sequence of emitted tokens.
    emitted: BTreeMap<Vec<Token>, f64>,
    trees: usize,
    fallbacks: f64,
}

fn steps(
    verifier: &mut dyn Verifier,
    policy: &dyn Policy,
    target: &dyn ContextDistributions,
    draft: &dyn ContextDistributions,
    progress: &mut dyn FnMut(f64),
) -> Result<Steps> {
    verifier.supports(&policy.form())?;
    let mut fallbacks = 0.0;
    let mut emitted: BTreeMap<Vec<Token>, f64> = BTreeMap::new();
    let mut note = |probability: f64, distributions: &NodeTargets, outcome: Outcome| {
        let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
        let mut sequence = distributions.sequences[end].clone();
        sequence.push(outcome.token);
        *emitted.entry(sequence).or_default() += probability;
    };
    let trees = if verifier.uses_shared_randomness() {
        // The decision depends on how the draft was drawn, not only on its tokens.
        let runs = enumerate(|rng| {
            let mut shared_randomness = gumbel::shared_randomness(rng);
            let mut rng = WithSharedRandomness::new(rng, shared_randomness.as_mut(), 0);
            let draft = draw(policy, draft, &mut rng)?;
            let distributions = NodeTargets::new(draft.tree(), target);
            let outcome = verifier.verify(&draft, &distributions, &mut rng)?;
            Ok((identity(&draft), distributions, outcome))
        });
        let mut trees = HashSet::new();
        for (probability, run) in runs {
            let (tree, distributions, outcome) = run?;
            note(probability, &distributions, outcome);
            trees.insert(tree);
        }
        trees.len()
    } else {
        let drafts = drafts(policy, draft)?;
        for (index, (probability, draft)) in drafts.iter().enumerate() {
            let distributions = NodeTargets::new(draft.tree(), target);
            let runs = enumerate(|rng| {
                let before = verifier.fallbacks();
                let outcome = verifier.verify(draft, &distributions, rng);
                (outcome, verifier.fallbacks() - before)
            });
            for (decision, (outcome, fallback_count)) in runs {
                fallbacks += probability * decision * fallback_count as f64;
                note(probability * decision, &distributions, outcome?);
            }
            progress((index + 1) as f64 / drafts.len() as f64);
        }
        drafts.len()
    };
    Ok(Steps { emitted, trees, fallbacks })
}

/// Compares the distribution of all sequences of `length` that extend `sequence`: `expected` is the
/// probability of `sequence` under the target, `flow` the probability that one of its prefixes was
/// emitted and then extended to it by the target. `worst` is updated with the largest deviation.
fn compare(
    target: &dyn ContextDistributions,
    emitted: &BTreeMap<Vec<Token>, f64>,
    length: usize,
    expected: f64,
    flow: f64,
    sequence: &mut Vec<Token>,
    worst: &mut f64,
) -> Result<()> {
    let flow = flow + emitted.get(sequence).copied().unwrap_or(0.0);
    if sequence.len() == length {
        let deviation = (flow - expected).abs();
        // NaN must neither pass nor be overwritten.
        *worst = if worst.is_nan() || deviation <= *worst { *worst } else { deviation };
        return Ok(());
    }
    // Covers the full vocabulary: tokens without probability under the target must not be emitted
    // either.
    let probs = target.distribution(sequence)?;
    for token in 0..probs.vocabulary() as Token {
        let p = probs.probability(token);
        sequence.push(token);
        let reachable =
            expected > 0.0 || flow > 0.0 || emitted.keys().any(|key| key.starts_with(sequence));
        if reachable {
            compare(target, emitted, length, expected * p, flow * p, sequence, worst)?;
        }
        sequence.pop();
    }
    Ok(())
}

/// Expected block efficiency of block verification of a path drawn by `selection`: Σ over sequences
/// of b, where b of the empty sequence is 1 and b(xy) = min(b(x)·p(y|x), selection(xy)).
///
/// `selection` returns the probability that the selected path starts with a sequence.
///
/// # Errors
/// A sequence without a distribution.
pub fn block_efficiency(
    depth: usize,
    target: &dyn ContextDistributions,
    selection: &mut dyn FnMut(&[Token]) -> Result<f64>,
) -> Result<f64> {
    fn below(
        depth: usize,
        target: &dyn ContextDistributions,
        selection: &mut dyn FnMut(&[Token]) -> Result<f64>,
        sequence: &mut Vec<Token>,
        b: f64,
    ) -> Result<f64> {
        if sequence.len() == depth {
            return Ok(b);
        }
        let mut sum = b;
        for (token, p) in target.distribution(sequence)?.support() {
            sequence.push(token);
            let next = (b * p).min(selection(sequence)?);
            if next > 0.0 {
                sum += below(depth, target, selection, sequence, next)?;
            }
            sequence.pop();
        }
        Ok(sum)
    }
    below(depth, target, selection, &mut Vec::new(), 1.0)
}

/// Target and draft distributions for all sequences of up to `depth` tokens over a vocabulary.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The target, with distributions for sequences of all lengths from 0 to `depth`.
    pub target: HashMap<Vec<Token>, Distribution>,
    /// The draft, likewise.
    pub draft: HashMap<Vec<Token>, Distribution>,
}

/// Generates a random pair in which the draft is mixed with the target: `agreement` is the share of
/// the target, from 0 to 1. Adversarial pairs have one-hot distributions, ties, zeros, subnormal
/// probabilities, a probability one rounding below 1, disjoint supports and equal distributions in
/// random places.
///
/// # Errors
/// None for a vocabulary of at least one token.
pub fn random_pair<R: rand::Rng + ?Sized>(
    vocabulary: usize,
    depth: usize,
    agreement: f64,
    adversarial: bool,
    rng: &mut R,
) -> Result<Pair> {
    let (mut target, mut draft) = (HashMap::new(), HashMap::new());
    let mut sequences = vec![Vec::new()];
    for _ in 0..=depth {
        let mut longer = Vec::new();
        for sequence in sequences {
            let p = weights(vocabulary, adversarial, rng);
            let mut q = weights(vocabulary, adversarial, rng);
            if adversarial && uniform(rng) < 0.15 {
                q = p.iter().map(|p| if *p > 0.0 { 0.0 } else { 1.0 }).collect();
            }
            if q.iter().all(|q| *q == 0.0) || (adversarial && uniform(rng) < 0.15) {
                q.clone_from(&p);
            }
            let (p, q) = (normal(p), normal(q));
            let q = p.iter().zip(&q).map(|(p, q)| agreement * p + (1.0 - agreement) * q).collect();
            target.insert(sequence.clone(), Distribution::new(p)?);
            draft.insert(sequence.clone(), Distribution::new(q)?);
            longer.extend((0..vocabulary as Token).map(|token| [&sequence[..], &[token]].concat()));
        }
        sequences = longer;
    }
    Ok(Pair { target, draft })
}

fn uniform<R: rand::Rng + ?Sized>(rng: &mut R) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

fn normal(values: Vec<f64>) -> Vec<f64> {
    let sum: f64 = values.iter().sum();
    values.into_iter().map(|value| value / sum).collect()
}

/// Dirichlet-like weights, or one of several special kinds.
fn weights<R: rand::Rng + ?Sized>(vocabulary: usize, adversarial: bool, rng: &mut R) -> Vec<f64> {
    let kind = if adversarial { (uniform(rng) * 8.0) as usize } else { 8 };
    let chosen = (uniform(rng) * vocabulary as f64) as usize;
    match kind {
        0 => (0..vocabulary).map(|i| if i == chosen { 1.0 } else { 0.0 }).collect(),
        1 => vec![1.0; vocabulary],
        2 => (0..vocabulary).map(|i| if i == chosen { 1.0 } else { 1e-17 }).collect(),
        3 => (0..vocabulary).map(|i| [0.5, 0.25, 0.125, 0.125][(i + chosen) % 4]).collect(),
        4 if vocabulary > 1 => {
            (0..vocabulary).map(|i| if i == chosen { 0.0 } else { 1e-3 + uniform(rng) }).collect()
        }
        5 => (0..vocabulary)
            .map(|i| if i == chosen { 1.0 } else { [1.1e-300, 5e-324, 3e-300][i % 3] })
            .collect(),
        6 => (0..vocabulary)
            .map(|i| if i == chosen { 1.0 - f64::EPSILON } else { f64::EPSILON })
            .collect(),
        _ => (0..vocabulary).map(|_| -(1e-12 + uniform(rng)).ln()).collect(),
    }
}
