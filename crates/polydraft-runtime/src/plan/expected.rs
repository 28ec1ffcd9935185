//! Expected costs and gains of a plan's models, before any weights are read.

use anyhow::Result;
use polydraft::policy::Costs;
use polydraft_models::{Bytes, Precision};

use super::Plan;
use crate::costs::{self, DraftShape, Gains, PassShape};
use crate::draft::{Draft, Ngrams};
use crate::model_files::weight_bytes;

impl Plan<'_> {
    /// Returns whether a quantised self-draft is expected to save more time than making it takes,
    /// and more than n-grams: by estimated costs and, without a seed, by stored copies and by the
    /// gains of earlier outputs.
    pub(super) fn self_draft_pays(&self, kind: Precision, bytes: Bytes) -> Result<bool> {
        let options = self.options;
        let (Some(opened), Some(shape)) = (&self.opened, self.target_shape()) else {
            return Ok(false);
        };
        // A named type of the draft is a wish for a self-draft.
        if options.draft_dtype.is_some() {
            return Ok(true);
        }
        let drafts = [Draft::SelfDraft(Some(kind)), Draft::Ngrams(Ngrams::default())];
        let gains = drafts.map(|draft| {
            let per_weight = shape.bytes_per_weight.unwrap_or(0.0);
            let is_self_draft = matches!(draft, Draft::SelfDraft(_));
            let expected = costs::expected_gain(is_self_draft, per_weight);
            let gains = Gains::new(&self.target.path, options.dtype, draft.to_string());
            if options.is_seeded { expected } else { gains.of(&draft.to_string(), expected) }
        });
        let load_options = self.native().load_options(&self.target.path, Some(kind))?;
        let copies = crate::copies::cache_folder(options.copies.as_deref());
        let file = copies.and_then(|all| all.file_for(&opened.description, &load_options));
        let is_stored = !options.is_seeded && file.is_some_and(|file| file.path().exists());
        let weights = opened.description.parameters;
        let makes = costs::copy_seconds(weights, is_stored.then_some(bytes.0));
        let plain = costs::pass_seconds(shape.weight_bytes);
        let [copied, ngrams] =
            gains.map(|gain| options.expected_tokens.map(|n| n as f64 * plain / gain.max(0.1)));
        Ok(gains[0] > gains[1]
            && copied.zip(ngrams).is_none_or(|(copied, ngrams)| copied + makes < ngrams))
    }

    /// Returns the costs of steps, estimated from the sizes of target and draft.
    pub fn estimated_costs(&self) -> Costs {
        let unknown = || {
            let weight_bytes = weight_bytes(&self.target.path);
            let (bytes_per_weight, cache_bytes, measured) = (None, 0, None);
            PassShape { weight_bytes, bytes_per_weight, cache_bytes, measured }
        };
        let target = self.target_shape().unwrap_or_else(unknown);
        costs::estimate(&target, self.draft_shape())
    }

    /// Returns what a pass of the target reads; `None` on llama.cpp.
    fn target_shape(&self) -> Option<PassShape> {
        let (path, opened) = (&self.target.path, self.opened.as_ref()?);
        let (description, precision) = (&opened.description, self.options.precision(path));
        let (parameters, active) = (description.parameters.max(1), description.active_parameters);
        let bytes = description.weight_bytes(precision) as f64;
        let kind = self.native().cache().unwrap_or_default();
        Some(PassShape {
            weight_bytes: (bytes * active as f64 / parameters as f64) as u64,
            bytes_per_weight: Some(bytes / parameters as f64),
            cache_bytes: description.cache_bytes(1, kind),
            measured: costs::stored_passes(path, precision),
        })
    }

    /// Returns what determines the costs of the draft; of several, those of the first.
    fn draft_shape(&self) -> DraftShape {
        let ratio = |draft: u64, target: u64| draft as f64 / target.max(1) as f64;
        match self.draft.components().first() {
            Some(Draft::Model(files)) => {
                let bytes = ratio(weight_bytes(&files.path), weight_bytes(&self.target.path));
                DraftShape::Model(bytes)
            }
            Some(Draft::SelfDraft(Some(kind))) => {
                let bytes = self.opened.as_ref().map(|opened| {
                    let target = self.options.precision(&self.target.path);
                    let bytes = |kind| opened.description.self_draft_bytes(kind);
                    ratio(bytes(*kind), bytes(target))
                });
                DraftShape::SelfDraft(bytes.unwrap_or(0.5))
            }
            Some(Draft::Head(_) | Draft::BlockHead(_) | Draft::Assistant(_) | Draft::Mtp) => {
                DraftShape::Head
            }
            _ => DraftShape::Ngrams,
        }
    }
}
