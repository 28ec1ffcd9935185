//! The algorithm: computes H* and the acceptance of each token outside it, and solves the two
//! systems on demand.

use super::gave_up::GaveUp;
use super::system::{Solved, System, Truncation};
use super::{NAME, Settings};
use crate::optimum::by_ratio;
use crate::sets::{MOST_DRAFTS, how_many, pairs};
use crate::transport::Choice;
use polydraft::coupling::Emission;
use polydraft::coupling::canonical::Selector;
use polydraft::random::RandomSource;
use polydraft::{Drafting, Draws, Error, Problem, Result, Token};

/// Maximum number of terms of a truncated problem. An evaluation with this many takes about ten
/// milliseconds.
const TERMS: f64 = 2e6;

/// A token that can be drafted.
struct Drafted {
    token: Token,
    q: f64,
    /// Whether it is in H*.
    inside: bool,
    /// Wanted probability of accepting the token: p in H*, p' outside.
    wanted: f64,
}

/// Global Resolution as published, step by step. [`Resolver::prepare`] must be called first.
pub struct Resolver {
    settings: Settings,
    count: usize,
    /// Tokens that can be drafted, ascending.
    tokens: Vec<Drafted>,
    /// Solution or failure of each system; `None` before it is needed.
    outer: Option<Attempt>,
    inner: Option<Attempt>,
}

/// Solution of a system, or the reason of failure.
type Attempt = std::result::Result<System, GaveUp>;

impl Resolver {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, count: 1, tokens: Vec::new(), outer: None, inner: None }
    }

    /// Computes H* and the wanted acceptance probability of every token.
    ///
    /// # Errors
    /// Drafts that are not i.i.d., or more than 64 of them; limits that would take too long.
    pub fn prepare(&mut self, problem: &Problem) -> Result<()> {
        let proposal = &problem.proposal;
        Selector::supports(self, proposal.draws())?;
        self.count = proposal.count();
        let limit = self.settings.limit(self.count).min(proposal.distribution(0).support_size());
        if pairs(limit, self.count) > TERMS {
            let expected = format!("a limit of tokens that makes at most {TERMS} terms");
            let terms = how_many(pairs(limit, self.count));
            let got = format!("{terms} for {limit} tokens (setting limits)");
            return Err(Error::TooLarge { operation: NAME, expected, got });
        }
        (self.outer, self.inner) = (None, None);
        let order = by_ratio(problem);
        // Contribution of the next token to Pr(all drafts lie in the prefix), minus its demand.
        let mut below = 0.0;
        let gains: Vec<f64> = order
            .iter()
            .map(|&(_, p, q)| {
                let above = below + q;
                let gain = power_step(below, above, q, self.count) - p;
                below = above;
                gain
            })
            .collect();
        let (mut value, mut best) = (0.0, (0.0, 0));
        for (index, gain) in gains.iter().enumerate() {
            value += gain;
            if value > best.0 {
                best = (value, index + 1);
            }
        }
        // Distance of a prefix's −ψ below the maximum of the longer prefixes, from the longest
        // down.
        let mut distance = 0.0_f64;
        self.tokens.clear();
        for (index, (&(token, p, q), gain)) in order.iter().zip(&gains).enumerate().rev() {
            let inside = index < best.1;
            let fall = if inside { 0.0 } else { (-gain - distance).max(0.0) };
            distance = (distance + gain).max(0.0);
            self.tokens.push(Drafted { token, q, inside, wanted: (p - fall).clamp(0.0, p) });
        }
        self.tokens.sort_unstable_by_key(|drafted| drafted.token);
        Ok(())
    }

    /// Solves the system that contains these drafts, unless it is already solved.
    ///
    /// # Errors
    /// The reason of failure.
    pub fn solve(&mut self, drafts: &[Token]) -> std::result::Result<Solved, GaveUp> {
        if self.is_inner(drafts) { self.solve_inner() } else { self.solve_outer() }
    }

    /// Solves both systems.
    ///
    /// # Errors
    /// The reason why one of them has no solution.
    pub fn solve_both(&mut self) -> std::result::Result<(), GaveUp> {
        self.solve_outer()?;
        self.solve_inner().map(|_| ())
    }

    /// Returns the probability of drafts whose system has no solution. Solves both systems.
    pub fn unsolved(&mut self) -> f64 {
        let inner = self.mass_inside().powi(self.count as i32).min(1.0);
        let part = |failed: bool, mass: f64| if failed { mass } else { 0.0 };
        part(self.solve_inner().is_err(), inner) + part(self.solve_outer().is_err(), 1.0 - inner)
    }

    fn solve_outer(&mut self) -> std::result::Result<Solved, GaveUp> {
        let truncation = Truncation { outer: true, free: self.mass_inside(), full: 1.0 };
        if self.outer.is_none() {
            self.outer = Some(self.attempt(truncation));
        }
        Self::solved(&self.outer)
    }

    fn solve_inner(&mut self) -> std::result::Result<Solved, GaveUp> {
        let truncation = Truncation { outer: false, free: 0.0, full: self.mass_inside() };
        if self.inner.is_none() {
            self.inner = Some(self.attempt(truncation));
        }
        Self::solved(&self.inner)
    }

    fn attempt(&self, truncation: Truncation) -> Attempt {
        let members = self.members(!truncation.outer);
        System::new(&self.settings, self.count, truncation, members)
    }

    fn solved(attempt: &Option<Attempt>) -> std::result::Result<Solved, GaveUp> {
        match attempt {
            Some(Ok(system)) => Ok(system.solved()),
            Some(Err(gave_up)) => Err(*gave_up),
            None => Ok(Solved::default()),
        }
    }

    /// Returns the outer or the inner system, if it is solved.
    fn known(&self, inside: bool) -> Option<&System> {
        if inside { &self.inner } else { &self.outer }.as_ref()?.as_ref().ok()
    }

    /// Returns q(H*).
    fn mass_inside(&self) -> f64 {
        self.tokens.iter().filter(|drafted| drafted.inside).map(|drafted| drafted.q).sum()
    }

    /// Returns the tokens inside or outside of H*: (token, q, wanted probability).
    fn members(&self, inside: bool) -> Vec<(Token, f64, f64)> {
        let members = self.tokens.iter().filter(|drafted| drafted.inside == inside);
        members.map(|drafted| (drafted.token, drafted.q, drafted.wanted)).collect()
    }

    fn find(&self, token: Token) -> Option<&Drafted> {
        self.tokens
            .binary_search_by_key(&token, |drafted| drafted.token)
            .ok()
            .map(|location| &self.tokens[location])
    }

    fn is_inside(&self, token: Token) -> bool {
        self.find(token).is_some_and(|drafted| drafted.inside)
    }

    fn is_inner(&self, drafts: &[Token]) -> bool {
        drafts.iter().all(|token| self.is_inside(*token))
    }

    /// Solves the system of these drafts and decides, as published.
    ///
    /// # Errors
    /// The reason of failure.
    pub fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> std::result::Result<Emission, GaveUp> {
        self.solve(drafts)?;
        Ok(self.published(drafts).emit(drafts, problem.target, |token| self.wanted(token), rng))
    }

    /// Returns the system of these drafts, and the distinct drafts that it concerns, ascending.
    fn system(&self, drafts: &[Token]) -> (Option<&System>, Vec<Token>) {
        let inner = self.is_inner(drafts);
        let mut tokens: Vec<Token> =
            drafts.iter().copied().filter(|token| inner || !self.is_inside(*token)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        (self.known(inner), tokens)
    }

    /// Returns the acceptance probabilities as published: the softmax of the potentials over drafts
    /// outside of H*, or, if all are inside, over all drafts and a "reject" option of weight 1.
    pub(super) fn published(&self, drafts: &[Token]) -> Choice {
        let (Some(system), tokens) = self.system(drafts) else {
            return Choice { accepted: Vec::new() };
        };
        let weights: Vec<f64> = tokens.iter().map(|token| system.potential(*token).exp()).collect();
        let total = weights.iter().sum::<f64>() + system.slack();
        Choice {
            accepted: tokens
                .into_iter()
                .zip(weights)
                .map(|(token, w)| (token, w / total))
                .collect(),
        }
    }

    /// Returns the mass of a token that accepted drafts provide (as published); a rejection emits
    /// from the rest.
    pub(super) fn wanted(&self, token: Token) -> f64 {
        self.find(token).map_or(0.0, |drafted| drafted.wanted)
    }

    /// Returns the exact acceptance as published, if no tuple is omitted.
    pub(super) fn acceptance_if_complete(&self) -> Option<f64> {
        let inner = self.known(true).filter(|system| system.is_complete())?;
        Some(self.acceptance_with(inner))
    }

    /// Returns the acceptance as published, if both systems are solved. Omitted inner tuples, of
    /// probability at most τ, count as rejected.
    pub fn acceptance(&self) -> Option<f64> {
        self.known(false)?;
        Some(self.acceptance_with(self.known(true)?))
    }

    fn acceptance_with(&self, inner: &System) -> f64 {
        (1.0 - self.mass_inside().powi(self.count as i32)).max(0.0) + inner.accepted()
    }
}

/// Selection by the truncated softmax, in repaired mode.
impl Selector for Resolver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(NAME, if draws.count == 1 { &Drafting::DRAWN } else { &[Drafting::Iid] })?;
        if draws.count > MOST_DRAFTS {
            let (expected, got) =
                (format!("at most {MOST_DRAFTS} drafts"), draws.count.to_string());
            return Err(Error::TooLarge { operation: NAME, expected, got });
        }
        Ok(())
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        Self::prepare(self, problem)
    }

    fn select(&mut self, problem: &Problem, drafts: &[Token], rng: &mut dyn RandomSource) -> usize {
        rng.pick(&self.selection(problem, drafts))
    }

    fn selection(&mut self, _: &Problem, drafts: &[Token]) -> Vec<f64> {
        let mut weights = vec![0.0; drafts.len()];
        let (Some(system), tokens) = self.system(drafts) else { return weights };
        // A tuple with a token that was omitted from its system selects the first such draft.
        let meant = |token: &Token| !system.is_retained(*token) && tokens.contains(token);
        if let Some(first) = drafts.iter().position(meant) {
            weights[first] = 1.0;
            return weights;
        }
        let total: f64 = tokens.iter().map(|token| system.potential(*token).exp()).sum();
        for token in tokens {
            if let Some(index) = drafts.iter().position(|draft| *draft == token) {
                weights[index] = system.potential(token).exp() / total;
            }
        }
        weights
    }

    fn selected(&self, _: &Problem, token: Token) -> f64 {
        let Some(drafted) = self.find(token) else { return 0.0 };
        self.known(drafted.inside).map_or(0.0, |system| system.selected(token, drafted.q))
    }
}

/// Returns above^count − below^count for above = below + q, without cancellation.
fn power_step(below: f64, above: f64, q: f64, count: usize) -> f64 {
    // q·Σ above^j·below^(count − 1 − j), by Horner's rule in `below`.
    let (mut sum, mut power) = (0.0, 1.0);
    for _ in 0..count {
        sum = sum * below + power;
        power *= above;
    }
    q * sum
}
