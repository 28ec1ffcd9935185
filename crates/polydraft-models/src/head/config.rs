//! `config.json` of a draft head: its kind, and all options that change the computation.
//!
//! Three formats: of the original EAGLE heads, of SpecForge (options nested in `eagle_config`), and
//! of speculators (the layer nested in `transformer_layer_config`). Unknown options are rejected by
//! name: a misread draft head still gives output with the target's distribution, but slowly, and
//! the cause would be hard to find.

use std::path::Path;

use polydraft_engine::HiddenState;
use polydraft_text::Fields;
use serde_json::Value;

use super::block::config::{Block, FORMATS, is_block};
use super::hidden_states::states_after;
use super::source;
use crate::config::{Biases, Config, Feedback, Positions};
use crate::error::{Error, Result};
use crate::family::common::{Family, llama_like};
use crate::names::{LLAMA_NAMES, Names};

/// Names of the tensors after [renaming](super::load) to a common form.
pub(super) const NAMES: Names = Names {
    embedding: "embed_tokens",
    layers: "layers",
    norm: "norm",
    lm_head: "lm_head",
    ..LLAMA_NAMES
};

/// Configuration of a draft head.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HeadConfig {
    /// Configuration of its decoder layers, with the target's vocabulary.
    pub layers: Config,
    pub kind: Kind,
    /// Hidden width of the target, if the file has it.
    pub target_hidden: Option<usize>,
    /// Hidden states that it reads, if the file lists them.
    pub hidden_states: Option<Vec<HiddenState>>,
    /// Number of hidden states that it reads, if the file has it.
    pub hidden_state_count: Option<usize>,
    /// Size of the draft vocabulary; `None` for the target's whole vocabulary.
    pub draft_vocabulary: Option<usize>,
    /// Whether the projection of the inputs has a bias, if the file has the field.
    pub bias: Option<bool>,
    /// Factor of logits.
    pub logit_scale: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Li et al. 2024; EAGLE-2 has the same weights.
    Eagle1,
    /// Li et al. 2025, with later options.
    Eagle3 { norms: FeatureNorms, residual: Residual, feedback: Feedback },
    /// Several tokens in one pass.
    Block(Block),
}

/// Norms of the target's states before they are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeatureNorms {
    None,
    /// One norm of all states concatenated.
    Concatenated,
    /// One norm per state.
    PerState,
}

/// Residual stream that the first block adds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residual {
    State,
    /// `norm_before_residual`
    NormedState,
}

type Read<T> = std::result::Result<T, String>;

impl HeadConfig {
    pub fn read(directory: &Path, fc_columns: Option<usize>) -> Result<Self> {
        let (json, divisors) = source::config_and_divisors(directory)?;
        let invalid = |problem| Error::File { path: source::config_path(directory), problem };
        let mut config = Self::parse(&json, fc_columns).map_err(invalid)?;
        if let (Positions::Rotary(rope), Some(divisors)) = (&mut config.layers.positions, divisors)
        {
            rope.divisors = divisors;
            config.layers.check().map_err(invalid)?;
        }
        Ok(config)
    }

    /// Parses a configuration; `fc_columns` decides the kind if the fields do not.
    fn parse(value: &Value, fc_columns: Option<usize>) -> Read<Self> {
        let fields = Fields::new(value)?;
        let nested = fields.object("eagle_config")?;
        if let Some(nested) = value.get("eagle_config").and_then(Value::as_object) {
            check_nested(nested)?;
        }
        let format = fields.get::<String>("speculators_model_type")?;
        let is_block = is_block(value);
        if let Some(other) = format.as_ref().filter(|format| *format != "eagle3" && !is_block) {
            let known = FORMATS.join(", ");
            return Err(format!("speculators_model_type: expected eagle3, {known}, got {other:?}"));
        }
        let layer = match fields.object("transformer_layer_config")? {
            Some(layer) => layer,
            None if format.is_some() => {
                return Err("transformer_layer_config: expected an object, got none".to_owned());
            }
            None => fields,
        };
        let mut layers = llama_like(&FAMILY, &layer)?;
        layers.names = &NAMES;
        layers.tied = false;
        let bias = layer.flag("attention_bias", false)?;
        layers.biases = Biases {
            query_key_value: bias,
            output: bias,
            feed_forward: layer.flag("mlp_bias", false)?,
        };
        if !is_block {
            reject_windows(&layer)?;
        }
        let draft_vocabulary = fields.get::<usize>("draft_vocab_size")?;
        if let Some(got) = draft_vocabulary.filter(|size| !(1..=layers.vocabulary).contains(size)) {
            let max = layers.vocabulary;
            return Err(format!(
                "draft_vocab_size: expected from 1 to vocab_size = {max}, got {got}"
            ));
        }
        let first = !is_block
            && draft_vocabulary.is_none()
            && format.is_none()
            && fc_columns == Some(2 * layers.hidden);
        let shape = [layers.layers, layers.hidden];
        let kind = match () {
            () if is_block => Kind::Block(Block::read(value, &fields, &layer, shape)?),
            () if first => Kind::Eagle1,
            () => eagle3(&fields, nested.as_ref(), format.is_some())?,
        };
        layers.final_norm = !first;
        let logit_scale = fields.get::<f64>("logit_scale")?.unwrap_or(1.0);
        if !logit_scale.is_finite() {
            return Err(format!("logit_scale: expected a number, got {logit_scale}"));
        }
        layers.check()?;
        Ok(Self {
            target_hidden: fields.get("target_hidden_size")?,
            hidden_states: match &kind {
                Kind::Eagle1 => Some(vec![HiddenState::Output]),
                Kind::Eagle3 { .. } => hidden_states(&fields, nested.as_ref())?,
                Kind::Block(block) => block.hidden_states.clone(),
            },
            hidden_state_count: fields.get("num_aux_hidden_states")?,
            draft_vocabulary,
            bias: fields.get("bias")?,
            logit_scale,
            layers,
            kind,
        })
    }
}

/// Family for reading the layers; the name appears in messages.
const FAMILY: Family = Family { architecture: "draft head", read: llama_like };

fn eagle3(fields: &Fields, nested: Option<&Fields>, speculators: bool) -> Read<Kind> {
    let anywhere = |name: &str| -> Read<bool> {
        let inner = nested.map_or(Ok(false), |nested| nested.flag(name, false))?;
        Ok(inner || fields.flag(name, false)?)
    };
    let each = anywhere("fc_norm")? || anywhere("use_aux_norm")?;
    let norms = match (anywhere("norm_before_fc")?, each) {
        (true, true) => {
            return Err("norm_before_fc: expected false with fc_norm, got true".to_owned());
        }
        (true, false) => FeatureNorms::Concatenated,
        (false, true) => FeatureNorms::PerState,
        (false, false) => FeatureNorms::None,
    };
    // Engines disagree on the default.
    if speculators && fields.get::<bool>("norm_before_residual")?.is_none() {
        return Err(
            "norm_before_residual: expected true or false in this format, got none".to_owned()
        );
    }
    let residual =
        if anywhere("norm_before_residual")? { Residual::NormedState } else { Residual::State };
    let feedback =
        if anywhere("norm_output")? { Feedback::AfterNorm } else { Feedback::BeforeNorm };
    Ok(Kind::Eagle3 { norms, residual, feedback })
}

/// Hidden states to read, in one of two conventions: at the top level number n is the input of
/// layer n, inside `eagle_config` the output of layer n.
fn hidden_states(fields: &Fields, nested: Option<&Fields>) -> Read<Option<Vec<HiddenState>>> {
    const FIELD: &str = "eagle_aux_hidden_state_layer_ids";
    let inner = nested.map_or(Ok(None), |nested| nested.get::<Vec<usize>>(FIELD))?;
    let numbers = match fields.get::<Vec<usize>>(FIELD)? {
        Some(inputs) => inputs,
        None => {
            inner.unwrap_or_default().into_iter().map(|output| output.saturating_add(1)).collect()
        }
    };
    match numbers.is_empty() {
        true => Ok(None),
        false => states_after(numbers).map(Some).map_err(|e| format!("{FIELD}: {e}")),
    }
}

/// Rejects options in `eagle_config` that the forward pass does not support.
fn check_nested(nested: &serde_json::Map<String, Value>) -> Read<()> {
    for (name, value) in nested {
        let expected = match name.as_str() {
            "eagle_aux_hidden_state_layer_ids"
            | "norm_before_fc"
            | "norm_before_residual"
            | "norm_output"
            | "fc_norm"
            | "use_aux_norm" => continue,
            "use_aux_hidden_state"
            | "use_input_layernorm_in_first_layer"
            | "use_last_layernorm" => true,
            "use_mtp_layernorm" => false,
            other => return Err(format!("eagle_config: expected known options, got {other}")),
        };
        if *value != Value::Bool(expected) {
            return Err(format!("eagle_config: {name}: expected {expected}, got {value}"));
        }
    }
    Ok(())
}

fn reject_windows(layer: &Fields) -> Read<()> {
    let types = layer.get::<Vec<String>>("layer_types")?.unwrap_or_default();
    match types.iter().find(|kind| *kind != "full_attention") {
        Some(other) => Err(format!("layer_types: expected full_attention, got {other:?}")),
        None => Ok(()),
    }
}
