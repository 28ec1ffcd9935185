//! Token-level rules: given the drafts at a node, emit one token with exactly the target's
//! distribution.
//!
//! A [`RuleKind`] describes an algorithm and its settings. [`RuleKind::build`] creates a [`Rule`]
//! once; [`couple`] then prepares it for one node, and the [`Coupling`] emits.
//!
//! To add a rule: one file here, one line in [`RuleKind`].

pub mod canonical;
pub mod hub;
pub mod k_seq;
pub mod naive;
pub mod priority;
pub mod race;
pub mod recursive;
pub mod registry;
pub mod single;

use crate::drafting::{Drafting, Draws, Proposal};
use crate::random::RandomSource;
use crate::registry::NoSettings;
use crate::{Distribution, Error, Result, Token};

/// The target's distribution at a node and the distribution of the drafts drawn there.
///
/// ```
/// use polydraft::{Distribution, Problem, Proposal, acceptance};
///
/// let target = Distribution::new(vec![0.5, 0.3, 0.2])?;
/// let draft = Distribution::new(vec![0.2, 0.3, 0.5])?;
/// let problem = Problem::new(&target, Proposal::iid(&draft, 2)?)?;
/// // The acceptance of the best rule for two drafts.
/// assert!((acceptance::optimal(&problem)? - 0.86).abs() < 1e-12);
/// assert!(Problem::new(&Distribution::one_hot(4, 0)?, Proposal::iid(&draft, 2)?).is_err());
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Problem<'a> {
    /// The distribution that the emitted token must have.
    pub target: &'a Distribution,
    /// The distribution of the tuple of drafts.
    pub proposal: Proposal<'a>,
}

impl<'a> Problem<'a> {
    /// Combines the two distributions.
    ///
    /// # Errors
    /// Vocabularies of different sizes.
    pub fn new(target: &'a Distribution, proposal: Proposal<'a>) -> Result<Self> {
        if target.vocabulary() != proposal.vocabulary() {
            let expected = format!("{} as the target has", target.vocabulary());
            return Err(Error::Length { operation: "draft", expected, got: proposal.vocabulary() });
        }
        Ok(Self { target, proposal })
    }
}

/// Decision of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emission {
    /// The emitted token.
    pub token: Token,
    /// Index of the accepted draft, if one was accepted. A token that was not accepted may still
    /// equal a draft under `k-seq` and `importance`, whose last draw does not depend on the drafts,
    /// and occasionally under `priority` in its pooled form; a tree walk may follow it.
    pub accepted: Option<usize>,
}

impl Emission {
    fn accepted(drafts: &[Token], index: usize) -> Self {
        Self { token: drafts[index], accepted: Some(index) }
    }

    fn rejected(token: Token) -> Self {
        Self { token, accepted: None }
    }
}

/// The probability that a draft is accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    /// The probability, or an unbiased estimate of it.
    pub probability: f64,
    /// The standard error of the estimate; `None` for an exact value.
    pub standard_error: Option<f64>,
}

/// A token-level rule with its scratch buffers, so that preparing it for node after node allocates
/// nothing once it has seen the largest. Use it through a [`Coupling`], which checks the inputs.
pub trait Rule: Send {
    /// The name that users type.
    fn name(&self) -> &'static str;

    /// Checks that the rule is exact for drafts drawn like this, in constant time.
    ///
    /// # Errors
    /// An unsupported drafting scheme or number of drafts.
    fn supports(&self, draws: Draws) -> Result<()>;

    /// True if the emitted distribution is always the target's. False only for published algorithms
    /// that are inexact and included for measurement.
    fn is_exact(&self) -> bool {
        true
    }

    /// Prepares for a node whose draws the rule supports. The other methods are called with the
    /// same `problem` and with drafts checked by [`Coupling`].
    ///
    /// # Errors
    /// A node that is too large for the rule's settings.
    fn prepare(&mut self, problem: &Problem) -> Result<()>;

    /// The rule that decides at the prepared node in place of this one, which failed there; `None`
    /// otherwise. The distribution stays exact.
    fn fallback(&self) -> Option<&Fallback> {
        None
    }

    /// The exact probability that a draft is accepted; `None` without a formula.
    fn acceptance(&mut self, problem: &Problem) -> Option<f64>;

    /// Decides which token to emit.
    fn emit(&mut self, problem: &Problem, drafts: &[Token], rng: &mut dyn RandomSource)
    -> Emission;

    /// The exact distribution of [`Rule::emit`] given the drafts.
    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution;
}

/// The trait of every rule's settings.
pub trait RuleSettings {
    /// Builds the rule.
    ///
    /// # Errors
    /// A setting out of range.
    fn build(&self) -> Result<Box<dyn Rule>>;
}

/// Implements listing, parsing, display and building for a registry of rules.
#[doc(hidden)]
#[macro_export]
macro_rules! rule_entry {
    ($kind:ident) => {
        impl $kind {
            /// All rules with their default settings.
            pub fn all() -> Vec<Self> {
                Self::NAMES.iter().filter_map(|name| Self::named(name)).collect()
            }

            /// Builds the rule.
            ///
            /// # Errors
            /// A setting out of range.
            pub fn build(&self) -> $crate::Result<Box<dyn $crate::Rule>> {
                self.settings().build()
            }
        }

        impl $crate::coupling::RuleSettings for $kind {
            fn build(&self) -> $crate::Result<Box<dyn $crate::Rule>> {
                self.settings().build()
            }
        }

        impl std::fmt::Display for $kind {
            /// Writes the name that users type, without settings.
            fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $kind {
            type Err = $crate::Error;

            /// Returns the rule of that name with its default settings.
            fn from_str(name: &str) -> $crate::Result<Self> {
                Self::named(name).ok_or_else(|| $crate::Error::Name {
                    kind: "rule",
                    expected: Self::NAMES.join(", "),
                    got: name.to_owned(),
                })
            }
        }
    };
}

/// A node at which a rule failed and another one decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The rule that decides.
    pub rule: &'static str,
    /// Why the first rule failed.
    pub reason: String,
    /// Number of such nodes so far, this one included.
    pub count: u64,
}

/// The distribution of the emitted token given the drafts.
#[derive(Debug, Clone, PartialEq)]
pub struct EmittedDistribution {
    /// The probability of every token, shape `[vocabulary]`.
    pub probabilities: Vec<f64>,
    /// The probability that a draft is accepted.
    pub accepted: f64,
}

impl EmittedDistribution {
    /// The distribution of a rule that accepts token t as a draft with probability `accepted[t]`
    /// (pairs; repeated tokens add up) and otherwise emits from `rejected`, shape `[vocabulary]`,
    /// which is only called if `rejection` > 0.
    fn new(
        vocabulary: usize,
        accepted: impl IntoIterator<Item = (Token, f64)>,
        rejection: f64,
        rejected: impl FnOnce() -> Vec<f64>,
    ) -> Self {
        let mut probabilities = if rejection > 0.0 { rejected() } else { vec![0.0; vocabulary] };
        probabilities.iter_mut().for_each(|p| *p *= rejection.max(0.0));
        let mut sum = 0.0;
        for (token, probability) in accepted {
            probabilities[token as usize] += probability;
            sum += probability;
        }
        Self { probabilities, accepted: sum }
    }
}

/// A rule prepared for one node.
pub struct Coupling<'a> {
    rule: &'a mut dyn Rule,
    problem: Problem<'a>,
}

/// Prepares a rule for a node.
///
/// # Errors
/// The rule does not support the node's drafting scheme or number of drafts.
pub fn couple<'a>(rule: &'a mut dyn Rule, problem: Problem<'a>) -> Result<Coupling<'a>> {
    rule.supports(problem.proposal.draws())?;
    rule.prepare(&problem)?;
    Ok(Coupling { rule, problem })
}

impl Coupling<'_> {
    /// Maximum number of tuples enumerated for an acceptance without a formula.
    const ENUMERATED: f64 = 5_000.0;
    /// Minimum and maximum number of tuples sampled for an acceptance that can be neither computed
    /// nor enumerated; in between, as many as fit into `WORK` token look-ups.
    const DRAWN: (usize, usize) = (200, 4_000);
    const WORK: usize = 400_000_000;

    /// The probability that a draft is accepted: by formula, else by enumeration of all tuples if
    /// there are few, else estimated from random tuples. Only the last case uses `rng`.
    pub fn acceptance(&mut self, rng: &mut dyn RandomSource) -> Acceptance {
        let exact = |probability| Acceptance { probability, standard_error: None };
        if let Some(probability) = self.rule.acceptance(&self.problem) {
            return exact(probability);
        }
        let proposal = self.problem.proposal;
        if proposal.tuple_bound() <= Self::ENUMERATED {
            let tuples = proposal.tuples();
            return exact(
                tuples
                    .iter()
                    .map(|(p, drafts)| p * self.rule.distribution(&self.problem, drafts).accepted)
                    .sum(),
            );
        }
        let (mut sum, mut squares, mut drafts) = (0.0, 0.0, Vec::new());
        let work_each = proposal.count().saturating_mul(self.problem.target.stored().len());
        let runs = (Self::WORK / work_each).clamp(Self::DRAWN.0, Self::DRAWN.1);
        for _ in 0..runs {
            proposal.draw(rng, &mut drafts);
            let accepted = self.rule.distribution(&self.problem, &drafts).accepted;
            sum += accepted;
            squares += accepted * accepted;
        }
        let runs = runs as f64;
        let probability = sum / runs;
        let variance = (squares / runs - probability * probability).max(0.0);
        Acceptance { probability, standard_error: Some((variance / (runs - 1.0)).sqrt()) }
    }

    /// Decides which token to emit for these drafts, which must have been drawn by the problem's
    /// scheme.
    ///
    /// # Errors
    /// The wrong number of drafts, or a token outside the vocabulary.
    pub fn emit(&mut self, drafts: &[Token], rng: &mut dyn RandomSource) -> Result<Emission> {
        self.check(drafts)?;
        Ok(self.rule.emit(&self.problem, drafts, rng))
    }

    /// The rule that decides at this node in place of the prepared one, which failed; `None`
    /// otherwise.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.rule.fallback()
    }

    /// The exact distribution of the emitted token given these drafts.
    ///
    /// # Errors
    /// As for [`Coupling::emit`].
    pub fn distribution(&mut self, drafts: &[Token]) -> Result<EmittedDistribution> {
        self.check(drafts)?;
        Ok(self.rule.distribution(&self.problem, drafts))
    }

    fn check(&self, drafts: &[Token]) -> Result<()> {
        let proposal = &self.problem.proposal;
        let expected = match proposal.scheme() {
            Drafting::Iid | Drafting::Distinct => proposal.count(),
            _ => proposal.count().min(proposal.distribution(0).support_size()),
        };
        if drafts.len() != expected {
            let expected = expected.to_string();
            return Err(Error::Length { operation: "drafts", expected, got: drafts.len() });
        }
        let vocabulary = self.problem.target.vocabulary();
        match drafts.iter().find(|token| **token as usize >= vocabulary) {
            Some(&got) => Err(Error::Token { operation: "drafts", vocabulary, got }),
            None => Ok(()),
        }
    }
}

/// min(1, a/b), and 0 for a = 0: a token that the target never emits is never accepted.
pub(crate) fn capped_ratio(a: f64, b: f64) -> f64 {
    if a <= 0.0 {
        0.0
    } else if a >= b {
        1.0
    } else {
        a / b
    }
}

impl<A: Rule + Default + 'static> RuleSettings for NoSettings<A> {
    fn build(&self) -> Result<Box<dyn Rule>> {
        Ok(Box::new(A::default()))
    }
}

crate::registry! {
    /// A token-level rule and its settings. To add one, write its file and add its line here.
    ///
    /// ```
    /// use polydraft::{Drafting, Draws, RuleKind};
    ///
    /// let rule = "recursive".parse::<RuleKind>()?.build()?;
    /// assert!(rule.supports(Draws { scheme: Drafting::WithoutReplacement, count: 3 }).is_ok());
    /// assert!("single".parse::<RuleKind>()?.build()?.supports(Draws::iid(2)).is_err());
    /// # Ok::<(), polydraft::Error>(())
    /// ```
        pub enum RuleKind, tag "rule", settings RuleSettings;
    /// Single-draft speculative sampling: one draft.
    Single(NoSettings<canonical::Canonical<single::Single>>) = "single",
    /// Priority coupling, the optimum for i.i.d. drafts.
    Priority(priority::Settings) = "priority",
    /// SpecTr's sequential selection: i.i.d. drafts.
    KSeq(k_seq::Settings) = "k-seq",
    /// Recursive rejection (SpecInfer; RSD): i.i.d., without replacement or distinct drafts.
    Recursive(NoSettings<recursive::Recursive>) = "recursive",
    /// Shares by a race: draws without replacement at the best acceptance; any but distinct drafts.
    Race(NoSettings<race::Race>) = "race",
    /// A draw from the target, accepted if it was drafted: any drafts.
    Naive(NoSettings<naive::Naive>) = "naive",
    /// SpecHub and its extension to n drafts: hub or greedy drafts.
    Hub(NoSettings<hub::Hub>) = "hub",
}
crate::rule_entry!(RuleKind);
