//! `config.json` of a block head.
//!
//! Three formats: of DFlash (options nested in `dflash_config`), of DSpark (options next to the
//! layers' fields), and of speculators (the layers nested in `transformer_layer_config`). Unknown
//! options are rejected by name: a misread draft head drafts badly, and the cause would be hard to
//! find.

use polydraft_engine::HiddenState;
use polydraft_text::Fields;
use serde_json::Value;

use super::net::BlockAttention;
use crate::head::hidden_states::states_after;

type Read<T> = Result<T, String>;

/// Options of a block head.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::head) struct Block {
    /// Name of the kind, such as `DFlash`.
    pub name: &'static str,
    /// Positions of a block, including that of the last token.
    pub length: usize,
    /// Whether the position of the last token has a prediction.
    pub from_anchor: bool,
    /// Mask token, whose embedding stands for an unknown token.
    pub mask: usize,
    /// One entry per layer.
    pub block_attention: Vec<BlockAttention>,
    pub link: LinkShape,
    pub convolution: Option<ConvolutionShape>,
    pub embedding_scale: f64,
    pub softcap: Option<f64>,
    /// Factor of logits, in addition to [`HeadConfig`](crate::head::config::HeadConfig)'s.
    pub logit_scale: f64,
    /// Hidden states of the target that it reads, if the file lists them.
    pub hidden_states: Option<Vec<HiddenState>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::head) enum LinkShape {
    None,
    Markov { rank: usize },
    Lattice { rank: usize, candidates: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::head) struct ConvolutionShape {
    pub taps: usize,
    /// Number of channels in a group.
    pub group: usize,
}

/// Supported values of `speculators_model_type`.
pub(in crate::head) const FORMATS: [&str; 3] = ["dflash", "dflash2", "dspark"];

/// Whether a configuration is for a block head.
pub(in crate::head) fn is_block(config: &Value) -> bool {
    let format = config.get("speculators_model_type").and_then(Value::as_str);
    config.get("dflash_config").is_some_and(Value::is_object)
        || config.get("markov_rank").is_some()
        || format.is_some_and(|format| FORMATS.contains(&format))
}

/// Supported options in `dflash_config`, in addition to those that must have a certain value.
const OPTIONS: [&str; 17] = [
    "block_size",
    "causal",
    "conv_group_size",
    "conv_kernel_size",
    "final_logit_softcapping",
    "input_embedding_scale",
    "mask_token",
    "mask_token_id",
    "markov_head_type",
    "markov_rank",
    "num_target_layers",
    "output_multiplier",
    "sample_from_anchor",
    "selector_rank",
    "selector_top_k",
    "swa_window_size",
    "target_layer_ids",
];

impl Block {
    /// Reads the options. `layer` are the fields of the layers, `layers` their number and `hidden`
    /// their width.
    pub fn read(
        value: &Value,
        fields: &Fields,
        layer: &Fields,
        [layers, hidden]: [usize; 2],
    ) -> Read<Self> {
        let nested = fields.object("dflash_config")?;
        check_nested(value.get("dflash_config"))?;
        let format = fields.get::<String>("speculators_model_type")?;
        let options = Options { fields, nested: nested.as_ref() };

        let length = options.size("block_size")?.ok_or("block_size: expected a size, got none")?;
        let mask = options.size("mask_token_id")?.ok_or("mask_token_id: expected one, got none")?;
        let rank = options.size("markov_rank")?.filter(|rank| *rank > 0);
        let kind = options.get::<String>("markov_head_type")?;
        if let Some(other) = kind.filter(|kind| rank.is_some() && kind != "vanilla") {
            return Err(format!("markov_head_type: expected vanilla, got {other:?}"));
        }
        let chosen = match (options.size("selector_rank")?, options.size("selector_top_k")?) {
            (Some(rank), Some(candidates)) => Some((rank, candidates)),
            (None, None) => None,
            _ => {
                return Err(
                    "selector_rank: expected both it and selector_top_k, got one".to_owned()
                );
            }
        };
        let link = match (rank, chosen) {
            (None, None) => LinkShape::None,
            (Some(rank), None) => LinkShape::Markov { rank },
            (None, Some((rank, candidates))) => LinkShape::Lattice { rank, candidates },
            (Some(_), Some(_)) => {
                return Err("markov_rank: expected none with selector_rank, got one".to_owned());
            }
        };
        let convolution =
            match (options.size("conv_kernel_size")?, options.size("conv_group_size")?) {
                (Some(taps), Some(group)) if hidden % group == 0 => {
                    Some(ConvolutionShape { taps, group })
                }
                (Some(_), Some(group)) => {
                    return Err(format!(
                        "conv_group_size: expected a divisor of hidden_size = {hidden}, got {group}"
                    ));
                }
                (None, None) => None,
                _ => {
                    return Err("conv_kernel_size: expected both it and conv_group_size, got one"
                        .to_owned());
                }
            };
        let is_markov = matches!(link, LinkShape::Markov { .. });
        let from_anchor = options.get::<bool>("sample_from_anchor")?;
        let from_anchor = from_anchor.unwrap_or(is_markov && format.is_none());
        if length < 2 - usize::from(from_anchor) || length > 1 << 10 {
            return Err(format!("block_size: expected from 2 to 1024, got {length}"));
        }
        let softcap = options.number("final_logit_softcapping")?.filter(|cap| *cap > 0.0);
        let logit_scale = options.number("output_multiplier")?.unwrap_or(1.0);
        if softcap.is_some() && logit_scale != 1.0 {
            // Engines disagree on the order of the two.
            return Err("final_logit_softcapping: expected none with output_multiplier".to_owned());
        }
        Ok(Self {
            name: match (link, convolution) {
                (LinkShape::Markov { .. }, _) => "DSpark",
                (LinkShape::None, None) => "DFlash",
                _ => "DFlash-2",
            },
            length,
            from_anchor,
            mask,
            block_attention: block_attention(&options, layer, layers)?,
            link,
            convolution,
            embedding_scale: options.number("input_embedding_scale")?.unwrap_or(1.0),
            softcap,
            logit_scale,
            hidden_states: hidden_states(&options)?,
        })
    }
}

/// Options next to the layers' fields and inside `dflash_config`, which take precedence.
struct Options<'a> {
    fields: &'a Fields<'a>,
    nested: Option<&'a Fields<'a>>,
}

impl Options<'_> {
    fn get<T: serde::de::DeserializeOwned>(&self, name: &str) -> Read<Option<T>> {
        let inner = self.nested.map_or(Ok(None), |nested| nested.get::<T>(name))?;
        match inner {
            Some(inner) => Ok(Some(inner)),
            None => self.fields.get(name),
        }
    }

    fn size(&self, name: &str) -> Read<Option<usize>> {
        match self.get::<usize>(name)? {
            Some(0) if name != "mask_token_id" && name != "markov_rank" => {
                Err(format!("{name}: expected at least 1, got 0"))
            }
            Some(large) if large > 1 << 24 => Err(format!("{name}: expected less, got {large}")),
            other => Ok(other),
        }
    }

    fn number(&self, name: &str) -> Read<Option<f64>> {
        match self.get::<f64>(name)? {
            Some(other) if !other.is_finite() => Err(format!("{name}: expected a number")),
            other => Ok(other),
        }
    }
}

fn check_nested(nested: Option<&Value>) -> Read<()> {
    for (name, value) in nested.and_then(Value::as_object).into_iter().flatten() {
        let expected = match name.as_str() {
            known if OPTIONS.contains(&known) => continue,
            "use_aux_hidden_state" => Value::Bool(true),
            "attention_sink_bias" | "shift_label" | "use_confidence_head" | "use_swa" => {
                Value::Bool(false)
            }
            "attention_value_scale" => Value::from(1.0),
            other => {
                return Err(format!("dflash_config: expected known options, got {other}"));
            }
        };
        if *value != expected && !value.is_null() {
            return Err(format!("dflash_config: {name}: expected {expected}, got {value}"));
        }
    }
    Ok(())
}

/// Attention within a block in each layer. By default, layers with a window are causal.
fn block_attention(options: &Options, layer: &Fields, layers: usize) -> Read<Vec<BlockAttention>> {
    let types = layer.get::<Vec<String>>("layer_types")?.unwrap_or_default();
    let causal = match layer.get::<bool>("is_causal")? {
        Some(causal) => Some(causal),
        None => options.get::<bool>("causal")?,
    };
    let is_nested = options.fields.contains("transformer_layer_config");
    let ahead = options.get::<bool>("sliding_window_non_causal")?.or(is_nested.then_some(true));
    let causal = causal.or(ahead.map(|ahead| !ahead));
    let width = match options.size("swa_window_size")? {
        Some(width) => Some(width),
        None => layer.get::<usize>("sliding_window")?,
    };
    let of = |number: usize| match types.get(number).map(String::as_str) {
        None | Some("full_attention") => {
            Ok(BlockAttention { causal: causal.unwrap_or(false), window: None })
        }
        Some("sliding_attention") => match (causal.unwrap_or(true), width) {
            (true, Some(width)) => Ok(BlockAttention { causal: true, window: Some(width) }),
            (_, None) => Err("sliding_window: expected a width, got none".to_owned()),
            // Engines disagree on the extent of a window that is not causal.
            (false, _) => Err("layer_types: expected full_attention with attention to later \
                               positions, got sliding_attention"
                .to_owned()),
        },
        Some(other) => Err(format!("layer_types: expected full_attention, got {other:?}")),
    };
    (0..layers).map(of).collect()
}

/// Hidden states of the target to read, in one of two conventions: numbered by the layers whose
/// outputs they are, or by the layers whose inputs they are.
fn hidden_states(options: &Options) -> Read<Option<Vec<HiddenState>>> {
    let outputs = options.get::<Vec<usize>>("target_layer_ids")?;
    let (field, numbers) = match outputs {
        Some(outputs) => {
            ("target_layer_ids", outputs.into_iter().map(|n| n.saturating_add(1)).collect())
        }
        None => {
            let field = "aux_hidden_state_layer_ids";
            let inputs = options.get::<Vec<usize>>(field)?;
            (field, inputs.unwrap_or_default())
        }
    };
    match numbers.is_empty() {
        true => Ok(None),
        false => states_after(numbers).map(Some).map_err(|e| format!("{field}: {e}")),
    }
}
