//! Quantised self-draft: the target's model in fewer bits, which drafts for it. For types whose
//! scales are searched for, a sample text is read first to weigh the rounding errors
//! ([`importance`](crate::importance)).

use std::sync::Arc;

use polydraft_kernels::Mask;

use super::Transformer;
use super::layer::Layer;
use super::matrix_mapper::MatrixMapper;
use super::pass::SequenceTokens;
use super::per_layer::PerLayer;
use crate::error::Result;
use crate::importance::{Importance, SAMPLE_TOKENS};
use crate::linear::{Linear, Matrix};
use crate::precision::Precision;
use crate::self_draft_reader::SelfDraftReader;

/// Number of sample tokens whose logits are computed: enough to know the inputs of the output
/// matrix.
const SAMPLE_LOGITS: usize = 32;

/// Names of matrices outside the layers.
const PROJECTIONS: [&str; 2] = ["projection_in", "projection_out"];
const LM_HEAD: &str = "head";
const PER_LAYER: &str = "per_layer";

impl Transformer {
    /// Like [`rounded`](Self::rounded), but weighs errors by the inputs of a sample text, if scales
    /// are searched for.
    pub fn rounded_with_sample(&mut self, precision: Precision, tokens: &[u32]) -> Result<Self> {
        let tokens = &tokens[..tokens.len().min(SAMPLE_TOKENS).min(self.config.context)];
        if !precision.searches_scales() || tokens.is_empty() {
            return self.rounded(precision);
        }
        self.record_inputs(|| Some(Importance::default()));
        let read = self.read_sample(tokens);
        let copy = read.and_then(|()| self.rounded(precision));
        self.record_inputs(|| None);
        copy
    }

    /// Starts or stops recording the inputs of all matrices: `inputs` makes the recorder of one.
    fn record_inputs(&mut self, inputs: impl Fn() -> Option<Importance>) {
        let per_layer = self.per_layer.iter_mut().map(|all| &mut all.projection);
        for linear in self.layers.iter_mut().flat_map(Layer::linears_mut).chain(per_layer) {
            linear.inputs = inputs();
        }
        self.head_inputs = inputs();
    }

    /// Computes a forward pass over the sample.
    fn read_sample(&self, tokens: &[u32]) -> Result<()> {
        let mut cache = self.new_cache();
        let masks =
            (0..tokens.len()).map(|slot| Mask { context: slot, path: vec![slot] }).collect();
        let wanted = tokens.len().min(SAMPLE_LOGITS);
        let sequence = SequenceTokens {
            cache: &mut cache,
            start: 0,
            tokens: tokens.to_vec(),
            masks,
            wanted,
            committed: tokens.len(),
        };
        self.forward(&mut [sequence], Vec::new())?;
        Ok(())
    }

    /// Rounds every matrix of the layers and the output matrix to `precision`, from the numbers
    /// that are stored here; shares the rest: the embedding, norms and biases.
    pub fn rounded(&self, precision: Precision) -> Result<Self> {
        self.map_matrices(|_, matrix, inputs| {
            let weights = inputs.and_then(Importance::weights);
            matrix.rounded(precision, weights.as_deref())
        })
    }

    /// Whether one of the two was made from the other.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.embedding, &other.embedding)
    }

    /// Loads the self-draft from the file where it was cached.
    pub fn load_cached(&self, precision: Precision, file: &SelfDraftReader) -> Result<Self> {
        self.map_matrices(|name, matrix, _| matrix.load_cached(name, precision, file))
    }

    /// Bytes of the matrices that a self-draft does not share with its model, by the names that
    /// [`load_cached`](Self::load_cached) uses.
    pub fn stored_matrices(&self) -> Vec<(String, &[u8])> {
        let mut all = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            for (name, matrix) in layer.matrices() {
                all.extend(matrix.bytes_by_name(&format!("{number}.{name}")));
            }
        }
        for (name, matrix) in PROJECTIONS.into_iter().zip(self.projections.iter().flatten()) {
            all.extend(matrix.bytes_by_name(name));
        }
        if let Some(per_layer) = &self.per_layer {
            all.extend(per_layer.projection.matrix.bytes_by_name(PER_LAYER));
        }
        all.extend(self.lm_head().bytes_by_name(LM_HEAD));
        all
    }

    /// Copy in which every matrix of the layers and the output matrix is made by `make`, given its
    /// name, its original and the statistics of its inputs.
    fn map_matrices(
        &self,
        make: impl Fn(&str, &Matrix, Option<&Importance>) -> Result<Matrix>,
    ) -> Result<Self> {
        let linear = |name: &str, linear: &Linear| {
            let matrix = make(name, &linear.matrix, linear.inputs.as_ref())?;
            Ok(Linear { matrix, bias: linear.bias.clone(), inputs: None })
        };
        let layer = |(number, layer): (usize, &Layer)| -> Result<Layer> {
            let linear =
                |name: &str, original: &Linear| linear(&format!("{number}.{name}"), original);
            let matrix =
                |name: &str, original: &Matrix| make(&format!("{number}.{name}"), original, None);
            layer.map_matrices(&MatrixMapper { linear: &linear, matrix: &matrix })
        };
        let projections = match &self.projections {
            None => None,
            Some([input, output]) => {
                Some([make(PROJECTIONS[0], input, None)?, make(PROJECTIONS[1], output, None)?])
            }
        };
        let per_layer = match &self.per_layer {
            None => None,
            Some(PerLayer { table, projection, norm, width }) => {
                let (table, projection) = (Arc::clone(table), linear(PER_LAYER, projection)?);
                Some(PerLayer { table, projection, norm: norm.clone(), width: *width })
            }
        };
        Ok(Self {
            config: self.config.clone(),
            embedding: Arc::clone(&self.embedding),
            projections,
            per_layer,
            positions: self.positions.clone(),
            layers: self.layers.iter().enumerate().map(layer).collect::<Result<_>>()?,
            norm: self.norm.clone(),
            head: Some(Arc::new(make(LM_HEAD, self.lm_head(), self.head_inputs.as_ref())?)),
            head_inputs: None,
            captured: Vec::new(),
            cache_type: self.cache_type,
        })
    }
}
