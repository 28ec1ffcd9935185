//! Reference solvers for multi-draft speculative decoding: slow and trusted.
//!
//! They are the oracle that the fast rules of [`polydraft`] are tested against, and the published
//! state of the art to measure them against. The rules here are [`polydraft::coupling::Rule`]s like
//! those there: [`ReferenceKind`] makes them by name.
//!
//! ```
//! use polydraft::{Distribution, Problem, Proposal, couple};
//! use rand::SeedableRng;
//!
//! let target = Distribution::new(vec![0.5, 0.3, 0.2])?;
//! let draft = Distribution::new(vec![0.2, 0.3, 0.5])?;
//! let problem = Problem::new(&target, Proposal::iid(&draft, 2)?)?;
//! let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
//! for name in polydraft_reference::ReferenceKind::NAMES {
//!     let mut rule = name.parse::<polydraft_reference::ReferenceKind>()?.build()?;
//!     let acceptance = couple(rule.as_mut(), problem)?.acceptance(&mut rng).probability;
//!     assert!((acceptance - 0.86).abs() < 1e-2, "{name}: {acceptance}");
//! }
//! # Ok::<(), polydraft::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod comparison;
mod dinic;
mod emitted;
mod every;
pub mod global_resolution;
pub mod importance;
pub mod linear_program;
pub mod max_flow;
pub mod optimum;
pub mod paths;
pub mod pooled;
pub mod program;
mod sets;
pub mod slackness;
pub mod trace;
mod transport;

pub use emitted::{Emitted, emitted};
pub use every::{
    for_measurement, reference, rule, rule_from_json, rules, verifier, verifier_from_json,
};
pub use program::Solver;

use polydraft::coupling::RuleSettings;

polydraft::registry! {
    /// A rule of this crate and its settings. To add one, write its file and add its line here.
    pub enum ReferenceKind, tag "rule", settings RuleSettings;
    /// Importance-weighted selection by a truncated linear program: i.i.d. or distinct drafts.
    Importance(importance::Settings) = "importance",
    /// Optimal transport by linear program: any drafts whose tuples can be enumerated.
    LinearProgram(linear_program::Settings) = "linear-program",
    /// Optimal transport by maximum flow: any drafts whose tuples can be enumerated.
    MaxFlow(max_flow::Settings) = "max-flow",
    /// Optimal transport, split by complementary slackness: any drafts whose tuples can be
    /// enumerated.
    Slackness(slackness::Settings) = "slackness",
    /// Global Resolution: i.i.d. drafts.
    GlobalResolution(global_resolution::Settings) = "global-resolution",
}
polydraft::rule_entry!(ReferenceKind);
