//! How sessions draft and verify: verifier, tree and sampling of drafts.

use polydraft::policy::Costs;
use polydraft::{PolicyKind, Sampling, Verifier, VerifierKind};
use polydraft_engine::Speculation;
use pyo3::prelude::*;

use crate::distribution::PySampling;
use crate::errors::{Failure, Result};
use crate::models::Facts;
use crate::names::NONE;
use crate::threads::work;
use crate::tree::Beside;

/// Sampling of drafts: the same for all, or one for each path.
#[derive(FromPyObject)]
pub enum DraftSampling {
    #[pyo3(transparent)]
    One(PySampling),
    #[pyo3(transparent)]
    Each(Vec<PySampling>),
}

/// Facts of an engine that determine how it drafts.
pub struct DraftingOf<'a> {
    /// Number of drafters.
    pub drafters: usize,
    /// Acceptances that sequoia trees are made from.
    pub acceptance: Option<&'a [f64]>,
    /// Facts of loaded models.
    pub facts: Option<&'a Facts>,
}

impl DraftingOf<'_> {
    /// The draft's sampling, and that of each path where there are several drafts.
    fn draft_sampling(
        &self,
        target: Sampling,
        given: Option<DraftSampling>,
    ) -> Result<(Sampling, Vec<Sampling>)> {
        let given = match given {
            None => vec![target],
            Some(DraftSampling::One(one)) => vec![one.settings],
            Some(DraftSampling::Each(all)) => all.into_iter().map(|one| one.settings).collect(),
        };
        match (&given[..], self.drafters) {
            ([one], 1) => Ok((*one, Vec::new())),
            ([one], drafters) => Ok((*one, vec![*one; drafters])),
            ([first, ..], drafters) if drafters == 1 || drafters == given.len() => {
                Ok((*first, given))
            }
            (all, drafters) => Err(Failure::input(format!(
                "draft_sampling: expected one, or {drafters}, one for each draft, got {}",
                all.len()
            ))),
        }
    }

    /// Returns how drafts are made and verified; an adaptive tree gets the costs of steps.
    pub fn with(
        &self,
        py: Python<'_>,
        verifier: &VerifierKind,
        tree: Option<&Bound<'_, PyAny>>,
        sampling: Sampling,
        draft_sampling: Option<DraftSampling>,
        is_seeded: bool,
    ) -> Result<Drafting> {
        let (draft, each) = self.draft_sampling(sampling, draft_sampling)?;
        let acceptance = self.acceptance;
        let mut tree = Beside { verifier, drafts: each.len(), acceptance }.tree(tree)?;
        let mut lesson = None;
        if let (Some(auto), Some(facts)) = (tree.auto_mut(), self.facts)
            && auto.costs == Costs::default()
        {
            work(py, || {
                facts.apply_costs(auto, verifier, &sampling, is_seeded);
                Ok(())
            })?;
            lesson = (!is_seeded).then(|| (verifier.clone(), sampling));
        }
        Ok(Drafting { tree, draft, each, lesson })
    }
}

/// Refuses what is given of drafts, by its keywords, where the verifier is none: written as a name,
/// or as Python's own.
pub fn check_plain(is_named: bool, given: [(&str, bool); 2]) -> Result<()> {
    let none = if is_named { format!("{NONE:?}") } else { "None".to_owned() };
    match given.into_iter().find(|(_, given)| *given) {
        Some((name, _)) => {
            Err(Failure::input(format!("{name}= has no meaning with verifier={none}")))
        }
        None => Ok(()),
    }
}

/// The verifier and the target's sampling of a sequence that costs are learned from.
pub type Lesson = (VerifierKind, Sampling);

/// Verifier, tree and sampling of drafts.
pub struct Drafting {
    tree: PolicyKind,
    draft: Sampling,
    /// Sampling of each path, where there are several drafts.
    each: Vec<Sampling>,
    /// Lesson from the sequence, if any.
    pub lesson: Option<Lesson>,
}

impl Drafting {
    /// With a verifier for it.
    pub fn verified_by(&self, verifier: Box<dyn Verifier>) -> Result<Speculation> {
        let speculation = Speculation::new(verifier, self.tree.build()?)?;
        Ok(speculation.with_sampling(self.draft).with_draft_samplings(self.each.clone())?)
    }
}
