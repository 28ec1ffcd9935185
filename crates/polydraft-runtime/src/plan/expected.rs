//! Expected costs and gains of a plan's models, before any weights are read, and the default draft
//! that they decide.

use anyhow::Result;
use polydraft::policy::{Costs, DraftShape, PassShape};
use polydraft_models::{Bytes, Precision};

use super::Plan;
use crate::costs::{self, Gains};
use crate::draft::{Draft, Ngrams};
use crate::message::{OptionName, message};
use crate::model_files::weight_bytes;
use crate::sidecars::{self, Sidecar};

/// Bytes per second that a pass reads, and weights per second that are quantised, on two threads.
const MEMORY_SPEED: f64 = 15e9;
const QUANTISING_SPEED: f64 = 2e8;
/// Bytes per second at which a stored copy is read.
const READING_SPEED: f64 = 1e9;

/// Figures that decide between a quantised self-draft and n-grams.
struct Choice {
    /// Expected speed-ups over plain decoding, by a self-draft and by n-grams.
    gains: [f64; 2],
    /// Maximum number of tokens of the output, if known.
    tokens: Option<usize>,
    /// Bytes that a pass of the target reads.
    pass_bytes: u64,
    /// Weights that a copy would be made of.
    weights: u64,
    /// Bytes of the copy, if it is stored.
    stored_bytes: Option<u64>,
}

impl Choice {
    /// Returns whether a self-draft is expected to be faster, the making of the copy included.
    fn is_self_draft_faster(&self) -> bool {
        let [with_copy, with_ngrams] = self.gains;
        let makes = match self.stored_bytes {
            Some(bytes) => bytes as f64 / READING_SPEED,
            None => self.weights as f64 / QUANTISING_SPEED,
        };
        let plain = self.tokens.map(|n| n as f64 * self.pass_bytes as f64 / MEMORY_SPEED);
        with_copy > with_ngrams
            && plain.is_none_or(|plain| makes + plain / with_copy < plain / with_ngrams.max(0.1))
    }
}

/// Expected speed-up over plain decoding, for targets of this number of bytes per weight.
fn expected_gain(is_self_draft: bool, bytes_per_weight: f64) -> f64 {
    match (is_self_draft, bytes_per_weight) {
        (true, 3.0..) => 2.0,
        (true, 1.5..) => 1.4,
        // In 8 bits and fewer a self-draft gains less than n-grams do.
        (true, _) => 1.0,
        (false, _) => 1.15,
    }
}

impl Plan<'_> {
    /// Returns whether a quantised self-draft is expected to save more time than making it takes,
    /// and more than n-grams: by estimated costs and, without a seed, by the output's maximum
    /// length, by stored copies and by the gains of earlier outputs.
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
            let expected = expected_gain(is_self_draft, per_weight);
            let gains = Gains::new(&self.target.path, options.dtype, draft.to_string());
            if options.is_seeded { expected } else { gains.of(&draft.to_string(), expected) }
        });
        let load_options = self.native().load_options(&self.target.path, Some(kind))?;
        let copies = crate::copies::cache_folder(options.copies.as_deref());
        let file = copies.and_then(|all| all.file_for(&opened.description, &load_options));
        let is_stored = !options.is_seeded && file.is_some_and(|file| file.path().exists());
        let choice = Choice {
            gains,
            tokens: options.expected_tokens.filter(|_| !options.is_seeded),
            pass_bytes: shape.weight_bytes,
            weights: opened.description.parameters,
            stored_bytes: is_stored.then_some(bytes.0),
        };
        Ok(choice.is_self_draft_faster())
    }

    /// Chooses a draft that lies beside the target, unless another default promises more.
    pub(super) fn take_sidecar(&mut self, has_mtp: bool) -> Option<Draft> {
        let other = if has_mtp { Draft::Mtp } else { Draft::Ngrams(Ngrams::default()) };
        let sidecar = self.sidecar(&other)?;
        let kind = sidecar.kind;
        self.listener.note(&message![
            format!(
                "note: no draft was given: drafting with {kind}, which lies beside the model ("
            ),
            OptionName::Draft.with(&sidecar.draft),
            ")",
        ]);
        self.is_sidecar = true;
        Some(sidecar.draft)
    }

    /// Replaces a draft that nobody named and that cannot be loaded.
    pub fn drop_sidecar(&mut self, problem: &anyhow::Error) {
        let draft = &self.draft;
        let note = format!("note: {draft} cannot draft: {problem:#}; drafting with n-grams");
        self.listener.note(&note.into());
        self.draft = Draft::Ngrams(Ngrams::default());
        (self.is_sidecar, self.mixes_ngrams) = (false, false);
    }

    /// Returns a draft that lies beside the target, unless this draft is expected to gain more.
    fn sidecar(&self, other: &Draft) -> Option<Sidecar> {
        let (path, opened) = (&self.target.path, self.opened.as_ref()?);
        let gain = |draft: &Draft, expected| match self.options.is_seeded {
            true => expected,
            false => {
                let name = draft.to_string();
                Gains::new(path, self.options.dtype, name.clone()).of(&name, expected)
            }
        };
        let expected = match other {
            Draft::Mtp => sidecars::EXPECTED_GAIN,
            _ => expected_gain(false, 0.0),
        };
        let found = sidecars::find(path, &opened.description, gain, self.listener)?;
        (found.gain > gain(other, expected)).then_some(found)
    }

    /// Returns the costs of steps with a draft of this shape, estimated from the target's size.
    pub fn estimated_costs(&self, draft: DraftShape) -> Costs {
        let unknown = || {
            let weight_bytes = weight_bytes(&self.target.path);
            let (bytes_per_weight, cache_bytes, measured) = (None, 0, None);
            PassShape { weight_bytes, bytes_per_weight, cache_bytes, measured }
        };
        let target = self.target_shape().unwrap_or_else(unknown);
        Costs::estimated(&target, draft)
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
    pub fn draft_shape(&self) -> DraftShape {
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
            Some(Draft::Remote(_)) => DraftShape::Remote,
            _ => DraftShape::Ngrams,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models of 135 million and of 8 billion parameters, by bytes per weight.
    #[test]
    fn self_drafts_are_for_wide_weights_and_long_outputs() {
        for (weights, bytes_per_weight, tokens, is_stored, expected) in [
            (135_000_000, 4.0, Some(8), false, false),
            (135_000_000, 4.0, Some(32), false, false),
            (135_000_000, 4.0, Some(32), true, true),
            (135_000_000, 4.0, Some(128), false, true),
            (135_000_000, 4.0, None, false, true),
            (135_000_000, 2.0, Some(128), false, false),
            (135_000_000, 2.0, Some(128), true, true),
            (135_000_000, 2.0, Some(512), false, true),
            (135_000_000, 2.0, None, false, true),
            (135_000_000, 1.06, None, true, false),
            (135_000_000, 0.72, None, true, false),
            (8_000_000_000, 4.0, Some(8), false, false),
            (8_000_000_000, 4.0, Some(128), false, true),
            (8_000_000_000, 2.0, Some(128), false, false),
            (8_000_000_000, 2.0, Some(512), false, true),
            (8_000_000_000, 0.56, None, false, false),
        ] {
            let choice = Choice {
                gains: [true, false].map(|is_self| expected_gain(is_self, bytes_per_weight)),
                tokens,
                pass_bytes: (weights as f64 * bytes_per_weight) as u64,
                weights,
                stored_bytes: is_stored.then_some(weights * 3 / 4),
            };
            let case = format!("{weights} of {bytes_per_weight} bytes, {tokens:?}, {is_stored}");
            assert_eq!(choice.is_self_draft_faster(), expected, "{case}");
        }
    }
}
