//! Expected number of tokens that a verifier emits for a given draft, over its own random
//! decisions.
//!
//! Problem: compute this number without sampling the verifier's decisions.
//! Source: ours. The verifier's own code runs once for every sequence of its decisions
//! (`polydraft::enumerate`), except the choice of the last token, which does not change the number
//! of tokens.
//! Complexity: one run per sequence of accepted and rejected nodes; for a walk, one distribution
//! per node and order of draws.
//! Deviations: (1) a walk accepts its rule's token whenever that is a child. So the rule's
//! distribution at each node is computed, averaged over the possible orders of the draws: all of
//! them if they are few, else random ones, which is unbiased; (2) block verification flips a coin
//! for each node of the selected path, from its end upwards, and stops at the first acceptance, so
//! one run in which all coins reject gives all probabilities; (3) a draft with many paths is split
//! at random into subsamples with the number of paths to compare, and the mean over subsamples
//! counts; a single-path verifier runs on each path.

use polydraft::random::Outcomes;
use polydraft::verify::walk;
use polydraft::{
    Draft, DraftTree, Error, Form, NodeId, Outcome, Problem, RandomSource, Result, Rule,
    TargetDistributions, Verifier, couple, enumerate,
};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

use super::hands::{Dealt, Hand};
use super::orders::orders;
use polydraft::VerifierKind;

use crate::for_measurement;

/// A verifier in a form that allows to compute its expected number of tokens.
pub struct Subject {
    way: Way,
    /// Whether the verifier runs on one path at a time.
    alone: bool,
}

enum Way {
    /// Computed from the rule's distribution at each node.
    Walk(Box<dyn Rule>, Box<ChaCha12Rng>),
    /// Computed from the coins of the selected path.
    Block(Box<dyn Verifier>),
    /// Computed from an enumeration of all decisions.
    Full(Box<dyn Verifier>),
}

impl Subject {
    /// Creates the verifier for trees of this form; `None` if it is not exact for them.
    ///
    /// # Errors
    /// Settings out of range; a verifier that samples its own drafts.
    pub fn new(kind: &VerifierKind, form: &Form) -> Result<Option<Self>> {
        let verifier = for_measurement(kind)?;
        if verifier.uses_shared_randomness() {
            return Err(Error::Unsupported {
                operation: "comparison on the same drafts",
                expected: "verifiers of any drafts".to_owned(),
                got: format!("{kind}, which samples its own drafts with shared randomness"),
            });
        }
        let alone = verifier.supports(form).is_err();
        if alone && !(form.is_paths() && verifier.supports(&Form::paths(1)).is_ok()) {
            return Ok(None);
        }
        let way = match kind {
            VerifierKind::Walk(rule) => {
                Way::Walk(rule.build()?, Box::new(ChaCha12Rng::seed_from_u64(0)))
            }
            VerifierKind::Block(_)
            | VerifierKind::GreedyBlock(_)
            | VerifierKind::PriorityBlock(_)
            | VerifierKind::NestedPriority(_) => Way::Block(verifier),
            _ => Way::Full(verifier),
        };
        Ok(Some(Self { way, alone }))
    }

    /// Returns the expected number of tokens emitted for a draft, including the last token: the
    /// mean over `hands`, or the value of the draft itself if there are none.
    ///
    /// # Errors
    /// Errors of the verifier.
    pub fn tokens(
        &mut self,
        draft: &Draft,
        hands: &[Hand],
        target: &dyn TargetDistributions,
    ) -> Result<f64> {
        if hands.is_empty() { self.way.tokens(draft, target) } else { self.mean(hands, target) }
    }

    /// Whether the verifier runs on one path at a time.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    fn mean(&mut self, hands: &[Hand], target: &dyn TargetDistributions) -> Result<f64> {
        let (mut sum, mut count) = (0.0, 0.0);
        for Hand { draft, nodes, times } in hands {
            let times = *times as f64;
            sum += times * self.way.tokens(draft, &Dealt { nodes, target })?;
            count += times;
        }
        Ok(sum / count)
    }
}

impl Way {
    fn tokens(&mut self, draft: &Draft, target: &dyn TargetDistributions) -> Result<f64> {
        match self {
            Self::Walk(rule, random) => walk(rule.as_mut(), random, draft, target),
            Self::Block(verifier) => by_coins(verifier.as_mut(), draft, target),
            Self::Full(verifier) => decided(verifier.as_mut(), draft, target),
        }
    }
}

/// Enumerates the selections of block verification, with the coins of each selected path.
fn by_coins(
    verifier: &mut dyn Verifier,
    draft: &Draft,
    target: &dyn TargetDistributions,
) -> Result<f64> {
    let runs = enumerate(|rng| {
        let mut coins = Coins { rng, accepts: Vec::new() };
        verifier.verify(draft, target, &mut coins).map(|_| coins.accepts)
    });
    runs.into_iter().try_fold(0.0, |sum, (probability, accepts)| {
        let accepts = accepts?;
        let (mut left, mut tokens) = (1.0, 0.0);
        for (index, accept) in accepts.iter().enumerate() {
            tokens += left * accept * (accepts.len() - index + 1) as f64;
            left *= 1.0 - accept;
        }
        Ok(sum + probability * (tokens + left))
    })
}

/// Random source that enumerates selections, and records coins, all of which reject.
struct Coins<C> {
    rng: C,
    accepts: Vec<f64>,
}

impl<C: RandomSource> RandomSource for Coins<C> {
    fn coin(&mut self, probability: f64) -> bool {
        self.accepts.push(if probability > 0.0 { probability.min(1.0) } else { 0.0 });
        false
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        choose(&mut self.rng, outcomes)
    }
}

/// Enumerates the verifier's decisions.
fn decided(
    verifier: &mut dyn Verifier,
    draft: &Draft,
    target: &dyn TargetDistributions,
) -> Result<f64> {
    let runs = enumerate(|rng| verifier.verify(draft, target, &mut Lengths { rng }));
    runs.into_iter().try_fold(0.0, |sum, (probability, outcome)| {
        let Outcome { accepted, .. } = outcome?;
        Ok(sum + probability * (accepted.len() + 1) as f64)
    })
}

/// Random source that enumerates all decisions except the choice of a token.
struct Lengths<C> {
    rng: C,
}

impl<C: RandomSource> RandomSource for Lengths<C> {
    fn coin(&mut self, probability: f64) -> bool {
        self.rng.coin(probability)
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        choose(&mut self.rng, outcomes)
    }
}

/// Enumerates outcomes. For a choice of a token, returns any outcome.
fn choose(rng: &mut impl RandomSource, outcomes: &dyn Outcomes) -> usize {
    if !outcomes.are_tokens() {
        return rng.choose(outcomes);
    }
    // The numbers differ, because rejection sampling might not end with a constant one.
    let mut number = 0.5;
    outcomes.draw(&mut || {
        number = (number + 0.618_033_988_749_895) % 1.0;
        number
    })
}

/// Returns the expected number of tokens that a walk emits: the sum over nodes of the probability
/// of reaching them.
fn walk(
    rule: &mut dyn Rule,
    random: &mut ChaCha12Rng,
    draft: &Draft,
    target: &dyn TargetDistributions,
) -> Result<f64> {
    let mut reach = vec![0.0; draft.tree().len()];
    reach[DraftTree::ROOT] = 1.0;
    // Children come after their parents.
    for node in 0..reach.len() {
        if reach[node] > 0.0
            && let Some(proposal) = draft.proposal(node)
        {
            let problem = Problem::new(target.target(node)?, proposal)?;
            for (child, follows) in follows(rule, random, draft, node, problem)? {
                reach[child] = reach[node] * follows;
            }
        }
    }
    Ok(reach.iter().sum())
}

/// Returns the probabilities that the walk continues to each child of a node.
fn follows(
    rule: &mut dyn Rule,
    random: &mut ChaCha12Rng,
    draft: &Draft,
    node: NodeId,
    problem: Problem,
) -> Result<Vec<(NodeId, f64)>> {
    let tree = draft.tree();
    let mut substitute;
    let mut coupling = match couple(rule, problem) {
        // The walk uses the same fallback.
        Err(Error::TooLarge { .. } | Error::Solver { .. }) => {
            substitute = walk::fallback_rule(problem.proposal.scheme())?;
            couple(substitute.as_mut(), problem)?
        }
        coupled => coupled?,
    };
    let mut follows: Vec<(NodeId, f64)> = tree.children(node).map(|child| (child, 0.0)).collect();
    let orders = orders(draft, node, random);
    for drafts in &orders {
        let probs = coupling.distribution(drafts)?;
        for (child, follows) in &mut follows {
            *follows += probs.probabilities[tree.token(*child) as usize] / orders.len() as f64;
        }
    }
    Ok(follows)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use polydraft::conformance::tree::{NodeTargets, drafts, exact, random_pair};
    use polydraft::{Distribution, Drafting, Draws, Growth, PolicyKind};

    use super::super::hands::deal;
    use super::super::orders::RANDOM_ORDERS;
    use super::*;

    /// The expected tokens over all drafts equal the conformance runner's result, which enumerates
    /// everything.
    #[test]
    fn equals_full_enumeration() {
        let mut random = ChaCha12Rng::seed_from_u64(3);
        let mut checked: HashMap<String, usize> = HashMap::new();
        for tree in [
            "paths:2,2",
            "paths:3,1",
            "paths:1,2",
            "2,2",
            "delayed:1,2,1",
            "stop-below:0.7,paths:2,2",
            "2,2/without-replacement",
            "2,1/top-k",
            "2,1/hub",
            "fixed:0,0,1/iid",
            "fixed:0,0,0,1/iid",
            "fixed:0,0,1,2,2/hub",
            "fixed:0,0,1/greedy",
        ] {
            let policy = tree.parse::<PolicyKind>().expect("a tree").build().expect("a policy");
            for index in 0..4 {
                // As many drafts as tokens: outcomes that are not tokens must not be treated as
                // tokens.
                let pair =
                    random_pair(2 + index / 2, policy.depth(), 0.3, index % 2 == 1, &mut random);
                let pair = pair.expect("a pair");
                for kind in VerifierKind::all_with(&crate::rules()) {
                    let Ok(Some(mut subject)) = Subject::new(&kind, &policy.form()) else {
                        continue;
                    };
                    let mut got = 0.0;
                    for (probability, draft) in
                        drafts(policy.as_ref(), &pair.draft).expect("drafts")
                    {
                        let target = NodeTargets::new(draft.tree(), &pair.target);
                        let hands = if subject.alone {
                            deal(&draft, 1, None, None).expect("hands")
                        } else {
                            Vec::new()
                        };
                        got +=
                            probability * subject.tokens(&draft, &hands, &target).expect("tokens");
                    }
                    let one = subject.alone;
                    let alone = PolicyKind::chain(policy.depth());
                    let own = match one {
                        true if tree.starts_with("paths") => alone.build().expect("a policy"),
                        true => continue,
                        false => {
                            tree.parse::<PolicyKind>().expect("a tree").build().expect("a policy")
                        }
                    };
                    let mut verifier = kind.build().expect("a verifier");
                    let (target, draft) = (&pair.target, &pair.draft);
                    let found = exact(verifier.as_mut(), own.as_ref(), target, draft, &mut |_| ());
                    let expected = found.expect("enumerated").block_efficiency;
                    assert!((got - expected).abs() < 1e-9, "{kind} {tree}: {got} {expected}");
                    *checked.entry(kind.to_string()).or_default() += 1;
                }
            }
        }
        for name in [
            "block",
            "token",
            "spectr",
            "specinfer",
            "traversal",
            "greedy-block",
            "nested-priority",
        ] {
            assert!(checked.get(name).is_some_and(|count| *count >= 8), "{name}: {checked:?}");
        }
    }

    fn tokens(verifier: &str, draft: &Draft, target: &dyn TargetDistributions) -> f64 {
        let kind = crate::verifier(verifier).expect("a name");
        let mut subject =
            Subject::new(&kind, draft.form()).expect("settings").expect("one that is exact");
        subject.tokens(draft, &[], target).expect("tokens")
    }

    /// At a node that is too large for its rule, the walk uses a fallback, and so do its expected
    /// tokens.
    #[test]
    fn walks_fall_back() {
        let probs = |weight: &dyn Fn(usize) -> usize| {
            let weights: Vec<f64> = (0..3000).map(|token| 1.0 + weight(token) as f64).collect();
            let sum: f64 = weights.iter().sum();
            Distribution::new(weights.iter().map(|weight| weight / sum).collect()).expect("probs")
        };
        let (drawn, wanted) = (probs(&|token| token % 7), probs(&|token| token % 5));
        let mut random = ChaCha12Rng::seed_from_u64(4);
        let without = Draws { scheme: Drafting::WithoutReplacement, count: 3 };
        for (draws, named) in [(Draws::iid(3), "walk:priority"), (without, "specinfer")] {
            let mut draft = Draft::new();
            draft.draw(0, drawn.clone(), Growth::Fresh(draws), &mut random).expect("drawn");
            let target = vec![wanted.clone(); draft.tree().len()];
            let problem =
                Problem::new(&wanted, draft.proposal(0).expect("drawn")).expect("a problem");
            let mut rule = crate::rule("max-flow").expect("a name").build().expect("a rule");
            assert!(matches!(couple(rule.as_mut(), problem), Err(Error::TooLarge { .. })));
            let expected = tokens(named, &draft, &target);
            assert!((tokens("walk:max-flow", &draft, &target) - expected).abs() < 1e-12, "{named}");
        }
    }

    /// A file may contain drafts that no policy draws: deeper than the stack allows for recursion.
    #[test]
    fn no_draft_is_too_deep() {
        let probs = |tokens: [f64; 2]| Distribution::new(tokens.to_vec()).expect("a distribution");
        let mut chain = Draft::new();
        for node in 0..16_384 {
            let growth = if node == 0 { Growth::Fresh(Draws::iid(1)) } else { Growth::Continue };
            chain.record(node, probs([0.75, 0.25]), growth, &[0]).expect("recorded");
        }
        let target = vec![probs([0.5, 0.5]); chain.tree().len()];
        // 1 + a + a² + .. with a = 0.5/0.75.
        assert!((tokens("specinfer", &chain, &target) - 3.0).abs() < 1e-12);
        let (one, two) = (vec![0; 1 << 20], [vec![0; 1 << 19], vec![1; 1 << 19]].concat());
        for (draws, expected) in [(one, 1), (two, RANDOM_ORDERS)] {
            let mut draft = Draft::new();
            let growth = Growth::Fresh(Draws::iid(draws.len()));
            draft.record(0, probs([0.5, 0.5]), growth, &draws).expect("recorded");
            let orders = orders(&draft, 0, &mut ChaCha12Rng::seed_from_u64(0));
            assert_eq!(orders.len(), expected);
        }
    }
}
