//! Conformance checks by exact enumeration: of token-level rules here, of verifiers in [`tree`].
//!
//! Problem: a rule is correct when the emitted token has the target's distribution, when the values
//! it reports (`acceptance`, `distribution`) agree with what it does (`emit`), and when it does not
//! accept more than is possible.
//! Source: ours; the bound on acceptance is that of Hu et al. 2025 over all 2^V sets.
//! Complexity: every tuple of drafts and every decision of the rule is enumerated: for tiny
//! vocabularies only.

pub mod statistics;
pub mod tree;

use crate::coupling::{Problem, Rule, couple};
use crate::drafting::{Drafting, Draws, Proposal};
use crate::random::enumerate;
use crate::{Distribution, Result, Token};

/// Number of random cases to enumerate: `daily`, or ten times as many if POLYDRAFT_EXHAUSTIVE is
/// set, as in continuous integration.
pub fn case_count(daily: usize) -> usize {
    daily * if std::env::var_os("POLYDRAFT_EXHAUSTIVE").is_some() { 10 } else { 1 }
}

/// Allowed deviation of all compared values.
pub const TOLERANCE: f64 = 1e-12;

/// A target and draft distributions to check a rule on.
///
/// ```
/// use polydraft::conformance::Case;
/// use polydraft::{Distribution, Drafting, RuleKind};
///
/// let case = Case {
///     target: Distribution::new(vec![0.5, 0.3, 0.2])?,
///     drafts: vec![Distribution::new(vec![0.2, 0.3, 0.5])?],
///     scheme: Drafting::Iid,
///     count: 2,
/// };
/// let mut rule = "priority".parse::<RuleKind>()?.build()?;
/// let report = case.check(rule.as_mut()).expect("a rule that is right");
/// assert!((report.acceptance - report.optimal).abs() < 1e-12);
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Case {
    /// The distribution that the emitted token must have.
    pub target: Distribution,
    /// The distribution of each draft; unless the drafts are distinct, the first one applies to all
    /// of them.
    pub drafts: Vec<Distribution>,
    /// The drafting scheme.
    pub scheme: Drafting,
    /// Number of drafts.
    pub count: usize,
}

/// Results of a passed check.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The rule's acceptance.
    pub acceptance: f64,
    /// The probability that the emitted token is one of the drafts, accepted or not.
    pub contained: f64,
    /// The highest acceptance of any rule.
    pub optimal: f64,
}

/// An error of a rule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The rule rejected a problem.
    #[error("rejected: {0}")]
    Rejected(#[from] crate::Error),
    /// The emitted distribution differs from the target.
    #[error("token {token} is emitted with probability {got}, the target has {expected}")]
    WrongDistribution {
        /// The token.
        token: Token,
        /// The token's probability under the target.
        expected: f64,
        /// The token's probability under the rule.
        got: f64,
    },
    /// Two values reported by the rule disagree.
    #[error("{what} given {drafts:?}: expected {expected}, got {got}")]
    Inconsistent {
        /// Names of the two values.
        what: &'static str,
        /// The drafts that the values are for; empty if for all.
        drafts: Vec<Token>,
        /// The first value.
        expected: f64,
        /// The second value.
        got: f64,
    },
    /// The rule accepts more than is possible.
    #[error("acceptance {got} is above the optimum {optimal}")]
    AboveOptimum {
        /// The optimum.
        optimal: f64,
        /// The rule's acceptance.
        got: f64,
    },
}

impl Case {
    /// Converts the case to a problem.
    ///
    /// # Errors
    /// An invalid case: no drafts, or different vocabularies.
    pub fn problem(&self) -> Result<Problem<'_>> {
        let distributions = if self.scheme == Drafting::Distinct { self.count } else { 1 };
        Problem::new(
            &self.target,
            Proposal::new(
                Draws { scheme: self.scheme, count: self.count },
                &self.drafts[..distributions.min(self.drafts.len())],
            )?,
        )
    }

    /// 1 + min over all sets H of [p(H) − Pr(all drafts lie in H)], from the tuples' probabilities.
    fn optimal(&self, tuples: &[(f64, Vec<Token>)]) -> f64 {
        let vocabulary = self.target.vocabulary() as Token;
        let slack = (0..1_u32 << vocabulary).map(|set| {
            let holds = |token: Token| set >> token & 1 == 1;
            let demand: f64 =
                (0..vocabulary).filter(|t| holds(*t)).map(|t| self.target.probability(t)).sum();
            let inside = tuples.iter().filter(|(_, drafts)| drafts.iter().all(|t| holds(*t)));
            demand - inside.map(|(probability, _)| probability).sum::<f64>()
        });
        1.0 + slack.fold(0.0, f64::min)
    }

    /// Checks a rule on this case by enumeration.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self, rule: &mut dyn Rule) -> std::result::Result<Report, Failure> {
        let problem = self.problem()?;
        let tuples = problem.proposal.tuples();
        let vocabulary = self.target.vocabulary();
        let mut coupling = couple(rule, problem)?;
        let mut emitted = vec![0.0; vocabulary];
        let (mut accepted, mut contained) = (0.0, 0.0);
        for (probability, drafts) in &tuples {
            let probs = coupling.distribution(drafts)?;
            let mut done = vec![0.0; vocabulary];
            let mut done_accepted = 0.0;
            let emissions = enumerate(|rng| coupling.emit(drafts, rng));
            for (probability, emission) in emissions {
                let emission = emission?;
                done[emission.token as usize] += probability;
                if let Some(index) = emission.accepted {
                    done_accepted += probability;
                    let draft = drafts.get(index).copied().unwrap_or(Token::MAX);
                    agree(
                        "the accepted draft and the token",
                        drafts,
                        draft.into(),
                        emission.token.into(),
                    )?;
                }
            }
            agree("acceptance of distribution and emit", drafts, probs.accepted, done_accepted)?;
            for token in 0..vocabulary {
                agree("distribution and emit", drafts, probs.probabilities[token], done[token])?;
                emitted[token] += probability * done[token];
                if drafts.contains(&(token as Token)) {
                    contained += probability * done[token];
                }
            }
            accepted += probability * done_accepted;
        }
        for (token, got) in (0..).zip(emitted) {
            let expected = self.target.probability(token);
            if got.is_nan() || (got - expected).abs() > TOLERANCE {
                return Err(Failure::WrongDistribution { token, expected, got });
            }
        }
        let stated = coupling.acceptance(&mut crate::random::FirstOutcome);
        agree("acceptance and the sum over tuples", &[], accepted, stated.probability)?;
        let optimal = self.optimal(&tuples);
        if accepted.max(contained) > optimal + TOLERANCE {
            return Err(Failure::AboveOptimum { optimal, got: accepted.max(contained) });
        }
        Ok(Report { acceptance: accepted, contained, optimal })
    }
}

fn agree(
    what: &'static str,
    drafts: &[Token],
    expected: f64,
    got: f64,
) -> std::result::Result<(), Failure> {
    if (expected - got).abs() <= TOLERANCE {
        return Ok(());
    }
    Err(Failure::Inconsistent { what, drafts: drafts.to_vec(), expected, got })
}

/// Generates cases for one vocabulary size, scheme and number of drafts: zeros, ties, one-hot
/// distributions, disjoint supports, equal distributions, equal ratios of the distributions, tiny
/// and subnormal probabilities, a probability one rounding below 1, and `random` random ones from
/// Dirichlet-like distributions of several degrees of flatness.
///
/// # Errors
/// None for a vocabulary of at least one token.
pub fn cases<R: rand::Rng + ?Sized>(
    vocabulary: usize,
    scheme: Drafting,
    count: usize,
    random: usize,
    rng: &mut R,
) -> Result<Vec<Case>> {
    let normal = |values: Vec<f64>| {
        let sum: f64 = values.iter().sum();
        Distribution::new(values.into_iter().map(|v| v / sum).collect())
    };
    let shaped = |weight: &dyn Fn(usize) -> f64| normal((0..vocabulary).map(weight).collect());
    let v = vocabulary as f64;
    let fixed = [
        shaped(&|_| 1.0)?,
        shaped(&|i| if i == 0 { 1.0 } else { 0.0 })?,
        shaped(&|i| if i + 1 == vocabulary { 1.0 } else { 0.0 })?,
        shaped(&|i| 1.0 + i as f64)?,
        shaped(&|i| v - i as f64)?,
        shaped(&|i| if i < vocabulary.div_ceil(2) { 1.0 } else { 0.0 })?,
        shaped(&|i| if i >= vocabulary / 2 { 1.0 } else { 0.0 })?,
        shaped(&|i| if i == 0 { 1.0 } else { 1e-17 })?,
        shaped(&|i| if i + 1 == vocabulary { 1.0 } else { 1e-300 })?,
        shaped(&|i| [0.5, 0.25, 0.125, 0.125][i % 4])?,
        shaped(&|i| 1e-9_f64.powi(i as i32))?,
        // Combined with the others, these have equal ratios on part of the vocabulary.
        shaped(&|i| if i < vocabulary / 2 { 2.0 } else { 1.0 } * (1.0 + i as f64))?,
        shaped(&|i| if i == 0 { 1.0 - f64::EPSILON } else { f64::EPSILON / v })?,
        shaped(&|i| [1e-310, 1.0, 3e-310, 0.0][i % 4])?,
        shaped(&|i| [1.0, 5e-324, 0.5, 5e-324][i % 4])?,
        // The smallest probabilities that are not set to 0.
        shaped(&|i| [1.0, 3e-300, 1.1e-300, 2e-300][i % 4])?,
    ];
    let mut cases = Vec::new();
    let mut push = |target: &Distribution, drafts: Vec<Distribution>| {
        cases.push(Case { target: target.clone(), drafts, scheme, count });
    };
    for (i, target) in fixed.iter().enumerate() {
        for j in 0..fixed.len() {
            push(
                target,
                (0..count).map(|k| fixed[(j + k * (i + 1)) % fixed.len()].clone()).collect(),
            );
        }
    }
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    for index in 0..random {
        let flatness = [0.5, 1.0, 3.0, 10.0][index % 4];
        let mut probs = |near: Option<&Distribution>| {
            let mut values: Vec<f64> =
                (0..vocabulary).map(|_| uniform().powf(flatness) + 1e-12).collect();
            if uniform() < 0.2 {
                values[(uniform() * v) as usize] = 0.0;
            }
            if vocabulary > 1 && uniform() < 0.2 {
                values[0] = values[1];
            }
            if values.iter().all(|value| *value == 0.0) {
                values[0] = 1.0;
            }
            let sum: f64 = values.iter().sum();
            let mix = near.map_or(1.0, |_| uniform());
            let mixed = values.iter().zip(0..).map(|(value, token)| {
                mix * value / sum + (1.0 - mix) * near.map_or(0.0, |near| near.probability(token))
            });
            normal(mixed.collect())
        };
        let target = probs(None)?;
        let near = (index % 3 > 0).then_some(&target);
        let drafts = (0..count).map(|_| probs(near)).collect::<Result<_>>()?;
        push(&target, drafts);
    }
    Ok(cases)
}
