//! Acceptances known in closed form.

use polydraft::coupling::Problem;
use polydraft::drafting::{draws_within_budget, expected_distinct};
use polydraft::{Distribution, Drafting, Draws, Proposal, RuleKind, acceptance, couple};
use rand::SeedableRng;

fn probs(values: &[f64]) -> Distribution {
    Distribution::new(values.to_vec()).unwrap()
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-12, "{got} {expected}");
}

fn optimal(target: &Distribution, draft: &Distribution, scheme: Drafting, count: usize) -> f64 {
    let proposal = Proposal::new(Draws { scheme, count }, std::slice::from_ref(draft)).unwrap();
    acceptance::optimal(&Problem::new(target, proposal).unwrap()).unwrap()
}

/// SpecTr, appendix B.
#[test]
fn optimal_acceptance_of_bernoulli_distributions() {
    for b_p in [0.0, 0.1, 0.37, 0.9, 1.0] {
        for b_q in [0.0, 0.05, 0.5, 0.8, 1.0] {
            for n in 1..=12 {
                let (target, draft) = (probs(&[1.0 - b_p, b_p]), probs(&[1.0 - b_q, b_q]));
                let ones = f64::min(b_p, 1.0 - (1.0 - b_q).powi(n));
                let expected = ones + f64::min(1.0 - b_p, 1.0 - b_q.powi(n));
                close(optimal(&target, &draft, Drafting::Iid, n as usize), expected);
            }
        }
    }
}

/// SpecTr, appendix B: the draft uniform on d tokens, the target on d/r of them.
#[test]
fn optimal_acceptance_of_uniform_distributions() {
    for (d, r) in [(6, 2), (6, 3), (60, 5), (64, 64)] {
        for n in 1..=5 {
            let draft = probs(&vec![1.0 / f64::from(d); d as usize]);
            let covered = d / r;
            let target = probs(
                &(0..d)
                    .map(|t| if t < covered { 1.0 / f64::from(covered) } else { 0.0 })
                    .collect::<Vec<_>>(),
            );
            close(
                optimal(&target, &draft, Drafting::Iid, n),
                1.0 - (1.0 - 1.0 / f64::from(r)).powi(n as i32),
            );
        }
    }
}

/// Khisti et al., theorem 2: two drafts suffice if and only if p(S) ≥ q(S)² for all S.
#[test]
fn two_drafts_suffice_iff_every_set_is_covered() {
    let draft = probs(&[0.5, 0.3, 0.2]);
    // p is the distribution of the highest draft in the order 0, 1, 2, which has p(S) = q(S)² on
    // the prefixes.
    let target = probs(&[0.25, 0.39, 0.36]);
    assert!(acceptance::two_drafts_suffice(&target, &draft));
    close(optimal(&target, &draft, Drafting::Iid, 2), 1.0);
    let beyond = probs(&[0.24, 0.40, 0.36]);
    assert!(!acceptance::two_drafts_suffice(&beyond, &draft));
    close(optimal(&beyond, &draft, Drafting::Iid, 2), 0.99);
}

/// Without replacement, from uniform distributions every set of drafts is equally likely.
#[test]
fn optimal_acceptance_without_replacement() {
    let draft = probs(&[0.25; 4]);
    let target = probs(&[0.7, 0.1, 0.1, 0.1]);
    // H = {1, 2, 3}: p(H) = 0.3, two of four drafts within it with probability 3/6.
    close(optimal(&target, &draft, Drafting::WithoutReplacement, 2), 1.0 + 0.3 - 0.5);
    close(optimal(&target, &draft, Drafting::WithoutReplacement, 4), 1.0);
    close(optimal(&target, &draft, Drafting::WithoutReplacement, 9), 1.0);
    let large = probs(&vec![1.0 / 1000.0; 1000]);
    let half: Vec<f64> = (0..1000).map(|t| if t < 500 { 0.0 } else { 1.0 / 500.0 }).collect();
    // All three of 1000 tokens lie within the 500 that the target lacks.
    let missed = (500.0 * 499.0 * 498.0) / (1000.0 * 999.0 * 998.0);
    close(optimal(&probs(&half), &large, Drafting::WithoutReplacement, 3), 1.0 - missed);
}

/// SpecHub's example (figure 5): q = (0.5, 0.3, 0.2), p = (0.1, 0.6, 0.3).
#[test]
fn optimal_acceptance_of_the_spechub_example() {
    let (target, draft) = (probs(&[0.1, 0.6, 0.3]), probs(&[0.5, 0.3, 0.2]));
    for scheme in [Drafting::Hub, Drafting::Greedy] {
        close(optimal(&target, &draft, scheme, 2), 0.1 + 0.6 + 0.3);
    }
    let proposal =
        Proposal::new(Draws { scheme: Drafting::Hub, count: 2 }, std::slice::from_ref(&draft))
            .unwrap();
    close(proposal.probability(&[1, 0]), 0.3);
    close(proposal.probability(&[0, 1]), 0.5 * 0.3 / 0.5);
    assert_eq!(proposal.probability(&[1, 2]), 0.0);
}

/// K-SEQ on Bernoulli distributions: ρ and α from their defining equation.
#[test]
fn k_seq_acceptance_on_bernoulli_distributions() {
    let (target, draft) = (probs(&[0.2, 0.8]), probs(&[0.6, 0.4]));
    let n = 3;
    let (mut low, mut high) = (1.0_f64, 3.0);
    let beta = |rho: f64| f64::min(0.6, 0.2 / rho) + f64::min(0.4, 0.8 / rho);
    for _ in 0..200 {
        let rho = 0.5 * (low + high);
        if 1.0 - (1.0 - beta(rho)).powi(n) > rho * beta(rho) { low = rho } else { high = rho }
    }
    let mut rule = "k-seq".parse::<RuleKind>().unwrap().build().unwrap();
    let problem = Problem::new(&target, Proposal::iid(&draft, n as usize).unwrap()).unwrap();
    let got = couple(rule.as_mut(), problem)
        .unwrap()
        .acceptance(&mut rand_chacha::ChaCha8Rng::from_seed([0; 32]));
    close(got.probability, 1.0 - (1.0 - beta(high)).powi(n));
    assert_eq!(got.standard_error, None);
}

#[test]
fn expected_distinct_tokens_and_budgets() {
    let draft = probs(&[0.5, 0.25, 0.25]);
    close(expected_distinct(&draft, 1), 1.0);
    close(expected_distinct(&draft, 2), 0.75 + 2.0 * 0.4375);
    assert_eq!(draws_within_budget(&draft, 1.0, 64), 1);
    assert_eq!(draws_within_budget(&draft, 1.625, 64), 2);
    assert_eq!(draws_within_budget(&draft, 3.0, 64), 64);
    assert_eq!(draws_within_budget(&probs(&[1.0, 0.0]), 1.0, 10), 10);
    // A budget below one token still draws one.
    assert_eq!(draws_within_budget(&draft, 0.0, 10), 1);
}

#[test]
fn rules_round_trip_by_name_and_json() {
    for name in RuleKind::NAMES {
        let rule: RuleKind = name.parse().unwrap();
        assert_eq!(rule.name(), *name);
        assert_eq!(rule.build().unwrap().name(), *name);
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(serde_json::from_str::<RuleKind>(&json).unwrap(), rule);
        assert_eq!(
            serde_json::from_str::<RuleKind>(&format!("{{\"rule\": \"{name}\"}}")).unwrap(),
            rule
        );
    }
    assert!("best".parse::<RuleKind>().unwrap_err().to_string().contains("priority"));
    assert!(serde_json::from_str::<RuleKind>(r#"{"rule": "priority", "size": 1}"#).is_err());
}
