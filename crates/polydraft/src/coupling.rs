//! Token-level rules: from the drafts at a node to one emitted token with exactly the target's law.
//!
//! A [`Rule`] describes an algorithm and its settings. [`Rule::build`] makes it work once; then
//! [`couple`] prepares it for one node, and the [`Coupling`] emits.

pub mod hub;
pub mod importance;
pub mod k_seq;
pub mod naive;
pub mod priority;
pub mod recursive;
pub mod single;

use crate::chance::Chance;
use crate::drafting::{Drafting, Proposal};
use crate::{Distribution, Error, Result, Token};

/// The target's law at a node and the law of the drafts drawn there.
#[derive(Debug, Clone, Copy)]
pub struct Problem<'a> {
    /// The law that the emitted token must have.
    pub target: &'a Distribution,
    /// The law of the tuple of drafts.
    pub proposal: Proposal<'a>,
}

impl<'a> Problem<'a> {
    /// Joins the two laws.
    ///
    /// # Errors
    /// Different vocabularies.
    pub fn new(target: &'a Distribution, proposal: Proposal<'a>) -> Result<Self> {
        if target.vocabulary() != proposal.vocabulary() {
            let expected = format!("{} as the target has", target.vocabulary());
            return Err(Error::Length { operation: "draft", expected, got: proposal.vocabulary() });
        }
        Ok(Self { target, proposal })
    }

    /// Refuses schemes that a rule was not made for.
    ///
    /// # Errors
    /// The scheme is not among `schemes`.
    pub fn require(&self, operation: &'static str, schemes: &[Drafting]) -> Result<()> {
        if schemes.contains(&self.proposal.scheme()) {
            return Ok(());
        }
        let names: Vec<_> = schemes.iter().map(|scheme| scheme.name()).collect();
        let expected = format!("drafting {}", names.join(" or "));
        Err(Error::Unsupported { operation, expected, got: self.proposal.scheme().to_string() })
    }
}

/// What a rule emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emission {
    /// The emitted token.
    pub token: Token,
    /// Position of the draft that was accepted, if one was. A token that was not accepted may still equal a draft
    /// under `k-seq` and `importance`, whose last draw does not look at the drafts; a tree walk may follow it.
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
    /// The standard error of the estimate; none for an exact value.
    pub standard_error: Option<f64>,
}

/// A token-level rule at work. It owns its workspace, so that preparing it for node after node allocates nothing
/// once it has seen the largest; a [`Coupling`] is the safe way to use it.
pub trait TokenRule: Send {
    /// The name that users type.
    fn name(&self) -> &'static str;

    /// Prepares for a node. The other methods are called with the same `problem` and with drafts that
    /// [`Coupling`] has checked.
    ///
    /// # Errors
    /// A drafting scheme or number of drafts that the rule does not support.
    fn prepare(&mut self, problem: &Problem) -> Result<()>;

    /// Why another rule does this one's work at the node it was prepared for, if so. The law is exact all the same.
    fn fallback(&self) -> Option<&Fallback> {
        None
    }

    /// The exact probability that a draft is accepted, if there is a formula.
    fn acceptance(&mut self, problem: &Problem) -> Option<f64>;

    /// Decides.
    fn emit(&mut self, problem: &Problem, drafts: &[Token], chance: &mut dyn Chance) -> Emission;

    /// The exact law of [`TokenRule::emit`] given the drafts.
    fn law(&mut self, problem: &Problem, drafts: &[Token]) -> Law;
}

/// A rule could not do a node, and another took over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The rule that took over.
    pub rule: &'static str,
    /// What the first one could not do.
    pub reason: String,
    /// For how many nodes this has happened so far, this one included.
    pub count: u64,
}

/// The law of the emitted token given the drafts.
#[derive(Debug, Clone, PartialEq)]
pub struct Law {
    /// The probability of every token, shape `[vocabulary]`.
    pub probabilities: Vec<f64>,
    /// The probability that a draft is accepted.
    pub accepted: f64,
}

impl Law {
    /// The law of a rule that accepts token t as a draft with probability `accepted[t]` (pairs, repeats add up) and
    /// otherwise emits from `rejected`, shape `[vocabulary]`, which is only asked for if that can happen.
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
    rule: &'a mut dyn TokenRule,
    problem: Problem<'a>,
}

/// Prepares a rule for a node.
///
/// # Errors
/// The rule does not support the node's drafting scheme or number of drafts.
pub fn couple<'a>(rule: &'a mut dyn TokenRule, problem: Problem<'a>) -> Result<Coupling<'a>> {
    rule.prepare(&problem)?;
    Ok(Coupling { rule, problem })
}

impl Coupling<'_> {
    /// Tuples enumerated at most for an acceptance that has no formula.
    const ENUMERATED: f64 = 5_000.0;
    /// Tuples drawn for an acceptance that can be neither computed nor enumerated: between these, as many as this work
    /// (tokens looked at) allows.
    const DRAWN: (usize, usize) = (200, 4_000);
    const WORK: usize = 400_000_000;

    /// The probability that a draft is accepted: by formula, else by enumeration of all tuples if they are few, else
    /// estimated from random tuples. Only that last case uses `chance`.
    pub fn acceptance(&mut self, chance: &mut dyn Chance) -> Acceptance {
        let exact = |probability| Acceptance { probability, standard_error: None };
        if let Some(probability) = self.rule.acceptance(&self.problem) {
            return exact(probability);
        }
        let proposal = self.problem.proposal;
        if proposal.tuple_bound() <= Self::ENUMERATED {
            let tuples = proposal.tuples();
            return exact(
                tuples.iter().map(|(p, drafts)| p * self.rule.law(&self.problem, drafts).accepted).sum(),
            );
        }
        let (mut sum, mut squares, mut drafts) = (0.0, 0.0, Vec::new());
        let work_each = proposal.count().saturating_mul(self.problem.target.stored().len());
        let runs = (Self::WORK / work_each).clamp(Self::DRAWN.0, Self::DRAWN.1);
        for _ in 0..runs {
            proposal.draw(chance, &mut drafts);
            let accepted = self.rule.law(&self.problem, &drafts).accepted;
            sum += accepted;
            squares += accepted * accepted;
        }
        let runs = runs as f64;
        let probability = sum / runs;
        let variance = (squares / runs - probability * probability).max(0.0);
        Acceptance { probability, standard_error: Some((variance / (runs - 1.0)).sqrt()) }
    }

    /// Decides what to emit for these drafts, which must have been drawn by the problem's scheme.
    ///
    /// # Errors
    /// The wrong number of drafts, or a token outside the vocabulary.
    pub fn emit(&mut self, drafts: &[Token], chance: &mut dyn Chance) -> Result<Emission> {
        self.check(drafts)?;
        Ok(self.rule.emit(&self.problem, drafts, chance))
    }

    /// Why another rule does this one's work here, if so.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.rule.fallback()
    }

    /// The exact law of the emitted token given these drafts.
    ///
    /// # Errors
    /// As for [`Coupling::emit`].
    pub fn law(&mut self, drafts: &[Token]) -> Result<Law> {
        self.check(drafts)?;
        Ok(self.rule.law(&self.problem, drafts))
    }

    fn check(&self, drafts: &[Token]) -> Result<()> {
        let proposal = &self.problem.proposal;
        let expected = match proposal.scheme() {
            Drafting::Iid | Drafting::Distinct => proposal.count(),
            _ => proposal.count().min(proposal.law(0).support_size()),
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

/// min(1, a/b), and 0 for a = 0: what the target never emits is never accepted.
pub(crate) fn capped_ratio(a: f64, b: f64) -> f64 {
    if a <= 0.0 {
        0.0
    } else if a >= b {
        1.0
    } else {
        a / b
    }
}

/// Makes the enum `Rule` of a crate's token-level rules: names, settings and how to build them.
#[doc(hidden)]
#[macro_export]
macro_rules! rule_registry {
    ($($(#[$doc:meta])* $variant:ident($settings:ty) = $name:literal,)*) => {
        /// A token-level rule and its settings. To add one, write its file and add its line here.
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "rule")]
        pub enum Rule {
            $($(#[$doc])* #[serde(rename = $name)] $variant($settings),)*
        }

        impl Rule {
            /// The names of all rules.
            pub const NAMES: &[&str] = &[$($name),*];

            /// The name that users type.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }

            /// Makes the rule ready to work.
            ///
            /// # Errors
            /// A setting out of range.
            pub fn build(&self) -> $crate::Result<Box<dyn $crate::coupling::TokenRule>> {
                match self { $(Self::$variant(settings) => settings.build(),)* }
            }
        }

        impl std::str::FromStr for Rule {
            type Err = $crate::Error;

            /// The rule of that name with its default settings.
            fn from_str(name: &str) -> $crate::Result<Self> {
                match name {
                    $($name => Ok(Self::$variant(Default::default())),)*
                    _ => Err($crate::Error::Name {
                        kind: "rule",
                        expected: Self::NAMES.join(", "),
                        got: name.to_owned(),
                    }),
                }
            }
        }
    };
}

rule_registry! {
    /// Single-draft speculative sampling: one draft.
    Single(single::Settings) = "single",
    /// Priority coupling, the optimum for i.i.d. drafts.
    Priority(priority::Settings) = "priority",
    /// SpecTr's sequential selection: i.i.d. drafts.
    KSeq(k_seq::Settings) = "k-seq",
    /// Recursive rejection (SpecInfer; RSD): i.i.d., without replacement or distinct drafts.
    Recursive(recursive::Settings) = "recursive",
    /// Draw from the target and see whether it was drafted: any drafts.
    Naive(naive::Settings) = "naive",
    /// SpecHub and its extension to n drafts: hub or greedy drafts.
    Hub(hub::Settings) = "hub",
    /// Importance-weighted selection by a truncated linear program: i.i.d. or distinct drafts.
    Importance(importance::Settings) = "importance",
}
