//! Options of speculation, and the settings that result from them.

use std::path::PathBuf;

use anyhow::Result;
use polydraft::policy::TreeName;
use polydraft::{Drafting, PolicyKind, Sampling, VerifierKind};
use serde::{Deserialize, Serialize};

use crate::serde_display;

/// Options of verifier and tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeculationOptions {
    /// Verifier; `None` is plain decoding.
    #[serde(with = "serde_display")]
    pub verifier: Option<VerifierKind>,
    /// Takes another verifier if this one is not exact for the tree: the user named none.
    pub verifier_by_tree: bool,
    /// Number of paths drafted per target pass.
    pub paths: Option<u32>,
    /// Number of tokens per path, or of levels of a k-ary or sequoia tree.
    pub depth: Option<u32>,
    /// Tree: where drafts branch.
    #[serde(with = "serde_display")]
    pub tree: Option<TreeName>,
    /// Acceptance threshold: a path ends where the expected acceptance along it falls below this.
    pub stop_below: Option<f64>,
    /// Drafting: how tokens are drawn at a node of the tree.
    #[serde(with = "serde_display")]
    pub drafting: Option<Drafting>,
    /// File of measured acceptances, for a sequoia tree.
    pub acceptance: Option<PathBuf>,
    /// File of step costs, for the adaptive tree; created if missing.
    pub costs: Option<PathBuf>,
}

impl Default for SpeculationOptions {
    /// Returns the default verifier with the adaptive tree.
    fn default() -> Self {
        Self {
            verifier: VerifierKind::named("nested-priority"),
            verifier_by_tree: false,
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

/// Verifier, tree and draft sampling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speculation {
    /// Verifier.
    pub verifier: VerifierKind,
    /// Policy of the tree.
    pub tree: PolicyKind,
    /// Sampling of the draft.
    pub sampling: Sampling,
    /// Sampling of each draft, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<Sampling>,
}

impl Speculation {
    /// Creates settings with one draft.
    pub fn new(verifier: VerifierKind, tree: PolicyKind, sampling: Sampling) -> Self {
        Self { verifier, tree, sampling, each: Vec::new() }
    }

    /// Builds verifier and policy.
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
