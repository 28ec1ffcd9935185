//! The optimal acceptance of any rule, and bounds of it.
//!
//! Problem: α* = 1 + min over token sets H of [p(H) − Pr(all drafts lie in H)].
//! Source: Sun et al. 2023 (SpecTr) for the optimal transport problem and lemma 3 (bounds); Hu et
//! al. 2025 for the formula with H and for H being a prefix of the tokens sorted by decreasing q/p
//! (i.i.d. and without replacement), and for the greedy scheme; Khisti et al. 2025, theorem 2, for
//! two drafts with α* = 1.
//! Complexity: O(V log V) for i.i.d., greedy and hub; about 200·n·V for drafts without replacement;
//! 2^V for distinct drafts (for two of them a minimum cut would do; it belongs to the reference
//! solvers).
//! Deviations: (1) the probability that drafts without replacement lie in H is an integral over
//! exponential arrival times, ∫ λ e^(−λt) Pr(at least n tokens of H have arrived by t) dt with λ =
//! q(H's complement), computed for all prefixes together; (2) of SpecTr's lemma 3 only the choice
//! Ω₀ = Ω, which proves both bounds, is offered: the general one is a minimum over all sets.

use crate::coupling::Problem;
use crate::drafting::{Drafting, Proposal, hit_probability, mass_without};
use crate::{Distribution, Error, Result, Token};

/// Maximum number of drafted tokens for the minimum over all sets.
const MAX_SUBSET_TOKENS: usize = 20;

/// The highest acceptance of any rule for this problem.
///
/// # Errors
/// Distinct drafts over a vocabulary of more than 20 tokens.
pub fn optimal(problem: &Problem) -> Result<f64> {
    let (target, proposal) = (problem.target, &problem.proposal);
    let draft = proposal.distribution(0);
    let count = proposal.count();
    match proposal.scheme() {
        Drafting::TopK => {
            Ok(draft.most_likely(count).iter().map(|&token| target.probability(token)).sum())
        }
        _ if count == 1 => Ok(target.overlap(draft)),
        Drafting::Iid => Ok(best_prefix(target, draft, |masses| {
            masses.iter().map(|q| q.powf(count as f64)).collect()
        })),
        Drafting::WithoutReplacement => {
            let count = count.min(draft.support_size());
            let lengths =
                sorted(target, draft).into_iter().map(|token| token.1).collect::<Vec<_>>();
            Ok(best_prefix(target, draft, |_| all_within(&lengths, count)))
        }
        Drafting::Greedy | Drafting::Hub => {
            let hubs = draft.most_likely(count - 1);
            let rest = mass_without(draft, &hubs);
            let outside = draft.support().filter(|(token, _)| !hubs.contains(token));
            let sum: f64 = outside.map(|(token, q)| target.probability(token).min(q / rest)).sum();
            Ok(sum + hubs.iter().map(|&hub| target.probability(hub)).sum::<f64>())
        }
        Drafting::Distinct => optimal_by_subsets(target, proposal),
    }
}

/// The highest acceptance of any rule for `draws` i.i.d. drafts, at least 1. A fractional number
/// means rounding down or up at random with that mean: the best rule assigns priorities as for a
/// fixed number of drafts, with the mean of z^n in place of z^n (docs/theory.md, theorem 6).
///
/// ```
/// use polydraft::{Distribution, acceptance, drafting};
/// let target = Distribution::new(vec![0.0, 0.5, 0.5])?;
/// let draft = Distribution::new(vec![0.8, 0.1, 0.1])?;
/// // Two distinct tokens on average take 6.6 draws, which are often all the same.
/// let draws = drafting::draws_for_distinct(&draft, 2.0, 1000);
/// assert!((draws - 6.59).abs() < 0.01);
/// assert!((acceptance::optimal_iid(&target, &draft, draws) - 0.769).abs() < 1e-3);
/// # Ok::<(), polydraft::Error>(())
/// ```
pub fn optimal_iid(target: &Distribution, draft: &Distribution, draws: f64) -> f64 {
    let (fewer, more) = (draws.floor(), draws - draws.floor());
    // Rounding may make a sum larger than 1, and a high power would amplify it.
    let within = |q: f64| (1.0 - more) * q.powf(fewer) + more * q.powf(fewer + 1.0);
    best_prefix(target, draft, |masses| masses.iter().map(|q| within(q.min(1.0))).collect())
}

/// The tokens (p, q) of the draft's support, by rising p/q.
fn sorted(target: &Distribution, draft: &Distribution) -> Vec<(f64, f64)> {
    let mut tokens: Vec<_> =
        draft.support().map(|(token, q)| (target.probability(token), q)).collect();
    tokens.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    tokens
}

/// 1 + min over prefixes H of the sorted tokens of [p(H) − within(H)]. `within` receives q(H) of
/// every prefix and returns the probability that all drafts lie in it.
fn best_prefix(
    target: &Distribution,
    draft: &Distribution,
    within: impl FnOnce(&[f64]) -> Vec<f64>,
) -> f64 {
    let tokens = sorted(target, draft);
    let mut sum = 0.0;
    let masses: Vec<f64> = tokens
        .iter()
        .map(|token| {
            sum += token.1;
            sum
        })
        .collect();
    let mut demand = 0.0;
    let slack = tokens.iter().zip(within(&masses)).map(|(token, within)| {
        demand += token.0;
        demand - within
    });
    1.0 + slack.fold(0.0, f64::min)
}

/// For every prefix H of tokens with these draft probabilities, the probability that `count`
/// sequential draws without replacement lie in H.
///
/// Every token gets an exponential arrival time of rate q, and the order of arrival is that of the
/// draws. The integral is taken over the logarithm of time, where the trapezoidal rule converges
/// exponentially (step 0.3: 1e-14).
fn all_within(lengths: &[f64], count: usize) -> Vec<f64> {
    const STEP: f64 = 0.3;
    // The rate of arrival outside each prefix, summed from the end because it may be tiny.
    let mut rates = vec![0.0; lengths.len()];
    for index in (1..lengths.len()).rev() {
        rates[index - 1] = rates[index] + lengths[index];
    }
    let mut within: Vec<f64> =
        rates.iter().map(|rate| if *rate > 0.0 { 0.0 } else { 1.0 }).collect();
    let Some(slowest) = rates.iter().copied().filter(|rate| *rate > 0.0).reduce(f64::min) else {
        return within;
    };
    let (first, last) = (-40.0 / (count as f64 + 1.0), 40_f64.ln() - slowest.ln());
    let mut arrived = vec![0.0; count];
    for node in 0..((last - first) / STEP).ceil() as usize {
        let time = (first + node as f64 * STEP).exp();
        // arrived[j]: the probability that exactly j tokens of the prefix have arrived.
        arrived.fill(0.0);
        arrived[0] = 1.0;
        for (index, (&length, &rate)) in lengths.iter().zip(&rates).enumerate() {
            let arrives = -(-length * time).exp_m1();
            for j in (1..count).rev() {
                arrived[j] += arrives * (arrived[j - 1] - arrived[j]);
            }
            arrived[0] -= arrives * arrived[0];
            if rate > 0.0 {
                let enough = (1.0 - arrived.iter().sum::<f64>()).max(0.0);
                within[index] += STEP * rate * time * (-rate * time).exp() * enough;
            }
        }
    }
    within
}

/// 1 + the minimum over all sets of drafted tokens.
fn optimal_by_subsets(target: &Distribution, proposal: &Proposal) -> Result<f64> {
    let drafted = |token: Token| {
        (0..proposal.count()).any(|index| proposal.distribution(index).probability(token) > 0.0)
    };
    let tokens: Vec<Token> =
        (0..proposal.vocabulary() as Token).filter(|token| drafted(*token)).collect();
    if tokens.len() > MAX_SUBSET_TOKENS {
        return Err(Error::Unsupported {
            operation: "optimal acceptance of distinct drafts",
            expected: format!("at most {MAX_SUBSET_TOKENS} drafted tokens"),
            got: tokens.len().to_string(),
        });
    }
    let mass = |probs: &Distribution, set: u32| -> f64 {
        let inside = tokens.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
        inside.map(|(_, &token)| probs.probability(token)).sum()
    };
    let slack = (0..1_u32 << tokens.len()).map(|set| {
        let within: f64 =
            (0..proposal.count()).map(|index| mass(proposal.distribution(index), set)).product();
        mass(target, set) - within
    });
    Ok(1.0 + slack.fold(0.0, f64::min))
}

/// True if two i.i.d. drafts can always be made to contain the emitted token: p(S) ≥ q(S)² for
/// every set S, up to rounding.
pub fn two_drafts_suffice(target: &Distribution, draft: &Distribution) -> bool {
    best_prefix(target, draft, |masses| masses.iter().map(|q| q * q).collect()) >= 1.0 - 1e-12
}

/// SpecTr's bounds (lower, upper) of the optimal acceptance of `count` i.i.d. drafts: the upper one
/// is Σ min(p, 1 − (1 − q)^count), the lower one (1 − (1 − 1/count)^count) times it.
pub fn bounds(target: &Distribution, draft: &Distribution, count: usize) -> (f64, f64) {
    let mut upper = 0.0;
    target.for_each_pair(draft, |_, p, q| upper += p.min(hit_probability(q, count)));
    (upper * hit_probability(1.0 / count as f64, count), upper)
}
