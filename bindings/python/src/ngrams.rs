//! N-grams of the sequence as the draft of a loop in Python.

use std::sync::Mutex;

use polydraft::{NodeId, Token};
use polydraft_engine::{Drafter, DrafterKind, ModelInfo, Sequence, Vocabulary};
use pyo3::prelude::*;

use crate::arrays;
use crate::distribution::{PyDistribution, PySampling};
use crate::draft::PyDraft;
use crate::errors::{Failure, Result, lock};
use crate::outcome::PyOutcome;
use crate::threads::work;

/// Drafts for one sequence by the n-grams that it repeats: `text` has its tokens so far.
#[pyclass(name = "_Ngrams", module = "polydraft._native", frozen)]
pub struct PyNgrams {
    at_work: Mutex<(Box<dyn Drafter>, Sequence)>,
    vocabulary: usize,
}

impl PyNgrams {
    fn within(&self, tokens: &[Token]) -> Vec<Token> {
        // What the target has no logit for is a token like another here.
        let last = self.vocabulary.saturating_sub(1) as Token;
        tokens.iter().map(|token| *token.min(&last)).collect()
    }
}

#[pymethods]
impl PyNgrams {
    #[new]
    fn new(py: Python<'_>, vocabulary: usize, text: &Bound<'_, PyAny>) -> Result<Self> {
        let text = arrays::tokens("text", text)?;
        let info = ModelInfo {
            name: "target".into(),
            vocabulary: Vocabulary::numbered(vocabulary),
            context: usize::MAX,
            hidden: None,
            accepts_empty_context: true,
            max_sequences: usize::MAX,
        };
        let mut drafter = "ngram".parse::<DrafterKind>()?.build(&info)?;
        let sequence = drafter.open()?;
        let ngrams = Self { at_work: Mutex::new((drafter, sequence)), vocabulary };
        let text = ngrams.within(&text);
        work(py, || Ok(lock(&ngrams.at_work).0.extend(sequence, &text)?))?;
        Ok(ngrams)
    }

    /// The distributions after these nodes, parents before children in all calls for one draft.
    #[pyo3(signature = (draft, nodes, sampling=None))]
    fn distributions(
        &self,
        py: Python<'_>,
        draft: &PyDraft,
        nodes: Vec<NodeId>,
        sampling: Option<PySampling>,
    ) -> Result<Vec<PyDistribution>> {
        let (tree, sampling) = (draft.draft.tree(), sampling.unwrap_or_default().settings);
        if let Some(node) = nodes.iter().find(|node| **node >= tree.len()) {
            return Err(Failure::input(format!("nodes: expected nodes of the draft, got {node}")));
        }
        work(py, || {
            let mut at_work = lock(&self.at_work);
            let (drafter, sequence) = &mut *at_work;
            drafter.score(&[(*sequence, tree)])?;
            let distribution =
                |node| Ok(drafter.distribution(*sequence, node, &sampling, None)?.into());
            nodes.into_iter().map(distribution).collect()
        })
    }

    /// Takes what was decided on a draft.
    fn commit(&self, py: Python<'_>, draft: &PyDraft, outcome: &PyOutcome) -> Result<()> {
        let (tree, outcome) = (draft.draft.tree(), &outcome.outcome);
        let next = self.within(&[outcome.token]);
        work(py, || {
            let mut at_work = lock(&self.at_work);
            let (drafter, sequence) = &mut *at_work;
            drafter.commit(*sequence, tree, &outcome.accepted)?;
            Ok(drafter.extend(*sequence, &next)?)
        })
    }
}
