//! Options of speculation, and the settings that they result in.

use std::path::PathBuf;

use anyhow::Result;
use polydraft::policy::TreeName;
use polydraft::{Drafting, PolicyKind, Sampling, VerifierKind};
use serde::{Deserialize, Serialize};

use crate::as_text;

/// Options of verifier and tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeculationOptions {
    /// The verifier; none is plain decoding.
    #[serde(with = "as_text")]
    pub verifier: Option<VerifierKind>,
    /// Paths drafted per pass of the target.
    pub paths: Option<u32>,
    /// Tokens of each path, or levels of a k-ary or sequoia tree.
    pub depth: Option<u32>,
    /// Where the tree branches.
    #[serde(with = "as_text")]
    pub tree: Option<TreeName>,
    /// Ends a path where the expected acceptance along it falls below this.
    pub stop_below: Option<f64>,
    /// How tokens are drawn at a node of the tree.
    #[serde(with = "as_text")]
    pub drafting: Option<Drafting>,
    /// A file of measured acceptances, for a sequoia tree.
    pub acceptance: Option<PathBuf>,
    /// A file of pass costs, for the adaptive tree: read, or written if there is none.
    pub costs: Option<PathBuf>,
}

impl Default for SpeculationOptions {
    /// The default verifier, with the adaptive tree.
    fn default() -> Self {
        Self {
            verifier: VerifierKind::named("nested-priority"),
            paths: None,
            depth: None,
            tree: None,
            stop_below: None,
            drafting: None,
            acceptance: None,
            costs: None,
        }
    }
}

/// How drafts are made and verified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speculation {
    /// The verifier.
    pub verifier: VerifierKind,
    /// The policy of the tree.
    pub tree: PolicyKind,
    /// How the drafter's output becomes the distributions that drafts are drawn from.
    pub sampling: Sampling,
    /// The same for each path, where each has its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<Sampling>,
}

impl Speculation {
    /// With one draft.
    pub fn new(verifier: VerifierKind, tree: PolicyKind, sampling: Sampling) -> Self {
        Self { verifier, tree, sampling, each: Vec::new() }
    }

    /// Verifier and policy, built.
    ///
    /// # Errors
    /// Settings out of range; a verifier that is not exact for the tree.
    pub fn build(&self) -> Result<polydraft_engine::Speculation> {
        let (verifier, policy) = (self.verifier.build()?, self.tree.build()?);
        self.sampling.validate()?;
        let speculation = polydraft_engine::Speculation::new(verifier, policy)?;
        Ok(speculation.with_sampling(self.sampling).with_draft_samplings(self.each.clone())?)
    }
}
