//! Options of speculation, and the settings that they result in.

use std::path::{Path, PathBuf};

use anyhow::Result;
use polydraft::coupling::RuleRegistry;
use polydraft::policy::StopBelow;
use polydraft::{Drafting, PolicyKind, RuleKind, Sampling, VerifierKind};
use serde::{Deserialize, Serialize};

use crate::tree::{self, TreeName, supports};
use crate::{SamplingOptions, Usage, as_text};

/// Options of verifier and tree. `R` is the registry of rules of walking verifiers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, bound = "")]
pub struct SpeculationOptions<R: RuleRegistry = RuleKind> {
    /// The verifier; none is plain decoding.
    #[serde(with = "as_text")]
    pub verifier: Option<VerifierKind<R>>,
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

impl<R: RuleRegistry> Default for SpeculationOptions<R> {
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
#[serde(bound = "")]
pub struct Speculation<R: RuleRegistry = RuleKind> {
    /// The verifier.
    pub verifier: VerifierKind<R>,
    /// The policy of the tree.
    pub tree: PolicyKind,
    /// How the drafter's output becomes the distributions that drafts are drawn from.
    pub sampling: Sampling,
}

impl<R: RuleRegistry> Speculation<R> {
    /// Verifier and policy, built.
    ///
    /// # Errors
    /// Settings out of range; a verifier that is not exact for the tree.
    pub fn build(&self) -> Result<polydraft_engine::Speculation> {
        let (verifier, policy) = (self.verifier.build()?, self.tree.build()?);
        self.sampling.validate()?;
        let speculation = polydraft_engine::Speculation::new(verifier, policy)?;
        Ok(speculation.with_sampling(self.sampling))
    }
}

impl<R: RuleRegistry> SpeculationOptions<R> {
    /// The settings of these options; none is plain decoding. `demo` are the acceptances of the
    /// demo pair if it is used.
    ///
    /// # Errors
    /// Options that contradict each other, or a verifier that is not exact for the tree; the
    /// message names what would fit.
    pub fn resolve(
        &self,
        sampling: &SamplingOptions,
        demo: Option<&Path>,
    ) -> Result<Option<Speculation<R>>> {
        let Some(verifier) = &self.verifier else {
            let given = [
                ("--paths", self.paths.is_some()),
                ("--depth", self.depth.is_some()),
                ("--tree", self.tree.is_some()),
                ("--stop-below", self.stop_below.is_some()),
                ("--costs", self.costs.is_some()),
            ];
            let given = given.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
            if let Some(option) = given.or(sampling.of_draft()) {
                return Err(Usage::error(format_args!(
                    "{option} has no meaning with --verifier none"
                )));
            }
            return Ok(None);
        };
        let mut tree = tree::resolve(self, verifier, demo)?;
        if let Some(below) = self.stop_below {
            tree = PolicyKind::StopBelow(StopBelow {
                below,
                of: Box::new(tree),
                ..StopBelow::default()
            });
        }
        let speculation =
            Speculation { verifier: verifier.clone(), tree, sampling: sampling.draft() };
        speculation
            .build()
            .map_err(|error| Usage::error(advise(verifier, &speculation.tree, error)))?;
        Ok(Some(speculation))
    }
}

/// The error of a verifier that does not fit the tree, with verifiers and trees that would.
fn advise<R: RuleRegistry>(
    verifier: &VerifierKind<R>,
    tree: &PolicyKind,
    error: anyhow::Error,
) -> String {
    let unfit = matches!(error.downcast_ref(), Some(polydraft::Error::Unsupported { .. }))
        || matches!(
            error.downcast_ref(),
            Some(polydraft_engine::Error::EmittedDistribution(
                polydraft::Error::Unsupported { .. }
            ))
        );
    if !unfit {
        return format!("{verifier}: {error}");
    }
    let all = VerifierKind::<R>::all();
    // A verifier whose output does not depend on the draft is only for users who ask for that.
    let usual = |kind: &&VerifierKind<R>| {
        kind.build().is_ok_and(|verifier| !verifier.uses_shared_randomness())
    };
    let verifiers =
        all.iter().filter(usual).filter(|other| supports(other, tree)).map(VerifierKind::to_string);
    let chain = supports(verifier, &PolicyKind::chain(1)).then(|| "--paths 1".to_owned());
    let levels = Drafting::ALL
        .into_iter()
        .filter(|drafting| supports(verifier, &PolicyKind::levels(&[2, 2], *drafting)));
    let levels = levels.map(|drafting| format!("--tree 2,2 --drafting {drafting}"));
    let list = |what: String, all: Vec<String>| match all.is_empty() {
        true => String::new(),
        false => format!("; {what}: {}", all.join(", ")),
    };
    format!(
        "{error}{}{}",
        list("verifiers for this tree".to_owned(), verifiers.collect()),
        list(
            format!("trees for {verifier}, for example"),
            chain.into_iter().chain(levels).collect()
        )
    )
}
