//! Drafting schemes: how the tokens at a node are drawn, and how many.
//!
//! Problem: draw the tuple of drafts of a node, and compute the probability of a tuple.
//! Source: i.i.d. (Sun et al. 2023, SpecTr), without replacement (Jeon et al. 2024, RSD), greedy
//! (Hu et al. 2025), hub (Sun et al. 2024, SpecHub), distinct drafts (Khisti et al. 2025, appendix
//! I), top-k (Li et al. 2024, EAGLE-2); the choice of the number by expected distinct tokens: ours.
//! Complexity: O(log V) per token for i.i.d. and distinct drafts; one pass over the support for the
//! most likely tokens; without replacement O(log V) per token while the drawn tokens leave most of
//! the distribution, after that two passes over the support per token, times the number of tokens
//! drawn before.
//! Deviations: (1) hub is extended to n drafts with n − 1 hubs; (2) where fewer tokens have
//! positive probability than a scheme draws, the tuple is shorter.

use crate::random::{RandomSource, enumerate};
use crate::{Distribution, Error, Result, Token};
use serde::{Deserialize, Serialize};

/// Scheme by which the tokens of a node are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drafting {
    /// Independent draws from one distribution.
    Iid,
    /// Sequential draws from one distribution; each drawn token is removed and the rest is
    /// renormalised.
    WithoutReplacement,
    /// The n − 1 most likely tokens, most likely first, then one draw from the rest.
    Greedy,
    /// A draw y and the n − 1 most likely tokens (the hubs). If y is not a hub, the hubs follow in
    /// order; if y is a hub, a draw from the rest follows, then the other hubs. For n = 2 this is
    /// SpecHub.
    Hub,
    /// Independent draws, each from its own distribution.
    Distinct,
    /// The n most likely tokens, most likely first; nothing is random.
    TopK,
}

impl Drafting {
    /// Every scheme.
    pub const ALL: [Self; 6] =
        [Self::Iid, Self::WithoutReplacement, Self::Greedy, Self::Hub, Self::Distinct, Self::TopK];

    /// The schemes that, for a single draft, draw it from its distribution.
    pub const DRAWN: [Self; 5] =
        [Self::Iid, Self::WithoutReplacement, Self::Greedy, Self::Hub, Self::Distinct];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iid => "iid",
            Self::WithoutReplacement => "without-replacement",
            Self::Greedy => "greedy",
            Self::Hub => "hub",
            Self::Distinct => "distinct",
            Self::TopK => "top-k",
        }
    }
}

impl std::fmt::Display for Drafting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Drafting {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name).ok_or_else(|| Error::Name {
            kind: "drafting",
            expected: Self::ALL.map(Self::name).join(", "),
            got: name.to_owned(),
        })
    }
}

/// Scheme and number of the draws at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Draws {
    /// The drafting scheme.
    pub scheme: Drafting,
    /// Number of draws, at least 1. Fewer tokens come out where the support is too small for the
    /// scheme.
    pub count: usize,
}

impl Draws {
    /// `count` independent draws.
    pub const fn iid(count: usize) -> Self {
        Self { scheme: Drafting::Iid, count }
    }

    /// Checks that the scheme is among the `schemes` that `operation` supports.
    ///
    /// # Errors
    /// An unsupported scheme.
    pub fn require(self, operation: &'static str, schemes: &[Drafting]) -> Result<()> {
        if schemes.contains(&self.scheme) {
            return Ok(());
        }
        let names: Vec<_> = schemes.iter().map(|scheme| scheme.name()).collect();
        let expected = format!("drafting {}", names.join(" or "));
        Err(Error::Unsupported { operation, expected, got: self.scheme.to_string() })
    }
}

/// Growth of a tree below a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Every path through the node continues with one draw of its own.
    Continue,
    /// The paths through the node are merged into one, and these draws start below it.
    Fresh(Draws),
}

/// The distribution of the tuple of drafts at a node.
///
/// ```
/// use polydraft::{Distribution, Drafting, Draws, Proposal};
///
/// let probs = Distribution::new(vec![0.5, 0.3, 0.2])?;
/// let draws = Draws { scheme: Drafting::WithoutReplacement, count: 2 };
/// let proposal = Proposal::new(draws, std::slice::from_ref(&probs))?;
/// // First 0, then 1 from the renormalised rest.
/// assert!((proposal.probability(&[0, 1]) - 0.5 * 0.3 / 0.5).abs() < 1e-15);
/// assert_eq!(proposal.tuples().len(), 6);
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Proposal<'a> {
    draws: Draws,
    distributions: &'a [Distribution],
}

impl<'a> Proposal<'a> {
    /// Creates the proposal of `draws`. `distributions` has one entry, or one per draft for
    /// distinct drafts.
    ///
    /// # Errors
    /// No drafts; the wrong number of distributions; distributions over different vocabularies.
    pub fn new(draws: Draws, distributions: &'a [Distribution]) -> Result<Self> {
        let Draws { scheme, count } = draws;
        if count == 0 {
            return Err(Error::Setting {
                setting: "drafts",
                expected: "at least 1",
                got: "0".to_owned(),
            });
        }
        let expected = if scheme == Drafting::Distinct { count } else { 1 };
        if distributions.len() != expected {
            let operation = "distributions of the drafts";
            return Err(Error::Length {
                operation,
                expected: expected.to_string(),
                got: distributions.len(),
            });
        }
        if let Some(probs) =
            distributions.iter().find(|probs| probs.vocabulary() != distributions[0].vocabulary())
        {
            let operation = "vocabulary of the drafts";
            let expected = distributions[0].vocabulary().to_string();
            return Err(Error::Length { operation, expected, got: probs.vocabulary() });
        }
        Ok(Self { draws, distributions })
    }

    /// The proposal of `count` independent draws from `probs`.
    ///
    /// # Errors
    /// No drafts.
    pub fn iid(probs: &'a Distribution, count: usize) -> Result<Self> {
        Self::new(Draws::iid(count), std::slice::from_ref(probs))
    }

    /// Scheme and number of the draws.
    pub fn draws(&self) -> Draws {
        self.draws
    }

    /// The drafting scheme.
    pub fn scheme(&self) -> Drafting {
        self.draws.scheme
    }

    /// The number of drafts; a tuple is shorter where the support is too small.
    pub fn count(&self) -> usize {
        self.draws.count
    }

    /// The distribution that draft `index` comes from, before any tokens are removed.
    pub fn distribution(&self, index: usize) -> &'a Distribution {
        &self.distributions[if self.draws.scheme == Drafting::Distinct { index } else { 0 }]
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.distributions[0].vocabulary()
    }

    /// Draws a tuple into `drafts`, replacing its contents.
    pub fn draw<C: RandomSource + ?Sized>(&self, rng: &mut C, drafts: &mut Vec<Token>) {
        drafts.clear();
        let probs = self.distribution(0);
        match self.draws.scheme {
            Drafting::Iid | Drafting::Distinct => {
                drafts.extend(
                    (0..self.draws.count).map(|index| self.distribution(index).sample(rng)),
                );
            }
            Drafting::WithoutReplacement => {
                for _ in 0..self.draws.count.min(probs.support_size()) {
                    drafts.push(draw_outside(probs, drafts, rng));
                }
            }
            Drafting::Greedy => {
                drafts.extend(probs.most_likely(self.draws.count - 1));
                if drafts.len() < probs.support_size() {
                    drafts.push(draw_outside(probs, drafts, rng));
                }
            }
            Drafting::Hub => {
                let hubs = probs.most_likely(self.draws.count - 1);
                let first = probs.sample(rng);
                drafts.push(first);
                if hubs.contains(&first) && hubs.len() < probs.support_size() {
                    drafts.push(draw_outside(probs, &hubs, rng));
                }
                drafts.extend(hubs.into_iter().filter(|hub| *hub != first));
            }
            Drafting::TopK => drafts.extend(probs.most_likely(self.draws.count)),
        }
    }

    /// Enumerates the tuples of positive probability, each with its probability. Exponential in the
    /// number of drafts.
    pub fn tuples(&self) -> Vec<(f64, Vec<Token>)> {
        enumerate(|rng| {
            let mut drafts = Vec::new();
            self.draw(rng, &mut drafts);
            drafts
        })
    }

    /// The number of tuples of positive probability, or an upper bound.
    pub fn tuple_bound(&self) -> f64 {
        let size = |index: usize| self.distribution(index).support_size() as f64;
        match self.draws.scheme {
            Drafting::Greedy => size(0),
            Drafting::Hub => size(0) * self.draws.count as f64,
            Drafting::TopK => 1.0,
            _ => (0..self.draws.count).map(size).product(),
        }
    }

    /// The length of the drawn tuples.
    fn length(&self) -> usize {
        match self.draws.scheme {
            Drafting::Iid | Drafting::Distinct => self.draws.count,
            _ => self.draws.count.min(self.distribution(0).support_size()),
        }
    }

    /// Checks that this proposal can draw the tuple.
    ///
    /// # Errors
    /// A tuple of the wrong length or of probability 0.
    pub fn check(&self, drafts: &[Token]) -> Result<()> {
        let (operation, vocabulary) = ("drafts", self.vocabulary());
        if drafts.len() != self.length() {
            let expected = self.length().to_string();
            return Err(Error::Length { operation, expected, got: drafts.len() });
        }
        if let Some(&got) = drafts.iter().find(|token| **token as usize >= vocabulary) {
            return Err(Error::Token { operation, vocabulary, got });
        }
        let drawn =
            |(index, token): (usize, &Token)| self.distribution(index).probability(*token) > 0.0;
        // Not by [`probability`](Self::probability) alone: products of many probabilities may
        // underflow.
        let possible = drafts.iter().enumerate().all(drawn)
            && match self.draws.scheme {
                Drafting::Iid | Drafting::Distinct => true,
                Drafting::WithoutReplacement => {
                    (1..drafts.len()).all(|index| !drafts[..index].contains(&drafts[index]))
                }
                _ => self.probability(drafts) > 0.0,
            };
        if possible {
            return Ok(());
        }
        let expected =
            format!("tokens that drafting {} can draw from their distribution", self.draws.scheme);
        Err(Error::Unsupported { operation, expected, got: format!("{drafts:?}") })
    }

    /// The probability of drawing exactly this tuple, order included.
    pub fn probability(&self, drafts: &[Token]) -> f64 {
        let probs = self.distribution(0);
        // The probability of drawing `token` after the `removed` tokens.
        let drawn = |token: Token, removed: &[Token]| {
            let rest = mass_without(probs, removed);
            if removed.contains(&token) || rest == 0.0 {
                0.0
            } else {
                probs.probability(token) / rest
            }
        };
        match self.draws.scheme {
            Drafting::Iid | Drafting::Distinct if drafts.len() != self.draws.count => 0.0,
            Drafting::Iid | Drafting::Distinct => drafts
                .iter()
                .enumerate()
                .map(|(index, &token)| self.distribution(index).probability(token))
                .product(),
            Drafting::TopK => f64::from(u8::from(drafts == probs.most_likely(self.draws.count))),
            _ if drafts.len() != self.draws.count.min(probs.support_size()) => 0.0,
            Drafting::WithoutReplacement => {
                (0..drafts.len()).map(|i| drawn(drafts[i], &drafts[..i])).product()
            }
            Drafting::Greedy => {
                let hubs = probs.most_likely(self.draws.count - 1);
                match drafts.strip_prefix(&hubs[..]) {
                    Some([]) => 1.0,
                    Some([last]) => drawn(*last, &hubs),
                    _ => 0.0,
                }
            }
            Drafting::Hub => {
                let hubs = probs.most_likely(self.draws.count - 1);
                let first = drafts[0];
                let with_draw = hubs.contains(&first) && hubs.len() < probs.support_size();
                let others = hubs.iter().filter(|hub| **hub != first);
                if !drafts[1 + usize::from(with_draw)..].iter().eq(others) {
                    return 0.0;
                }
                probs.probability(first) * if with_draw { drawn(drafts[1], &hubs) } else { 1.0 }
            }
        }
    }
}

/// Draws from `probs` without the `removed` tokens.
fn draw_outside<C: RandomSource + ?Sized>(
    probs: &Distribution,
    removed: &[Token],
    rng: &mut C,
) -> Token {
    probs.sample_excess(
        1.0,
        |token| if removed.contains(&token) { f64::INFINITY } else { 0.0 },
        rng,
    )
}

/// The mass of all tokens but the `removed` ones. A sum, not a difference, because it may be tiny.
pub(crate) fn mass_without(probs: &Distribution, removed: &[Token]) -> f64 {
    probs.support().filter(|(token, _)| !removed.contains(token)).map(|(_, p)| p).sum()
}

/// The mass of the draft's distribution without the `removed` tokens: by subtraction, or by
/// summation if the difference is small.
pub(crate) fn remaining_mass(probs: &Distribution, removed: &[Token]) -> f64 {
    let left = 1.0 - removed.iter().map(|&token| probs.probability(token)).sum::<f64>();
    // A small difference has lost its significant digits.
    if left > 1e-3 { left } else { mass_without(probs, removed) }
}

/// The expected number of distinct tokens among `count` independent draws: Σ (1 − (1 − q)^count).
pub fn expected_distinct(draft: &Distribution, count: usize) -> f64 {
    draft.support().map(|(_, q)| hit_probability(q, count)).sum()
}

/// The largest number of independent draws, from 1 to `limit`, whose expected number of distinct
/// tokens is within `budget`.
///
/// A repeated draw adds no tree node, so on peaked distributions more draws fit into a budget of
/// nodes.
pub fn draws_within_budget(draft: &Distribution, budget: f64, limit: usize) -> usize {
    let (mut fits, mut exceeds) = (1, limit.max(1) + 1);
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        if expected_distinct(draft, middle) <= budget { fits = middle } else { exceeds = middle }
    }
    fits
}

/// The number of independent draws, from 1 to `limit`, whose expected number of distinct tokens is
/// `distinct`. A fractional number means rounding down or up at random with that mean.
pub fn draws_for_distinct(draft: &Distribution, distinct: f64, limit: usize) -> f64 {
    let fewer = draws_within_budget(draft, distinct, limit);
    let [low, high] = [fewer, fewer + 1].map(|count| expected_distinct(draft, count));
    if fewer == limit || high <= low {
        return fewer as f64;
    }
    fewer as f64 + ((distinct - low) / (high - low)).clamp(0.0, 1.0)
}

/// 1 − (1 − q)^count, accurate for small q.
pub(crate) fn hit_probability(q: f64, count: usize) -> f64 {
    -((count as f64) * (-q.min(1.0)).ln_1p()).exp_m1()
}
