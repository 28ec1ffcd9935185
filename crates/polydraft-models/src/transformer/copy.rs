//! The quantised self-draft: the same model in fewer bits, which drafts for the target. Where
//! scales are searched for, a sample text is read first that shows which errors count
//! ([`importance`](crate::importance)).

use std::sync::Arc;

use polydraft_kernels::Mask;

use super::Transformer;
use super::layer::Layer;
use super::make::Make;
use super::pass::Part;
use super::per_layer::PerLayer;
use crate::copy_reader::CopyReader;
use crate::error::Result;
use crate::importance::{Importance, TOKENS};
use crate::linear::{Linear, Matrix};
use crate::precision::Precision;

/// Tokens whose logits are made when the sample is read: enough to know the inputs of the matrix
/// that makes them.
const LOGITS: usize = 32;

/// Names of matrices outside the layers.
const PROJECTIONS: [&str; 2] = ["projection_in", "projection_out"];
const HEAD: &str = "head";
const PER_LAYER: &str = "per_layer";

impl Transformer {
    /// As [`rounded`](Self::rounded), with errors weighed by the inputs of a sample text, if the
    /// type can make use of that.
    pub fn rounded_for(&mut self, precision: Precision, tokens: &[u32]) -> Result<Self> {
        let tokens = &tokens[..tokens.len().min(TOKENS).min(self.config.context)];
        if !precision.is_searched() || tokens.is_empty() {
            return self.rounded(precision);
        }
        self.listen(|| Some(Importance::default()));
        let read = self.read(tokens);
        let copy = read.and_then(|()| self.rounded(precision));
        self.listen(|| None);
        copy
    }

    /// Records the inputs of matrices from now on.
    fn listen(&mut self, inputs: impl Fn() -> Option<Importance>) {
        let per_layer = self.per_layer.iter_mut().map(|all| &mut all.from);
        for linear in self.layers.iter_mut().flat_map(Layer::products_mut).chain(per_layer) {
            linear.inputs = inputs();
        }
        self.head_inputs = inputs();
    }

    fn read(&self, tokens: &[u32]) -> Result<()> {
        let mut cache = self.new_cache();
        let masks =
            (0..tokens.len()).map(|place| Mask { context: place, path: vec![place] }).collect();
        let wanted = tokens.len().min(LOGITS);
        let part = Part {
            cache: &mut cache,
            start: 0,
            tokens: tokens.to_vec(),
            masks,
            wanted,
            settled: tokens.len(),
        };
        self.forward(&mut [part], Vec::new())?;
        Ok(())
    }

    /// Every matrix that is multiplied with rounded anew, from the numbers that are stored here;
    /// all else is shared: the embedding, norms, biases.
    pub fn rounded(&self, precision: Precision) -> Result<Self> {
        self.with(|_, matrix, inputs| {
            let weights = inputs.and_then(Importance::weights);
            matrix.rounded(precision, weights.as_deref())
        })
    }

    /// Whether it was made so of the other one, or the other one of it.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.embedding, &other.embedding)
    }

    /// The same from the file where it was cached.
    pub fn kept(&self, precision: Precision, file: &CopyReader) -> Result<Self> {
        self.with(|name, matrix, _| matrix.kept(name, precision, file))
    }

    /// The matrices that a self-draft has of its own as they lie in memory, by the names that
    /// [`kept`](Self::kept) asks for.
    pub fn held_matrices(&self) -> Vec<(String, &[u8])> {
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
            all.extend(per_layer.from.matrix.bytes_by_name(PER_LAYER));
        }
        all.extend(self.head().bytes_by_name(HEAD));
        all
    }

    /// The same with other matrices to multiply with, each made of its name, of itself and of what
    /// is known of its inputs.
    fn with(
        &self,
        make: impl Fn(&str, &Matrix, Option<&Importance>) -> Result<Matrix>,
    ) -> Result<Self> {
        let linear = |name: &str, of: &Linear| {
            let matrix = make(name, &of.matrix, of.inputs.as_ref())?;
            Ok(Linear { matrix, bias: of.bias.clone(), inputs: None })
        };
        let layer = |(number, of): (usize, &Layer)| -> Result<Layer> {
            let linear = |name: &str, of: &Linear| linear(&format!("{number}.{name}"), of);
            let matrix = |name: &str, of: &Matrix| make(&format!("{number}.{name}"), of, None);
            of.with(&Make { linear: &linear, matrix: &matrix })
        };
        let projections = match &self.projections {
            None => None,
            Some([into, out]) => {
                Some([make(PROJECTIONS[0], into, None)?, make(PROJECTIONS[1], out, None)?])
            }
        };
        let per_layer = match &self.per_layer {
            None => None,
            Some(PerLayer { table, from, norm, width }) => {
                let (table, from) = (Arc::clone(table), linear(PER_LAYER, from)?);
                Some(PerLayer { table, from, norm: norm.clone(), width: *width })
            }
        };
        Ok(Self {
            config: self.config.clone(),
            embedding: Arc::clone(&self.embedding),
            projections,
            per_layer,
            place: self.place.clone(),
            layers: self.layers.iter().enumerate().map(layer).collect::<Result<_>>()?,
            norm: self.norm.clone(),
            head: Some(Arc::new(make(HEAD, self.head(), self.head_inputs.as_ref())?)),
            head_inputs: None,
            watched: Vec::new(),
            held: self.held,
        })
    }
}
