//! The one conformance runner: exact checks by enumeration, here of token-level rules, in [`tree`]
//! of verifiers.
//!
//! Problem: a rule is right when the emitted token has the target's distribution, when what it says
//! about itself (`acceptance`, `probs`) is what it does (`emit`), and when it does not accept more
//! than is possible.
//! Source: ours; the bound on acceptance is that of Hu et al. 2025 over all 2^V sets.
//! Complexity: every tuple of drafts and every decision of the rule is enumerated: for tiny
//! vocabularies only.

pub mod statistics;
pub mod tree;

use crate::coupling::{Problem, Rule, couple};
use crate::drafting::{Drafting, Draws, Proposal};
use crate::random::enumerate;
use crate::{Distribution, Result, Token};

/// How many random cases are enumerated where `daily` are on a contributor's machine: ten times as
/// many where POLYDRAFT_EXHAUSTIVE is set, as it is in continuous integration.
pub fn case_count(daily: usize) -> usize {
    daily * if std::env::var_os("POLYDRAFT_EXHAUSTIVE").is_some() { 10 } else { 1 }
}

/// The deviation allowed everywhere.
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
    /// The distribution of every draft (the first one serves all drafts but for distinct drafts).
    pub drafts: Vec<Distribution>,
    /// How drafts are drawn.
    pub scheme: Drafting,
    /// How many are drawn.
    pub count: usize,
}

/// What a passed check found.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The rule's acceptance.
    pub acceptance: f64,
    /// The probability that the emitted token is one of the drafts, accepted or not.
    pub contained: f64,
    /// The largest acceptance that any rule can have.
    pub optimal: f64,
}

/// One way in which a rule is wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The rule refused a problem.
    #[error("refused: {0}")]
    Refused(#[from] crate::Error),
    /// The emitted distribution is not the target.
    #[error("token {token} is emitted with probability {got}, the target has {expected}")]
    WrongDistribution {
        /// The token.
        token: Token,
        /// Its target probability.
        expected: f64,
        /// Its probability under the rule.
        got: f64,
    },
    /// Two statements of the rule about itself differ.
    #[error("{what} given {drafts:?}: expected {expected}, got {got}")]
    Inconsistent {
        /// Which statements.
        what: &'static str,
        /// The drafts they are about; empty if about all.
        drafts: Vec<Token>,
        /// What one of them says.
        expected: f64,
        /// What the other says.
        got: f64,
    },
    /// More is accepted than any rule can.
    #[error("acceptance {got} is above the optimum {optimal}")]
    AboveOptimum {
        /// The optimum.
        optimal: f64,
        /// The rule's acceptance.
        got: f64,
    },
}

impl Case {
    /// The problem of this case.
    ///
    /// # Errors
    /// A case that is none: no drafts, different vocabularies.
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

    /// Checks a rule on this case, by enumeration.
    ///
    /// # Errors
    /// The first way found in which the rule is wrong.
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
            agree("acceptance of probs and emit", drafts, probs.accepted, done_accepted)?;
            for token in 0..vocabulary {
                agree("probs and emit", drafts, probs.probabilities[token], done[token])?;
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
        let stated = coupling.acceptance(&mut crate::random::Certain);
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

/// Cases for one vocabulary, scheme and number of drafts: zeros, ties, one-hot distributions,
/// disjoint supports, equal distributions, equal ratios of the distributions, tiny and subnormal
/// probabilities, one short of 1, and `random` random ones, from dirichlet-like distributions of
/// several degrees of flatness.
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
        // Next to the others these have equal ratios on part of the vocabulary.
        shaped(&|i| if i < vocabulary / 2 { 2.0 } else { 1.0 } * (1.0 + i as f64))?,
        shaped(&|i| if i == 0 { 1.0 - f64::EPSILON } else { f64::EPSILON / v })?,
        shaped(&|i| [1e-310, 1.0, 3e-310, 0.0][i % 4])?,
        shaped(&|i| [1.0, 5e-324, 0.5, 5e-324][i % 4])?,
        // The smallest that count.
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
