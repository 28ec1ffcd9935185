//! Optimal transport split in two by complementary slackness.
//!
//! Problem: find the rule with the largest acceptance. With H* = argmin [p(H) − Pr(all drafts lie
//! in H)], tuples inside H* are accepted with tokens of H* only, each of which reaches its full
//! probability p (the *inner* system). All other tuples are always accepted, with tokens outside H*
//! (the *outer* system). Only the system of the drawn tuple must be solved.
//! Source: Thomas and Pal 2025 (Global Resolution), theorem 5.1 and section 5.3.
//! Complexity: H* as in [`crate::optimum::best`], and a maximum flow on the token sets of one
//! system.
//! Deviations: (1) tuples are merged by their tokens outside H* (outer system) or by their set
//! (inner system); (2) if a draft is rejected in the inner system, the rest of p after the outer
//! system is needed, so that system is then solved as well; the paper's formula (8) requires it
//! too.

use crate::max_flow::check_edges;
use crate::optimum;
use crate::program::Deadline;
use crate::sets::{Part, TokenSets};
use crate::transport::{Choice, Transport};
use polydraft::coupling::{Emission, EmittedDistribution, Rule, RuleSettings};
use polydraft::random::RandomSource;
use polydraft::{Draws, Problem, Result, Token};
use serde::{Deserialize, Serialize};

/// Settings of the rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum number of edges between tokens and token sets of a system (40 bytes each). Default
    /// 4,000,000.
    pub max_variables: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_variables: 4_000_000 }
    }
}

impl RuleSettings for Settings {
    fn build(&self) -> Result<Box<dyn Rule>> {
        check_edges(self.max_variables)?;
        let limit = self.max_variables;
        Ok(Box::new(Slackness { limit, inside: Vec::new(), outer: None, inner: None }))
    }
}

struct Slackness {
    limit: usize,
    /// H*, ascending.
    inside: Vec<Token>,
    outer: Option<Transport>,
    inner: Option<Transport>,
}

const NAME: &str = "slackness";

/// Returns a system, and solves it first if necessary.
///
/// Cannot fail, because `prepare` has checked the size and there is no time limit. If it did fail,
/// nothing would be accepted, and the emitted distribution would still be correct.
fn solved<'a>(
    system: &'a mut Option<Transport>,
    problem: &Problem,
    part: Part,
    limit: usize,
) -> &'a Transport {
    system.get_or_insert_with(|| {
        let sets = TokenSets::new(NAME, &problem.proposal, part, limit);
        let forever = Deadline::after(f64::INFINITY);
        sets.and_then(|sets| Transport::by_flow(NAME, problem.target, sets, forever))
            .unwrap_or_default()
    })
}

impl Slackness {
    fn choice(&mut self, problem: &Problem, drafts: &[Token]) -> Choice {
        let Self { limit, inside, outer, inner } = self;
        let (system, part) = match drafts.iter().all(|token| inside.binary_search(token).is_ok()) {
            true => (inner, Part::Inside(inside)),
            false => (outer, Part::Outside(inside)),
        };
        solved(system, problem, part, *limit).choice(&part.key(drafts).unwrap_or_default())
    }

    /// Returns the transports of both systems.
    fn both(&mut self, problem: &Problem) -> (&Transport, &Transport) {
        let Self { limit, inside, outer, inner } = self;
        (
            solved(outer, problem, Part::Outside(inside), *limit),
            solved(inner, problem, Part::Inside(inside), *limit),
        )
    }
}

impl Rule for Slackness {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, _: Draws) -> Result<()> {
        Ok(())
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        (self.outer, self.inner) = (None, None);
        self.inside = optimum::best(problem)?.tokens;
        TokenSets::check(NAME, &problem.proposal, Part::Outside(&self.inside), self.limit)?;
        TokenSets::check(NAME, &problem.proposal, Part::Inside(&self.inside), self.limit)
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        let (outer, inner) = self.both(problem);
        Some(outer.acceptance() + inner.acceptance())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let choice = self.choice(problem, drafts);
        choice.decide(drafts, rng).unwrap_or_else(|| {
            let (outer, inner) = self.both(problem);
            Choice::reject(problem.target, |token| outer.served(token) + inner.served(token), rng)
        })
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let choice = self.choice(problem, drafts);
        let (outer, inner) = self.both(problem);
        choice.distribution(problem.target, |token| outer.served(token) + inner.served(token))
    }
}
