//! Acceptance of the first of two drafts.
//!
//! Problem: SpecHub's tables distinguish the acceptance of the first draft from that of the second.
//! Source: Sun et al. 2024 (SpecHub), sections 3 and 4. Recursive rejection accepts a first draft
//! drawn from q with probability Σ min(p, q). SpecHub does the same for a first draft x that is not
//! the hub a. For the hub as the first draft, its share is computed after the pairs that begin with
//! another token.
//! Complexity: one pass over the support.

use polydraft::{Drafting, Problem};

/// Returns the probability that the first draft is emitted, with `hub` for hub drafts, else with
/// `recursive`.
pub fn first(problem: &Problem) -> f64 {
    let (target, draft) = (problem.target, problem.proposal.distribution(0));
    let both = |(token, p): (u32, f64)| p.min(draft.probability(token));
    if problem.proposal.scheme() != Drafting::Hub || draft.support_size() < 2 {
        return target.support().map(both).sum();
    }
    let hub = draft.argmax();
    let of_hub = draft.probability(hub);
    let others = || draft.support().filter(|(token, _)| *token != hub);
    let rest: f64 = others().map(|(_, q)| q).sum();
    // Pairs that begin with another token x, with mass q(x), accept x with p/q. Pairs that begin
    // with the hub, with mass q(x)·q(hub)/rest, try x first; if x is rejected, the hub gets its
    // share of the remaining mass.
    let (mut accepted, mut rejected) = (0.0, 0.0);
    for (token, q) in others() {
        let p = target.probability(token);
        let after = q * of_hub / rest;
        accepted += p.min(q);
        rejected += after - (p - q).clamp(0.0, after);
    }
    let left = |(token, p)| match token == hub {
        true => p,
        false => f64::max(p - draft.probability(token) / rest, 0.0),
    };
    let left: f64 = target.support().map(left).sum();
    accepted + if left > 0.0 { rejected * target.probability(hub) / left } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use polydraft::conformance::cases;
    use polydraft::couple;
    use polydraft_runtime::seeded;

    use super::*;

    /// The results equal enumeration, special cases included.
    #[test]
    fn the_first_draft_is_the_one_that_is_emitted() {
        for (scheme, rule) in [
            (Drafting::Iid, "recursive"),
            (Drafting::WithoutReplacement, "recursive"),
            (Drafting::Hub, "hub"),
        ] {
            for vocabulary in 2..=4 {
                let all = cases(vocabulary, scheme, 2, 100, &mut seeded(5)).expect("cases");
                for case in all {
                    let problem = case.problem().expect("a problem");
                    let mut rule =
                        polydraft_reference::rule(rule).expect("a name").build().expect("one");
                    let mut coupling = couple(rule.as_mut(), problem).expect("coupled");
                    let mut expected = 0.0;
                    for (probability, drafts) in problem.proposal.tuples() {
                        // If both drafts are equal, the first one is accepted.
                        let given = coupling.distribution(&drafts).expect("a distribution");
                        expected += probability * given.probabilities[drafts[0] as usize];
                    }
                    let got = first(&problem);
                    assert!((got - expected).abs() < 1e-9, "{scheme}: {got} {expected}\n{case:?}");
                }
            }
        }
    }
}
