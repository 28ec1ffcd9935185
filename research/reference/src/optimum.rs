//! The best acceptance, and the set of tokens that limits it, by several independent methods.
//!
//! Problem: H* = argmin over token sets H of ψ(H) = p(H) − Pr(all drafts lie in H); α* = 1 + ψ(H*).
//! Source: Hu et al. 2025 (the formula; H* is a prefix of the tokens by rising p/q for i.i.d.
//! drafts and drafts without replacement); Thomas and Pal 2025 (Global Resolution), appendix D: for
//! two distinct drafts a submodular quadratic function of binary variables, hence (Kolmogorov and
//! Zabih 2004) a minimum cut.
//! Complexity: all 2^k subsets of k drafted tokens; a cut of k² edges; a sort.
//! Deviations: (1) all subsets are evaluated together: Pr(all drafts lie in H) is a sum of
//! probabilities of token sets over subsets of H.

use crate::dinic::Network;
use crate::program::Deadline;
use crate::sets::{Part, TokenSets};
use polydraft::{Drafting, Error, Problem, Result, Token};

/// The largest acceptance, and a set that proves its optimality.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimum {
    /// α*.
    pub acceptance: f64,
    /// H*, ascending; only tokens that can be drafted.
    pub tokens: Vec<Token>,
}

/// Maximum number of drafted tokens for enumerating all subsets.
const SUBSETS_UP_TO: usize = 20;
/// Maximum number of drafted tokens for a minimum cut.
const CUT_UP_TO: usize = 2_000;
/// Maximum number of enumerated pairs of token set and token.
const PAIRS_UP_TO: usize = 4_000_000;

/// Returns the tokens that can be drafted, ascending.
fn drafted(problem: &Problem) -> Vec<Token> {
    let proposal = &problem.proposal;
    let distributions = if proposal.scheme() == Drafting::Distinct { proposal.count() } else { 1 };
    let mut tokens: Vec<Token> = (0..distributions)
        .flat_map(|index| proposal.distribution(index).support().map(|(token, _)| token))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// Computes the optimum by enumerating the subsets of the drafted tokens, for any scheme.
///
/// # Errors
/// More than 20 drafted tokens, or too many tuples.
pub fn by_subsets(problem: &Problem) -> Result<Optimum> {
    let operation = "optimum over all subsets";
    let tokens = drafted(problem);
    if tokens.len() > SUBSETS_UP_TO {
        let expected = format!("at most {SUBSETS_UP_TO} drafted tokens");
        return Err(Error::TooLarge { operation, expected, got: tokens.len().to_string() });
    }
    let sets = TokenSets::new(operation, &problem.proposal, Part::All, PAIRS_UP_TO)?;
    let bit = |token: &Token| 1_usize << tokens.partition_point(|other| other < token);
    // First the value of each set alone, then with all its subsets.
    let mut slack = vec![0.0; 1 << tokens.len()];
    for set in 0..sets.len() {
        let mask: usize = sets.tokens()[sets.range(set)].iter().map(bit).sum();
        slack[mask] -= sets.probability(set);
    }
    for index in 0..tokens.len() {
        for mask in (0..slack.len()).filter(|mask| mask >> index & 1 == 1) {
            slack[mask] += slack[mask ^ 1 << index];
        }
    }
    let demand = |mask: usize| -> f64 {
        let inside = tokens.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1);
        inside.map(|(_, &token)| problem.target.probability(token)).sum()
    };
    let mut best = (0.0, 0);
    for (mask, slack) in slack.iter().enumerate() {
        let value = slack + demand(mask);
        if value < best.0 {
            best = (value, mask);
        }
    }
    let inside = tokens.iter().enumerate().filter(|(index, _)| best.1 >> index & 1 == 1);
    Ok(Optimum { acceptance: 1.0 + best.0, tokens: inside.map(|(_, &token)| token).collect() })
}

/// Computes the optimum by a minimum cut, for two drafts with one or two distributions.
///
/// With x_i for i ∈ H and q_1(V) = q_2(V) = 1, ψ = Σ (p_i − q_1i) x_i + Σ q_1i q_2j x_i (1 − x_j):
/// a token with p above q_1 pays for being in H, one below pays for being outside, and each pair
/// pays if the first is in and the second out.
///
/// # Errors
/// Another number of drafts or another scheme, or more than 2,000 drafted tokens.
pub fn by_minimum_cut(problem: &Problem) -> Result<Optimum> {
    let operation = "optimum by minimum cut";
    problem.proposal.draws().require(operation, &[Drafting::Distinct, Drafting::Iid])?;
    let proposal = &problem.proposal;
    let tokens = drafted(problem);
    if proposal.count() != 2 {
        let (expected, got) = ("2 drafts".to_owned(), proposal.count().to_string());
        return Err(Error::Unsupported { operation, expected, got });
    }
    if tokens.len() > CUT_UP_TO {
        let expected = format!("at most {CUT_UP_TO} drafted tokens");
        return Err(Error::TooLarge { operation, expected, got: tokens.len().to_string() });
    }
    let (first, second) = (proposal.distribution(0), proposal.distribution(1));
    let count = tokens.len();
    let (source, sink) = (count, count + 1);
    let mut network = Network::new(count + 2, count * count / 2 + count);
    for (i, &token) in tokens.iter().enumerate() {
        let price = problem.target.probability(token) - first.probability(token);
        match price > 0.0 {
            true => network.edge(i, sink, price, 0.0),
            false => network.edge(source, i, -price, 0.0),
        };
        for (j, &other) in tokens.iter().enumerate().take(i) {
            let pay = |a, b| first.probability(a) * second.probability(b);
            network.edge(i, j, pay(token, other), pay(other, token));
        }
    }
    let inside = network.fill(source, sink, operation, Deadline::after(f64::INFINITY))?;
    let tokens: Vec<Token> =
        tokens.into_iter().zip(inside).filter(|(_, inside)| *inside).map(|(t, _)| t).collect();
    let mass = |probs: &polydraft::Distribution| {
        tokens.iter().map(|&token| probs.probability(token)).sum::<f64>()
    };
    let slack = mass(problem.target) - mass(first) * mass(second);
    Ok(Optimum { acceptance: 1.0 + slack.min(0.0), tokens })
}

/// Computes the optimum by the fastest method for the scheme: a sort, a formula, a cut for two
/// distinct drafts, or all subsets for more distinct drafts.
///
/// # Errors
/// A problem too large for its scheme.
pub fn best(problem: &Problem) -> Result<Optimum> {
    let proposal = &problem.proposal;
    match proposal.scheme() {
        Drafting::Distinct if proposal.count() == 2 => by_minimum_cut(problem),
        Drafting::Distinct if proposal.count() > 2 => by_subsets(problem),
        Drafting::Greedy | Drafting::Hub => Ok(around_hubs(problem)),
        Drafting::TopK => {
            Ok(around(problem, proposal.distribution(0).most_likely(proposal.count()), &[]))
        }
        Drafting::WithoutReplacement if proposal.count() > 1 => without_replacement(problem),
        _ => Ok(independent(problem)),
    }
}

/// Returns the drafted tokens by increasing p/q: (token, p, q).
pub(crate) fn by_ratio(problem: &Problem) -> Vec<(Token, f64, f64)> {
    let support = problem.proposal.distribution(0).support();
    let mut tokens: Vec<_> =
        support.map(|(token, q)| (token, problem.target.probability(token), q)).collect();
    tokens.sort_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)).then(a.0.cmp(&b.0)));
    tokens
}

/// Returns the prefix of `order` with the minimum of demand − `within`; the shortest if several
/// have it.
fn best_prefix(order: &[(Token, f64, f64)], mut within: impl FnMut(usize) -> f64) -> Optimum {
    let (mut demand, mut best) = (0.0, (0.0, 0));
    for (index, token) in order.iter().enumerate() {
        demand += token.1;
        let slack = demand - within(index);
        if slack < best.0 {
            best = (slack, index + 1);
        }
    }
    let mut tokens: Vec<Token> = order[..best.1].iter().map(|token| token.0).collect();
    tokens.sort_unstable();
    Optimum { acceptance: 1.0 + best.0, tokens }
}

fn independent(problem: &Problem) -> Optimum {
    let order = by_ratio(problem);
    let (mut mass, count) = (0.0, problem.proposal.count() as f64);
    best_prefix(&order, |index| {
        mass += order[index].2;
        f64::powf(mass, count)
    })
}

/// Computes the optimum for drafts without replacement. Pr(all drafts lie in a prefix) is a sum
/// over token sets: each set counts in all prefixes that contain its last token.
fn without_replacement(problem: &Problem) -> Result<Optimum> {
    let order = by_ratio(problem);
    let mut rank = vec![0; problem.target.vocabulary()];
    order.iter().enumerate().for_each(|(index, token)| rank[token.0 as usize] = index);
    let sets =
        TokenSets::new("optimum without replacement", &problem.proposal, Part::All, PAIRS_UP_TO)?;
    let mut within = vec![0.0; order.len()];
    for set in 0..sets.len() {
        let last = sets.tokens()[sets.range(set)].iter().map(|token| rank[*token as usize]).max();
        within[last.unwrap_or(0)] += sets.probability(set);
    }
    let mut sum = 0.0;
    Ok(best_prefix(&order, |index| {
        sum += within[index];
        sum
    }))
}

fn around_hubs(problem: &Problem) -> Optimum {
    let draft = problem.proposal.distribution(0);
    let hubs = draft.most_likely(problem.proposal.count() - 1);
    let outside: Vec<_> = draft.support().filter(|(token, _)| !hubs.contains(token)).collect();
    let rest: f64 = outside.iter().map(|(_, q)| q).sum();
    let drawn: Vec<_> = outside.into_iter().map(|(token, q)| (token, q / rest)).collect();
    around(problem, hubs, &drawn)
}

/// Computes the optimum for tuples that consist of all `tokens` and, unless `drawn` is empty, one
/// of `drawn`. A set H contains tuples only if it contains all `tokens`; of `drawn`, it takes the
/// tokens whose draft probability exceeds the target's.
fn around(problem: &Problem, mut tokens: Vec<Token>, drawn: &[(Token, f64)]) -> Optimum {
    let mut slack: f64 = tokens.iter().map(|&token| problem.target.probability(token)).sum();
    if drawn.is_empty() {
        slack -= 1.0;
    }
    for &(token, q) in drawn {
        let gain = problem.target.probability(token) - q;
        if gain < 0.0 {
            slack += gain;
            tokens.push(token);
        }
    }
    if slack >= 0.0 {
        return Optimum { acceptance: 1.0, tokens: Vec::new() };
    }
    tokens.sort_unstable();
    Optimum { acceptance: 1.0 + slack, tokens }
}
