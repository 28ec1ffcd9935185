//! What `config.json` says of a block head.
//!
//! Three formats: as DFlash's authors publish (choices nested in `dflash_config`), as DSpark's do
//! (choices beside the layers' fields), and that of speculators (the layers nested in
//! `transformer_layer_config`). What is not known is refused by name: a head that is read wrongly
//! drafts badly, and nobody would notice why.

use polydraft_engine::HiddenState;
use polydraft_text::Fields;
use serde_json::Value;

use super::net::Sight;
use crate::head::reads::in_order;

type Read<T> = Result<T, String>;

/// What is a block head's alone.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::head) struct Block {
    /// Such as `DFlash`.
    pub name: &'static str,
    /// Positions, the last token's included.
    pub length: usize,
    /// Whether the last token's position predicts too.
    pub from_anchor: bool,
    /// The token whose embedding stands for "not known".
    pub mask: usize,
    /// Of each layer.
    pub sights: Vec<Sight>,
    pub link: LinkShape,
    pub convolution: Option<ConvolutionShape>,
    pub embedding_scale: f64,
    pub softcap: Option<f64>,
    /// Logits are multiplied by this, besides what the head's other fields say.
    pub logit_scale: f64,
    /// The layers of the target that it reads, if the file says so.
    pub reads: Option<Vec<HiddenState>>,
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
    /// Channels that share a number.
    pub group: usize,
}

/// As speculators names what is read here.
pub(in crate::head) const FORMATS: [&str; 3] = ["dflash", "dflash2", "dspark"];

/// Whether a configuration is that of a block head.
pub(in crate::head) fn is_block(config: &Value) -> bool {
    let format = config.get("speculators_model_type").and_then(Value::as_str);
    config.get("dflash_config").is_some_and(Value::is_object)
        || config.get("markov_rank").is_some()
        || format.is_some_and(|format| FORMATS.contains(&format))
}

/// Choices that may stand in `dflash_config`, besides those that must have one value.
const CHOICES: [&str; 17] = [
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
    /// `layer` are the fields of the layers, of which there are so many, of such a width.
    pub fn read(
        value: &Value,
        fields: &Fields,
        layer: &Fields,
        [layers, hidden]: [usize; 2],
    ) -> Read<Self> {
        let nested = fields.object("dflash_config")?;
        check_nested(value.get("dflash_config"))?;
        let format = fields.get::<String>("speculators_model_type")?;
        let said = Said { fields, nested: nested.as_ref() };

        let length = said.size("block_size")?.ok_or("block_size: expected a size, got none")?;
        let mask = said.size("mask_token_id")?.ok_or("mask_token_id: expected one, got none")?;
        let rank = said.size("markov_rank")?.filter(|rank| *rank > 0);
        let kind = said.get::<String>("markov_head_type")?;
        if let Some(other) = kind.filter(|kind| rank.is_some() && kind != "vanilla") {
            return Err(format!("markov_head_type: expected vanilla, got {other:?}"));
        }
        let chosen = match (said.size("selector_rank")?, said.size("selector_top_k")?) {
            (Some(rank), Some(candidates)) => Some((rank, candidates)),
            (None, None) => None,
            _ => return Err("selector_rank: expected one beside selector_top_k".to_owned()),
        };
        let link = match (rank, chosen) {
            (None, None) => LinkShape::None,
            (Some(rank), None) => LinkShape::Markov { rank },
            (None, Some((rank, candidates))) => LinkShape::Lattice { rank, candidates },
            (Some(_), Some(_)) => {
                return Err("markov_rank: expected none beside selector_rank, got one".to_owned());
            }
        };
        let convolution = match (said.size("conv_kernel_size")?, said.size("conv_group_size")?) {
            (Some(taps), Some(group)) if hidden % group == 0 => {
                Some(ConvolutionShape { taps, group })
            }
            (Some(_), Some(group)) => {
                return Err(format!(
                    "conv_group_size: expected a part of hidden_size = {hidden}, got {group}"
                ));
            }
            (None, None) => None,
            _ => return Err("conv_kernel_size: expected one beside conv_group_size".to_owned()),
        };
        let is_markov = matches!(link, LinkShape::Markov { .. });
        let from_anchor = said.get::<bool>("sample_from_anchor")?;
        let from_anchor = from_anchor.unwrap_or(is_markov && format.is_none());
        if length < 2 - usize::from(from_anchor) || length > 1 << 10 {
            return Err(format!("block_size: expected from 2 to 1024, got {length}"));
        }
        let softcap = said.number("final_logit_softcapping")?.filter(|cap| *cap > 0.0);
        let logit_scale = said.number("output_multiplier")?.unwrap_or(1.0);
        if softcap.is_some() && logit_scale != 1.0 {
            // Engines disagree on which comes first.
            return Err(
                "final_logit_softcapping: expected none beside output_multiplier".to_owned()
            );
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
            sights: sights(&said, layer, layers)?,
            link,
            convolution,
            embedding_scale: said.number("input_embedding_scale")?.unwrap_or(1.0),
            softcap,
            logit_scale,
            reads: reads(&said)?,
        })
    }
}

/// Fields beside the layers' own and inside `dflash_config`, which overrule those.
struct Said<'a> {
    fields: &'a Fields<'a>,
    nested: Option<&'a Fields<'a>>,
}

impl Said<'_> {
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
            known if CHOICES.contains(&known) => continue,
            "use_aux_hidden_state" => Value::Bool(true),
            "attention_sink_bias" | "shift_label" | "use_confidence_head" | "use_swa" => {
                Value::Bool(false)
            }
            "attention_value_scale" => Value::from(1.0),
            other => {
                return Err(format!("dflash_config: expected no unknown choice, got {other}"));
            }
        };
        if *value != expected && !value.is_null() {
            return Err(format!("dflash_config: {name}: expected {expected}, got {value}"));
        }
    }
    Ok(())
}

/// What positions see in each layer. Where nothing is said, layers with a window look back only.
fn sights(said: &Said, layer: &Fields, layers: usize) -> Read<Vec<Sight>> {
    let types = layer.get::<Vec<String>>("layer_types")?.unwrap_or_default();
    let causal = match layer.get::<bool>("is_causal")? {
        Some(causal) => Some(causal),
        None => said.get::<bool>("causal")?,
    };
    let is_nested = said.fields.given("transformer_layer_config");
    let ahead = said.get::<bool>("sliding_window_non_causal")?.or(is_nested.then_some(true));
    let causal = causal.or(ahead.map(|ahead| !ahead));
    let width = match said.size("swa_window_size")? {
        Some(width) => Some(width),
        None => layer.get::<usize>("sliding_window")?,
    };
    let of = |number: usize| match types.get(number).map(String::as_str) {
        None | Some("full_attention") => {
            Ok(Sight { causal: causal.unwrap_or(false), window: None })
        }
        Some("sliding_attention") => match (causal.unwrap_or(true), width) {
            (true, Some(width)) => Ok(Sight { causal: true, window: Some(width) }),
            (_, None) => Err("sliding_window: expected a width, got none".to_owned()),
            // Engines disagree on what lies in a window that looks ahead.
            (false, _) => Err("layer_types: expected full_attention where positions see what \
                               follows them, got sliding_attention"
                .to_owned()),
        },
        Some(other) => Err(format!("layer_types: expected full_attention, got {other:?}")),
    };
    (0..layers).map(of).collect()
}

/// The layers of the target that are read, in one of two conventions: by the layers whose outputs
/// they are, or by the layers whose inputs they are.
fn reads(said: &Said) -> Read<Option<Vec<HiddenState>>> {
    let outputs = said.get::<Vec<usize>>("target_layer_ids")?;
    let (field, numbers) = match outputs {
        Some(outputs) => {
            ("target_layer_ids", outputs.into_iter().map(|n| n.saturating_add(1)).collect())
        }
        None => {
            let field = "aux_hidden_state_layer_ids";
            let inputs = said.get::<Vec<usize>>(field)?;
            (field, inputs.unwrap_or_default())
        }
    };
    match numbers.is_empty() {
        true => Ok(None),
        false => in_order(numbers).map(Some).map_err(|e| format!("{field}: {e}")),
    }
}
