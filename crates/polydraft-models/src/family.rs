//! The families of models: reading of `config.json`, and names of tensors.
//!
//! A new family is a file here and an entry in [`FAMILIES`]. The decoder does not depend on the
//! family.

mod afmoe;
mod arcee;
mod cohere2;
pub(crate) mod common;
mod cwm;
mod deepseek;
mod ernie;
mod exaone3;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
pub(crate) mod gguf;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod granite_swa;
mod hunyuan;
mod internlm3;
mod keys;
mod lfm2;
mod llama;
mod mellum;
mod minimax;
mod ministral;
mod mistral;
mod mixtral;
pub(crate) mod mtp;
pub(crate) mod multimodal;
mod nemotron_h;
mod olmo2;
mod olmoe;
mod opt;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_next;
mod qwen_moe;
mod sarvam;
mod seed_oss;
mod smollm3;
mod solar_open;
mod starcoder2;
mod state_spaces;

use std::path::Path;

use polydraft_text::Fields;
use serde_json::Value;

use crate::config::Config;
use crate::error::{Error, Result};
use common::Family;
use multimodal::{ASSISTANTS, WRAPPERS, Wrapper, text_config};
use state_spaces::quote_infinity;

/// All supported families.
pub(crate) const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen2::MIMO,
    qwen3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma4::FAMILY,
    gemma4::UNIFIED,
    opt::FAMILY,
    smollm3::FAMILY,
    granite::FAMILY,
    olmo2::FAMILY,
    olmo2::OLMO3,
    phi3::FAMILY,
    glm4::GLM,
    glm4::FAMILY,
    ministral::FAMILY,
    ministral::MINISTRAL3,
    cohere2::FAMILY,
    exaone4::FAMILY,
    seed_oss::FAMILY,
    arcee::FAMILY,
    mixtral::FAMILY,
    qwen_moe::QWEN2,
    qwen_moe::QWEN3,
    olmoe::FAMILY,
    glm4_moe::FAMILY,
    gpt_oss::FAMILY,
    deepseek::V2,
    deepseek::V3,
    granite_moe::FAMILY,
    granite_moe::SHARED,
    granite_hybrid::FAMILY,
    nemotron_h::FAMILY,
    qwen3_next::NEXT,
    qwen3_next::DENSE,
    qwen3_next::MOE,
    lfm2::FAMILY,
    lfm2::MOE,
    lfm2::LFM3,
    internlm3::FAMILY,
    internlm3::IQUEST,
    exaone3::FAMILY,
    cwm::FAMILY,
    gemma::FAMILY,
    starcoder2::FAMILY,
    hunyuan::FAMILY,
    ernie::FAMILY,
    ernie::MOE,
    deepseek::GLM,
    deepseek::MISTRAL4,
    deepseek::YOUTU,
    sarvam::FAMILY,
    sarvam::LATENT,
    solar_open::FAMILY,
    granite_swa::FAMILY,
    granite_swa::MOE,
    mellum::FAMILY,
    minimax::FAMILY,
    afmoe::FAMILY,
];

/// Supported architectures of text models, by their names in `config.json`.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.architecture)
}

/// Supported architectures of multimodal models, whose text part can be loaded.
pub fn multimodal_architectures() -> impl Iterator<Item = &'static str> {
    WRAPPERS.iter().map(|wrapper| wrapper.architecture)
}

impl Config {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// A missing or invalid file; an unknown architecture or feature; sizes that are too large or
    /// inconsistent. The message names the field.
    pub fn read(path: &Path) -> Result<Self> {
        let text = polydraft_files::read_text(path, polydraft_files::FileKind::CONFIG)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|problem| Error::File { path: path.to_owned(), problem })
    }

    /// Whether `json` is the configuration of an assistant, a drafter that reads its target's KV
    /// cache.
    pub(crate) fn is_assistant(json: &Value) -> bool {
        assistant(json).is_some()
    }

    /// Reads the layers of an assistant.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read); features that an assistant cannot have.
    pub(crate) fn from_assistant(json: &Value) -> std::result::Result<Self, String> {
        let (Some(wrapper), Some(outer)) = (assistant(json), json.as_object()) else {
            return Err("architectures: expected an assistant's".to_owned());
        };
        let (architecture, mut text) = text_config(wrapper, outer)?;
        // An assistant has no keys and values in any layer, which is invalid for a model.
        text["num_kv_shared_layers"] = 0.into();
        let family = FAMILIES.iter().find(|family| family.architecture == architecture);
        let family = family.ok_or_else(|| format!("{architecture}: expected a known family"))?;
        let mut config = (family.read)(family, &Fields::new(&text)?)?;
        config.check()?;
        for (field, is_there) in [
            ("hidden_size_per_layer_input", config.per_layer.is_some()),
            ("enable_moe_block", config.experts.is_some()),
            ("use_double_wide_mlp", config.double_wide_mlp),
        ] {
            if is_there {
                return Err(format!("{field}: expected none in an assistant, got some"));
            }
        }
        config.attention.shared_kv_layers = config.layers;
        // The window does not count the query's own token, which is not in the cache.
        config.attention.window = config.attention.window.map(|window| window.saturating_add(1));
        Ok(config)
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let text = quote_infinity(text);
        let value: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        // The architecture comes first: other architectures lack fields or use them differently.
        let known = || {
            let names: Vec<_> = architectures().chain(multimodal_architectures()).collect();
            format!("architectures: expected one of the known architectures ({})", names.join(", "))
        };
        let name = value.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("{}, got none", known()))?;
        if Self::is_assistant(&value) {
            return Err(format!(
                "architectures: expected a model, got the assistant {name:?}, a draft head for \
                 another model"
            ));
        }
        let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.architecture == name);
        let (architecture, text) = match (wrapper, value.as_object()) {
            (Some(wrapper), Some(outer)) => text_config(wrapper, outer)?,
            _ => (name.to_owned(), value.clone()),
        };
        let family = FAMILIES.iter().find(|family| family.architecture == architecture);
        let family = family.ok_or_else(|| {
            format!(
                "{}, got {name:?}; llama.cpp may run a GGUF file of it (a build with --features \
                 llama, and the backend llama), and polydraft's Python package the transformers \
                 model itself",
                known()
            )
        })?;
        let mut config = (family.read)(family, &Fields::new(&text)?)?;
        if let Some(wrapper) = wrapper {
            config.architecture = wrapper.architecture;
            config.is_multimodal = true;
            config.names = wrapper.names().unwrap_or(config.names);
        }
        config.check()?;
        Ok(config)
    }
}

/// The wrapper of an assistant with configuration `json`, if it is one.
fn assistant(json: &Value) -> Option<&'static Wrapper> {
    let name = json.get("architectures").and_then(|all| all.get(0)).and_then(Value::as_str)?;
    ASSISTANTS.iter().find(|wrapper| wrapper.architecture == name)
}
