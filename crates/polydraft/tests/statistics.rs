//! Tests of rules on vocabularies too large to enumerate: emitted tokens are counted, and
//! distributions and acceptances are compared.

use polydraft::conformance::statistics::GTest;
use polydraft::coupling::Problem;
use polydraft::coupling::priority::{Form, Settings};
use polydraft::{Distribution, Drafting, Draws, Proposal, RuleKind, Token, acceptance, couple};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Each rule with each scheme that it supports.
fn combinations() -> Vec<(RuleKind, Drafting)> {
    let mut rules: Vec<RuleKind> =
        RuleKind::NAMES.iter().map(|name| name.parse().unwrap()).collect();
    rules.push(RuleKind::Priority(Settings {
        form: Form::Pooled,
        individual_above: 0.02,
        ..Settings::default()
    }));
    let distributions = vec![Distribution::new(vec![0.5, 0.5]).unwrap(); 2];
    let mut combinations = Vec::new();
    for rule in rules {
        for scheme in Drafting::ALL {
            let distributions =
                if scheme == Drafting::Distinct { &distributions[..] } else { &distributions[..1] };
            let problem = Problem::new(
                &distributions[0],
                Proposal::new(Draws { scheme, count: 2 }, distributions).unwrap(),
            )
            .unwrap();
            if couple(rule.build().unwrap().as_mut(), problem).is_ok() {
                combinations.push((rule.clone(), scheme));
            }
        }
    }
    assert_eq!(combinations.len(), 1 + 1 + 1 + 3 + 6 + 2 + 5);
    combinations
}

/// True if counts of tokens agree with a distribution; a correct one fails once in a million.
fn agree(counts: &[u64], probs: &[f64]) -> bool {
    GTest::new(probs.iter().copied().zip(counts.iter().copied())).p_value() > 1e-6
}

/// A random distribution whose logits have the standard deviation `spread`; some tokens have
/// probability 0.
fn probs(vocabulary: usize, spread: f64, rng: &mut ChaCha8Rng) -> Distribution {
    let mut normal =
        || (0..12).map(|_| f64::from(rng.next_u32()) / f64::from(u32::MAX)).sum::<f64>() - 6.0;
    let weights: Vec<f64> = (0..vocabulary)
        .map(|t| if t % 11 == 4 { 0.0 } else { (spread * normal()).exp() })
        .collect();
    let sum: f64 = weights.iter().sum();
    Distribution::new(weights.into_iter().map(|w| w / sum).collect()).unwrap()
}

#[test]
fn emitted_tokens_follow_target_and_stated_distribution() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    let vocabulary = 40;
    let target = probs(vocabulary, 1.5, &mut rng);
    let distributions: Vec<_> = (0..3).map(|_| probs(vocabulary, 1.5, &mut rng)).collect();
    for (rule, scheme) in combinations() {
        let distributions =
            if scheme == Drafting::Distinct { &distributions[..] } else { &distributions[..1] };
        let problem = Problem::new(
            &target,
            Proposal::new(Draws { scheme, count: 3 }, distributions).unwrap(),
        )
        .unwrap();
        let mut built = rule.build().unwrap();
        let mut coupling = couple(built.as_mut(), problem).unwrap();
        let name = format!("{} {scheme}", rule.name());
        let runs = 60_000;

        // Over all drafts: the target's distribution and the stated acceptance.
        let (mut drafts, mut counts, mut accepted) = (Vec::new(), vec![0; vocabulary], 0);
        for _ in 0..runs {
            problem.proposal.draw(&mut rng, &mut drafts);
            let emission = coupling.emit(&drafts, &mut rng).unwrap();
            counts[emission.token as usize] += 1;
            accepted += u64::from(emission.accepted.is_some());
        }
        assert!(agree(&counts, &target.to_vec()), "{name}: {counts:?}");
        let stated = coupling.acceptance(&mut rng);
        let error = (0.25 / f64::from(runs)).sqrt() + stated.standard_error.unwrap_or(0.0);
        assert!(
            (accepted as f64 / f64::from(runs) - stated.probability).abs() < 5.0 * error,
            "{name}: {stated:?}"
        );

        // Given drafts: the stated distribution.
        for _ in 0..4 {
            problem.proposal.draw(&mut rng, &mut drafts);
            let probs = coupling.distribution(&drafts).unwrap();
            let mut counts = vec![0; vocabulary];
            for _ in 0..20_000 {
                counts[coupling.emit(&drafts, &mut rng).unwrap().token as usize] += 1;
            }
            assert!(agree(&counts, &probs.probabilities), "{name} given {drafts:?}");
        }
    }
}

/// The stated distributions, averaged over all tuples, are the target's: for vocabularies where
/// many tokens share the cells of the pooled form, and for nearly equal distributions, where no
/// token has slack.
#[test]
fn stated_distributions_average_to_the_target() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    for (vocabulary, count, agreement) in [(40, 2, 0.0), (40, 2, 0.9), (12, 3, 0.5), (70, 2, 0.999)]
    {
        let target = probs(vocabulary, 1.0, &mut rng);
        let mut draft = || {
            let other = probs(vocabulary, 1.0, &mut rng);
            let mixed = target.to_vec().into_iter().zip(other.to_vec());
            Distribution::new(mixed.map(|(p, q)| agreement * p + (1.0 - agreement) * q).collect())
                .unwrap()
        };
        let distributions: Vec<_> = (0..count).map(|_| draft()).collect();
        for (rule, scheme) in combinations() {
            let distributions =
                if scheme == Drafting::Distinct { &distributions[..] } else { &distributions[..1] };
            let problem = Problem::new(
                &target,
                Proposal::new(Draws { scheme, count }, distributions).unwrap(),
            )
            .unwrap();
            let mut built = rule.build().unwrap();
            let Ok(mut coupling) = couple(built.as_mut(), problem) else { continue };
            let mut emitted = vec![0.0; vocabulary];
            for (probability, drafts) in problem.proposal.tuples() {
                for (emitted, p) in
                    emitted.iter_mut().zip(coupling.distribution(&drafts).unwrap().probabilities)
                {
                    *emitted += probability * p;
                }
            }
            for (got, expected) in emitted.iter().zip(target.to_vec()) {
                assert!(
                    (got - expected).abs() < 1e-12,
                    "{} {scheme}: {got} {expected}",
                    rule.name()
                );
            }
        }
    }
}

/// The test distinguishes a wrong distribution from a right one.
#[test]
fn g_test_rejects_counts_of_another_distribution() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let (one, other) = (probs(40, 1.0, &mut rng), probs(40, 1.0, &mut rng));
    let mut counts = vec![0; 40];
    for _ in 0..60_000 {
        counts[one.sample(&mut rng) as usize] += 1;
    }
    assert!(agree(&counts, &one.to_vec()));
    assert!(!agree(&counts, &other.to_vec()));
    // A shift of 1 % of the mass between two likely tokens.
    let mut shifted = one.to_vec();
    let (most, next) = (one.most_likely(2)[0] as usize, one.most_likely(2)[1] as usize);
    shifted[most] -= 0.01;
    shifted[next] += 0.01;
    assert!(!agree(&counts, &shifted));
}

#[test]
fn same_seed_gives_same_tokens() {
    let run = |seed| -> Vec<Token> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (target, draft) = (probs(5000, 2.0, &mut rng), probs(5000, 2.0, &mut rng));
        let mut rule = "priority".parse::<RuleKind>().unwrap().build().unwrap();
        let mut drafts = Vec::new();
        let problem = Problem::new(&target, Proposal::iid(&draft, 4).unwrap()).unwrap();
        let mut coupling = couple(rule.as_mut(), problem).unwrap();
        let mut emit = || {
            problem.proposal.draw(&mut rng, &mut drafts);
            coupling.emit(&drafts, &mut rng).unwrap().token
        };
        (0..100).map(|_| emit()).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Stated distributions sum to 1; no acceptance exceeds the optimum; for i.i.d. drafts
    /// `priority` reaches it, SpecTr's bounds hold, and more drafts never hurt.
    #[test]
    fn acceptances_are_bounded_by_the_optimum(
        vocabulary in 1_usize..300,
        count in 1_usize..7,
        spread in 0.0_f64..3.0,
        seed in any::<u64>(),
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let target = probs(vocabulary, spread, &mut rng);
        let distributions: Vec<_> =
            (0..count).map(|_| probs(vocabulary, spread, &mut rng)).collect();
        for (rule, scheme) in combinations() {
            let distributions = match scheme {
                Drafting::Distinct => &distributions[..],
                _ => &distributions[..1],
            };
            let proposal = Proposal::new(Draws { scheme, count }, distributions).unwrap();
            let problem = Problem::new(&target, proposal).unwrap();
            let mut built = rule.build().unwrap();
            let Ok(mut coupling) = couple(built.as_mut(), problem) else {
                prop_assert!(rule.name() == "single" && count > 1);
                continue;
            };
            let mut drafts = Vec::new();
            problem.proposal.draw(&mut rng, &mut drafts);
            let probs = coupling.distribution(&drafts).unwrap();
            let sum = probs.probabilities.iter().sum::<f64>();
            prop_assert!((sum - 1.0).abs() < 1e-11, "{} {}", rule.name(), scheme);
            prop_assert!(probs.probabilities.iter().all(|p| *p >= 0.0));
            let got = coupling.acceptance(&mut rng);
            if let Ok(optimal) = acceptance::optimal(&problem) {
                let max = optimal + 1e-11 + 6.0 * got.standard_error.unwrap_or(0.0);
                prop_assert!(got.probability <= max, "{} {}", rule.name(), scheme);
                if rule.name() == "priority" {
                    prop_assert!(optimal - got.probability < 1e-7);
                }
            }
        }
        let optimal = |count| {
            let proposal = Proposal::iid(&distributions[0], count).unwrap();
            acceptance::optimal(&Problem::new(&target, proposal).unwrap()).unwrap()
        };
        let best = optimal(count);
        let (lower, upper) = acceptance::bounds(&target, &distributions[0], count);
        prop_assert!(lower <= best + 1e-12 && best <= upper + 1e-12);
        prop_assert!(best <= optimal(count + 1) + 1e-12);
    }
}
